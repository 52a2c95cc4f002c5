"""`fairq enqueue --lines`: one task per line of a file, all in one batch; and what `--requests` shares with it.

A task's id consists of the batch's id and a number. Tasks are stored in their order, one frame after the other, so
the number of tasks that a batch has says which they are: repeating the command with the same `--id` continues an
interrupted one and makes no task twice. Where that number cannot be known or cannot be right, it is refused. When the
tenant reaches a quota, the command waits for room and continues.
"""

from __future__ import annotations

import stat
import sys
from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import trio
from attrs import asdict, frozen

from fairq.cli.meter import Pace, meter, say_counts, say_ends
from fairq.cli.payloads import read_json
from fairq.client.bodies import encode_payload
from fairq.errors import BadRequest, QuotaExceeded, TooLarge
from fairq.model.checks import MAX_BATCH
from fairq.model.options import hash_payload, pack_options
from fairq.model.tasks import RARE_COUNTS, NewTask

if TYPE_CHECKING:
    from fairq.cli.meter import Counts
    from fairq.client.batch import Batch
    from fairq.client.client import Client
    from fairq.model.batches import BatchState
    from fairq.model.option_tables import TaskOptions

T = TypeVar("T")

MAX_LINE_BYTES = 64 << 20
FRAME_TASKS = MAX_BATCH // RARE_COUNTS
_FRAME_BYTES, _TASK_BYTES = 48_000, 256  # frames of that size fit into a message under all settings of servers
_CHUNK_BYTES = 1 << 20
_ROOM_MS = 1000  # wait for room if the server does not say how long


@frozen
class Line:
    """A line of a file, and the tasks that it makes."""

    number: int
    tasks: list[NewTask]


LineT = TypeVar("LineT", bound=Line)


@frozen
class Stored:
    """The result of a file: its id, its tasks as far as known, the output for scripts, and the text for people."""

    id: str
    counts: Counts
    row: dict[str, Any]
    summary: str


@contextmanager
def open_lines(path: str, field: str) -> Iterator[tuple[Iterator[tuple[int, bytes]], int]]:
    """Open a file, or standard input (`-`); yields its lines that are not empty, numbered, and how many lines it has.

    0 lines: unknown. Raises: BadRequest, also while lines are read.
    """
    if path == "-":
        yield _numbered(sys.stdin.buffer, field), 0
        return
    try:
        total = _count_lines(path)
        file = Path(path).open("rb")  # noqa: SIM115
    except OSError as error:
        raise BadRequest(f"cannot read {path}: {error.strerror}", field=field) from None
    with file:
        yield _numbered(file, field), total


def _numbered(file: BinaryIO, field: str) -> Iterator[tuple[int, bytes]]:
    for number in count(1):
        try:
            line = file.readline(MAX_LINE_BYTES + 1)
        except OSError as error:
            raise BadRequest(f"cannot read line {number}: {error.strerror}", field=field) from None
        if not line:
            return
        if len(line) > MAX_LINE_BYTES:
            raise BadRequest(f"line {number} is longer than {MAX_LINE_BYTES >> 20} MiB", field=field)
        if line := (line.removeprefix(BOM_UTF8) if number == 1 else line).strip(b"\r\n"):
            yield number, line


def _count_lines(path: str) -> int:
    """Count the lines of a file; 0 if it can be read only once."""
    if not stat.S_ISREG(Path(path).stat().st_mode):
        return 0
    found, end = 0, b"\n"
    with Path(path).open("rb") as file:
        while chunk := file.read(1 << 20):
            found, end = found + chunk.count(b"\n"), chunk[-1:]
    return found + (end != b"\n")


def bytes_of(tasks: Iterable[NewTask]) -> int:
    """Return how many bytes of a frame tasks take."""
    return sum(len(task.payload) + _TASK_BYTES for task in tasks)


def _chunks(lines: Iterable[LineT]) -> Iterator[list[LineT]]:
    """Gather lines that go into the store together: those of a frame. Lines before a bad one come before its error."""
    chunk: list[LineT] = []
    tasks = size = 0
    try:
        for line in lines:
            chunk.append(line)
            tasks, size = tasks + len(line.tasks), size + bytes_of(line.tasks)
            if tasks >= FRAME_TASKS or size >= _CHUNK_BYTES:
                yield chunk
                chunk, tasks, size = [], 0, 0
    except BadRequest:
        if chunk:
            yield chunk
        raise
    if chunk:
        yield chunk


def _frames(tasks: Sequence[NewTask]) -> Iterator[Sequence[NewTask]]:
    start = 0
    while start < len(tasks):
        stop, room = start, _FRAME_BYTES
        for task in tasks[start : start + FRAME_TASKS]:
            room -= bytes_of([task])
            if room < 0 and stop > start:
                break
            stop += 1
        yield tasks[start:stop]
        start = stop


async def with_room(call: Callable[[], Awaitable[T]]) -> T:
    """Call until the tenant's quota has room."""
    while True:
        try:
            return await call()
        except QuotaExceeded as error:
            await _wait_for_room(error)


async def _wait_for_room(error: QuotaExceeded) -> None:
    if error.field in ("queues", "max_tenants"):
        raise error  # waiting does not help
    await trio.sleep((error.retry_in_ms or _ROOM_MS) / 1000)


