"""`fairq enqueue --requests`: one request per line of a file, each a batch of several tasks.

A line is JSON, `{"priority": 3, "max_running": 2, "tasks": ["a", "b"]}`, or plain, `3:a:b`. Its batch's id is that of
the command and the line's number, its tasks' ids are that and their numbers. So a repeated command finds what an
earlier one has stored: all tasks of a batch that is no longer open, and the first ones of an open
batch, as many as it has.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import trio
import uuid_utils
from attrs import asdict, define, field, frozen

from fairq.cli.lines import Line, Stored, add, open_lines, repeating, saying_how_to_wait, store_lines, with_room
from fairq.cli.meter import Pace, Show, meter, say_counts, say_ends
from fairq.cli.payloads import read_json
from fairq.client.bodies import encode_payload
from fairq.errors import BadRequest, FairqError, NotFound, NotYet, Retryable, TooLarge
from fairq.io.scopes import run_all
from fairq.model.batches import RUNNING
from fairq.model.checks import MAX_BATCH, check_batch_id
from fairq.model.options import pack_options
from fairq.model.tasks import NewTask

if TYPE_CHECKING:
    from fairq.cli.meter import Counts
    from fairq.client.client import Client
    from fairq.model.batches import BatchState
    from fairq.model.option_tables import TaskOptions

T = TypeVar("T")

_MAX_ID_CHARS = 30  # of the command; a batch's id has 40
MAX_TASKS = 100_000  # of a request: all are in memory at once
_KEYS = {"priority", "max_running", "tasks"}
_EVERY_S, _GAP_S = 1.0, 0.1  # between two looks at all unfinished batches; between two requests of one look


@define
class Sums:
    """The tasks of many batches."""

    total: int = 0
    running: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0
    expired: int = 0

    def add(self, counts: Counts) -> None:
        """Add the tasks of a batch, or of others."""
        for name in ("total", "running", "done", "dead", "cancelled", "expired"):
            setattr(self, name, getattr(self, name) + getattr(counts, name))

    @property
    def ended(self) -> int:
        """How many have come to their end."""
        return self.done + self.dead + self.cancelled


@frozen
class Request(Line):
    """A line that makes a batch."""

    id: str
    max_running: int


@define
class Part:
    """Up to 500 lines, with a wait for the batch of each."""

    unfinished: array[int] = field(factory=lambda: array("Q"))
    ended: Sums = field(factory=Sums)  # of complete batches
    open: Sums = field(factory=Sums)  # of the others, by the last look


def check_prefix(id: str | None) -> str:
    """Return the id from which those of the batches are made. Raises: BadRequest."""
    if id is None:
        return str(uuid_utils.uuid7().hex[:24])  # the time, and 44 random bits
    if len(check_batch_id(id)) > _MAX_ID_CHARS:
        raise BadRequest(f"id must be at most {_MAX_ID_CHARS} characters with --requests", field="id")
    return id


def _read_plain(line: bytes) -> dict[str, Any]:
    priority, separator, rest = line.decode().strip().partition(":")
    if not separator or not (priority.isascii() and priority.isdecimal() and len(priority) <= 2):
        raise ValueError("expected a priority (0 to 99), a colon and sub-requests, or a JSON object")
    tasks = [text.strip() for text in rest.split(":", MAX_TASKS)]
    if not all(tasks):
        raise ValueError("a sub-request is empty")
    return {"priority": int(priority), "tasks": tasks}


def _read_json(line: bytes) -> dict[str, Any]:
    found = read_json(line)
    if unknown := found.keys() - _KEYS:
        raise ValueError(f"unknown field {min(unknown)!r:.80}; a request has {', '.join(sorted(_KEYS))}")
    if not isinstance(found.get("tasks"), list) or not found["tasks"]:
        raise ValueError("tasks must be a list of at least one payload")
    return {name: value for name, value in found.items() if value is not None}


def parse(line: bytes, number: int, id: str, max_running: int, options: TaskOptions) -> Request:
    """Read a line. Raises: BadRequest, with its number."""
    try:
        found = _read_json(line) if line.lstrip().startswith(b"{") else _read_plain(line)
        if len(found["tasks"]) > MAX_TASKS:
            raise ValueError(f"a request has at most {MAX_TASKS:,} tasks")
        limit = RUNNING.check(found.get("max_running", max_running), "max_running")
        name = f"{id}-{number}"
        values = pack_options({**options, "priority": found.get("priority", options.get("priority")), "batch": name})
        payloads = (encode_payload(payload) for payload in found["tasks"])
        tasks = [NewTask(f"{name}-{nth}", payload, *values) for nth, payload in enumerate(payloads, 1)]
    except UnicodeDecodeError as error:
        raise BadRequest(f"line {number} is not UTF-8: {error}", field="requests") from None
    except (BadRequest, TooLarge) as error:
        raise BadRequest(f"line {number}: {error.message}", field="requests") from None
    except ValueError as error:
        raise BadRequest(f"line {number}: {error}", field="requests") from None
    return Request(number, tasks, name, limit)


def _tasks_left(request: Request, known: BatchState | None) -> list[NewTask]:
    """Return the tasks that an earlier run of the command has not stored. Raises: BadRequest if the file differs."""
    stored = known.total if known else 0
    if known is None or (known.state == "open" and stored <= len(request.tasks)):
        return request.tasks[stored:]
    if stored != len(request.tasks):
        raise BadRequest(
            f"line {request.number} has {len(request.tasks)} tasks, but batch {request.id} has {stored}: "
            "was the file changed, or the batch cancelled?",
            field="requests",
        )
    return []


@define
class _Run:
    """One run of the command."""

    client: Client
    queue: str
    id: str
    is_repeated: bool  # perhaps: an earlier run may have stored some
    events: bool
    requests: int = 0
    tasks: int = 0
    parts: list[Part] = field(factory=list)

    async def store(self, requests: list[Request]) -> None:
        """Open the batches of requests, add their tasks in order, and close them."""
        ids = [request.id for request in requests]
        known = await self.client.read_batches(self.queue, ids) if self.is_repeated else {}
        tasks = [task for request in requests for task in _tasks_left(request, known.get(request.id))]
        opening = [partial(self._open, request) for request in requests if request.id not in known]
        await run_all(*opening, stops_at_failure=True)
        await add(self.client, self.queue, tasks)
        is_open = (request for request in requests if request.id not in known or known[request.id].state == "open")
        closing = [self.client.batch(self.queue, request.id).close for request in is_open]
        await run_all(*closing, stops_at_failure=True)
        for request in requests:
            self._note(request)

    async def _open(self, request: Request) -> None:
        await with_room(
            lambda: self.client.open_batch(
                self.queue, id=request.id, max_running=request.max_running, events=self.events
            )
        )

    def _note(self, request: Request) -> None:
        self.requests, self.tasks = self.requests + 1, self.tasks + len(request.tasks)
        if not self.parts or len(self.parts[-1].unfinished) == MAX_BATCH:
            self.parts.append(Part())
        self.parts[-1].unfinished.append(request.number)

    @property
    def sums(self) -> Sums:
        """The progress of all tasks."""
        sums = Sums()
        for part in self.parts:
            sums.add(part.ended)
            sums.add(part.open)
        sums.total = self.tasks
        return sums

    async def wait(self, timeout: float) -> None:
        """Wait until all batches are complete, across reconnects. Raises: NotYet, NotFound."""
        deadline, pace = trio.current_time() + timeout, Pace()
        with meter(self.queue) as show:
            while True:
                await self._look(deadline, lambda sums: _show(show, pace, sums))
                first = next((part for part in self.parts if part.unfinished), None)
                if first is None:
                    return
                left_s = deadline - trio.current_time()
                if left_s <= 0:
                    left = sum(len(part.unfinished) for part in self.parts)
                    raise NotYet(f"{left:,} of {self.requests:,} requests are not complete", field="wait")
                batch = self.client.batch(self.queue, f"{self.id}-{first.unfinished[0]}")
                try:
                    await batch.wait(timeout=min(_EVERY_S, left_s))
                except FairqError as error:
                    if not isinstance(error, NotYet) and not isinstance(error, Retryable):
                        raise

    async def _look(self, deadline: float, on_sums: Callable[[Sums], None]) -> None:
        """Read the progress of the unfinished batches, some at a time: with many, it takes a while."""
        unfinished = [part for part in self.parts if part.unfinished]
        for part in unfinished:
            await self._look_at(part, deadline)
            on_sums(self.sums)
            if len(unfinished) > 1:
                await trio.sleep(_GAP_S)

    async def _look_at(self, part: Part, deadline: float) -> None:
        ids = {number: f"{self.id}-{number}" for number in part.unfinished}
        states = await _patiently(lambda: self.client.read_batches(self.queue, list(ids.values())), deadline)
        part.open, part.unfinished = Sums(), array("Q")
        for number, id in ids.items():
            if id not in states:
                raise NotFound(f"there is no batch {id} any more; was the queue deleted?", field="id")
            if states[id].state == "complete":
                part.ended.add(states[id])
            else:
                part.open.add(states[id])
                part.unfinished.append(number)


async def _patiently(call: Callable[[], Awaitable[T]], deadline: float) -> T:
    """Call until a server answers, or until the deadline."""
    while True:
        try:
            return await call()
        except FairqError as error:
            if not isinstance(error, Retryable) or trio.current_time() >= deadline:
                raise


def _show(show: Show, pace: Pace, sums: Sums) -> None:
    show(say_counts(sums) + pace.left(sums.ended, sums.total), sums.ended, sums.total)


async def enqueue_requests(
    client: Client,
    queue: str,
    path: str,
    *,
    id: str | None,
    max_running: int,
    options: TaskOptions,
    wait: float | None,
) -> Stored:
    """Make a batch of each line that is not blank; with `wait` (s), return when all are complete."""
    run = _Run(client, queue, check_prefix(id), id is not None, bool(options.get("events")))
    RUNNING.check(max_running, "max_running")
    with open_lines(path, "requests") as (lines, total):
        requests: Iterator[Request] = (
            parse(line, number, run.id, max_running, options) for number, line in lines if line.strip()
        )
        await store_lines(requests, total, f"enqueue {queue}", repeating(run.id), run.store)
    summary = f"{run.requests:,} requests, {run.tasks:,} tasks"
    if wait is None:
        return Stored(run.id, run.sums, {"id": run.id, "requests": run.requests, "total": run.tasks}, summary)
    with saying_how_to_wait(repeating(run.id, "wait again")):
        await run.wait(wait)
    row = {"id": run.id, "requests": run.requests, **asdict(run.sums)}
    return Stored(run.id, run.sums, row, f"{summary}: {say_ends(run.sums)}")