async def add(client: Client, queue: str, tasks: Sequence[NewTask]) -> None:
    """Enqueue tasks frame by frame: each is stored whole, in smaller and smaller parts while it exceeds the quota."""
    for frame in _frames(tasks):
        added, size = 0, len(frame)
        while added < len(frame):
            try:
                await client.enqueue_tasks(queue, frame[added : added + size])
                added += size
            except QuotaExceeded as error:
                size = max(1, size // 2)
                await _wait_for_room(error)


def repeating(id: str, to: str = "continue") -> str:
    """Say that the command may be repeated, and why it would be."""
    return f"to {to}, repeat the command with --id {id}"


async def store_lines(
    lines: Iterable[LineT], total: int, title: str, how: str, store: Callable[[list[LineT]], Awaitable[None]]
) -> None:
    """Store lines, chunk by chunk, and show the progress in lines; if it ends early, say `how` to continue."""
    pace, added = Pace(), 0
    try:
        with meter(title) as show:
            for chunk in _chunks(lines):
                await store(chunk)
                added, number = added + len(chunk), chunk[-1].number
                of = f" of {total:,}" if total else ""
                show(f"{number:,}{of} lines{pace.left(number, total)}", number, total)
    except BaseException:
        print(f"{added:,} lines were added; {how}", file=sys.stderr)
        raise


@contextmanager
def saying_how_to_wait(how: str) -> Iterator[None]:
    """If waiting ends early, say that the tasks go on, and `how` to wait again."""
    try:
        yield
    except BaseException:
        print(f"the tasks go on; {how}", file=sys.stderr)
        raise


def _payload_of(line: bytes, number: int, *, as_text: bool) -> bytes:
    try:
        return encode_payload(line.decode() if as_text else read_json(line))
    except UnicodeDecodeError as error:
        raise BadRequest(f"line {number} is not UTF-8: {error}", field="lines") from None
    except (BadRequest, TooLarge) as error:
        raise BadRequest(f"line {number}: {error.message}", field="lines") from None
    except ValueError as error:
        other = "; --text-lines takes lines of text" if str(error).startswith("not JSON") else ""
        raise BadRequest(f"line {number}: {error}{other}", field="lines") from None


def _skip(lines: Iterator[tuple[int, bytes]], known: int, id: str) -> None:
    """Skip the lines that are stored. Raises: BadRequest if the file has fewer."""
    found = sum(1 for _ in islice(lines, known))
    if found < known:
        raise BadRequest(
            f"batch {id} has {known:,} tasks, but the file {found:,} lines: was the file changed, or did another "
            "program add tasks to the batch?",
            field="lines",
        )


async def enqueue_lines(
    client: Client,
    queue: str,
    path: str,
    *,
    id: str | None,
    max_running: int,
    as_text: bool,
    options: TaskOptions,
    wait: float | None,
) -> Stored:
    """Open a batch, add the lines that are not empty, close it; with `wait` (s), return once it is complete."""
    with open_lines(path, "lines") as (lines, total):
        batch = await with_room(
            lambda: client.open_batch(queue, id=id, max_running=max_running, events=bool(options.get("events")))
        )
        is_keyed, values = bool(options.get("dedupe_payload")), pack_options({**options, "batch": batch.id})

        def read(number: int, line: bytes) -> Line:
            task = NewTask(f"{batch.id}-{number}", _payload_of(line, number, as_text=as_text), *values)
            return Line(number, [task._replace(dedupe_key=hash_payload(task.payload)) if is_keyed else task])

        async def store(chunk: list[Line]) -> None:
            await add(client, queue, [task for line in chunk for task in line.tasks])

        is_once = is_keyed and not options.get("dedupe_period")
        known = (await batch.state()).total
        if not is_keyed:  # else duplicates are not counted, and all lines are sent again
            _skip(lines, known, batch.id)
        elif known and is_once:
            raise BadRequest(
                f"batch {id} already has {known:,} tasks: with --dedupe-payload, but without --dedupe-period from the "
                "first run on, tasks done long ago would run again",
                field="dedupe_period",
            )
        how = f"it cannot be continued without --dedupe-period (--id {batch.id})" if is_once else repeating(batch.id)
        tasks = (read(number, line) for number, line in lines)
        await store_lines(tasks, total, f"enqueue {queue}", how, store)
    await batch.close()
    if wait is None:
        return _stored(await batch.state(), "")
    watch = f"to wait again: fairq batches watch {queue} {batch.id}"
    with saying_how_to_wait(watch if is_once else repeating(batch.id, "wait again")):
        state = await _wait(batch, wait)
    return _stored(state, f"{state.total:,} tasks: {say_ends(state)}")


def _stored(state: BatchState, summary: str) -> Stored:
    return Stored(state.id, state, asdict(state), summary)


async def _wait(batch: Batch, timeout: float) -> BatchState:
    pace = Pace()
    with meter(batch.queue) as show:
        async for state in batch.watch(timeout=timeout):
            left = pace.left(state.ended, state.total)
            show(say_counts(state) + left, state.ended, state.total)
    return state
