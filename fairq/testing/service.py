"""The service in memory: a client to enqueue with, and a worker's handlers, run when the test says so.

Time is virtual: it goes on with the event loop's clock, be that the real one or trio's `MockClock`, and where nothing
runs and something is due later, it jumps there at once. Only the service's time jumps: deadlines do not notice.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from inspect import isawaitable
from typing import Any, Self, Unpack, cast

import anyio
import orjson
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled
from attrs import asdict, define, field

from fairq.client.caller import Caller
from fairq.client.client import Client
from fairq.client.handlers import perform
from fairq.client.tasks import EnqueuedTask
from fairq.client.threads import Threads
from fairq.client.worker import Worker
from fairq.errors import BadRequest, Forbidden, NotYet
from fairq.groups import ungrouped
from fairq.model.checks import (
    DEFAULT_PAYLOAD_BYTES,
    MAX_BATCH,
    check_int,
    check_known_id,
    check_name,
    check_tenant,
    full_id,
    owner_of,
)
from fairq.model.options import TaskOptions
from fairq.model.queues import QueueSettings, check_settings
from fairq.model.tasks import Link, NewTask, Settlement
from fairq.testing.memory import MemoryQueue, Record
from fairq.wire.frames import PushedTask
from fairq.wire.terms import MAX_CREDIT

_NEVER = float("inf")
MAX_RUNS = 100_000  # of handlers in one call, so that tasks that enqueue each other do not hang the test


@asynccontextmanager
async def _open_tasks() -> AsyncIterator[TaskGroup]:
    with ungrouped():
        async with anyio.create_task_group() as group:
            yield group


@define
class TrackedTask(EnqueuedTask):
    """A task of a test, which knows what has become of it."""

    _record: Record = field(kw_only=True, repr=False, eq=False)

    @property
    def outcome(self) -> str:
        """Its state now: `done`, `dead`, or `ready`, `delayed` or `leased` if it is not over yet."""
        return self._record.state

    @property
    def reason(self) -> str:
        """Why it is dead: `exhausted`, `rejected` or `expired`."""
        return self._record.reason

    @property
    def error(self) -> str:
        """What the last failure said, as operators read it."""
        return self._record.error

    @property
    def attempts(self) -> int:
        """How often its handler was called."""
        return self._record.attempt

    @property
    def exceptions(self) -> Sequence[BaseException]:
        """What its handler raised, call by call: with their tracebacks, to be looked into or raised."""
        return tuple(self._record.exceptions)

    @property
    def progress(self) -> Sequence[tuple[float, str]]:
        """What its handler said of its progress: fraction and text, one after the other."""
        return tuple(self._record.progress)

    def __repr__(self) -> str:
        told = {name: getattr(self, name) for name in ("outcome", "attempts", "reason", "error")}
        shown = "".join(f", {name}={value!r}" for name, value in told.items() if value not in ("", 0))
        return f"TrackedTask({self.queue!r}, {self.id!r}{shown})"


@define(eq=False)
class _Memory:
    """All queues, the clock, and the handlers that run."""

    worker: Worker
    settings: Mapping[str, QueueSettings]
    rng: random.Random
    queues: dict[str, MemoryQueue] = field(factory=dict)
    threads: Threads = field(init=False)
    _running: int = field(default=0, init=False)
    _in_threads: int = field(default=0, init=False)
    _turns: deque[str] = field(init=False)
    _ahead: float = field(init=False)  # of the event loop's clock, in ms
    _moved: anyio.Event = field(factory=anyio.Event, init=False)
    _ended: anyio.Event = field(factory=anyio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self.threads = Threads(self.worker.concurrency)
        self._turns = deque(self.worker.handlers)
        self._ahead = (time.time() - anyio.current_time()) * 1000

    def now(self) -> int:
        """The time in ms."""
        return round(anyio.current_time() * 1000 + self._ahead)

    def queue(self, name: str) -> MemoryQueue:
        """Find a queue; the first use makes it."""
        if name not in self.queues:
            self.queues[name] = MemoryQueue(self.settings.get(name, QueueSettings()), self.rng.random)
        return self.queues[name]

    def on_change(self) -> None:
        """There may be work, or a free place."""
        self._moved.set()

    def _tell_ends(self) -> None:
        self._ended.set()
        self._ended = anyio.Event()

    async def wait_for_ends(self) -> None:
        """Wait until tasks may have ended."""
        await self._ended.wait()

    def _claim(self, now: int) -> tuple[str, PushedTask] | None:
        """Lease the next task, one queue after the other."""
        for _ in range(len(self._turns)):
            name = self._turns[0]
            self._turns.rotate(-1)
            if name in self.queues and (pushed := self.queues[name].claim(now)):
                return name, pushed
        return None

    async def _perform(self, name: str, pushed: PushedTask) -> None:
        handler, queue = self.worker.handlers[name].find(pushed.name), self.queues[name]
        settlement = Settlement("release", pushed.id, pushed.lease)  # of a handler that is cancelled
        try:
            limit_s = queue.settings.run_timeout_ms / 1000 or _NEVER
            settlement, error = await perform(handler, name, pushed, self.threads, self._report, self._enqueue, limit_s)
            if error is not None:
                queue.records[pushed.id].exceptions.append(error)
        finally:
            self._in_threads -= not handler.is_async
            self._running -= 1
            queue.settle(self.now(), settlement)
            self._link(name, pushed.tenant, settlement.links)
            self._tell_ends()
            self.on_change()

    def _report(self, name: str, pushed: PushedTask, fraction: float, text: str) -> None:
        self.queues[name].records[pushed.id].progress.append((fraction, text))

    async def _enqueue(self, name: str, pushed: PushedTask, target: str, task: NewTask) -> str:
        """Store a task that a handler enqueues, unless an earlier attempt did."""
        await checkpoint()
        record = self.queues[name].records[pushed.id]
        if record.state != "leased" or record.attempt != pushed.attempt:
            raise Forbidden(f"this worker does not hold lease {pushed.lease} of task {pushed.id}", field="leases")
        if task.batch:
            raise BadRequest("the service in memory has no batches", field="batch")
        if (target, task.id) in record.made:
            return "duplicate"
        outcome = self.queue(target).enqueue(self.now(), pushed.tenant, _owned(pushed.tenant, task))
        if outcome != "expired":
            record.made.add((target, task.id))
        self.on_change()
        return outcome.replace(f" {pushed.tenant}/", " ")

    def _link(self, name: str, tenant: str, links: Sequence[Link]) -> None:
        """Store what leaves with an acknowledgement."""
        for target, task in links:
            task = _owned(tenant, task)
            if self.queue(target).enqueue(self.now(), tenant, task) == "expired":
                why = "it would expire before it may start"
                self.queues[name].bury_link(self.now(), tenant, "" if target == name else target, task, why)

    async def run_until(self, end: float) -> None:
        """Run what is ready and what becomes due up to a moment; returns when nothing runs any more."""
        runs = 0
        async with _open_tasks() as group:
            while True:
                await checkpoint_if_cancelled()
                now = self.now()
                self._tick(min(now, end))
                while self._running < self.worker.concurrency and (found := self._claim(now)):
                    runs += 1
                    if runs > MAX_RUNS:
                        raise RuntimeError(
                            f"{MAX_RUNS} handlers have run, and tasks still wait: an endless chain, or max_attempts=0?"
                        )
                    self._running += 1
                    self._in_threads += not self.worker.handlers[found[0]].find(found[1].name).is_async
                    group.start_soon(self._perform, *found)
                due = min((self.queues[name].next_due() for name in self._turns if name in self.queues), default=_NEVER)
                if self._running:
                    await self._wait(due if due <= end else _NEVER)
                elif due <= end and due < _NEVER:
                    self._ahead += due - now
                else:
                    break
        if end < _NEVER:
            self._ahead += max(0, end - self.now())
            self._tick(self.now())

    def _tick(self, now: float) -> None:
        for queue in self.queues.values():
            queue.tick(now)
        self._tell_ends()

    async def _wait(self, due: float) -> None:
        """Wait for a handler's end or a new task, or until something is due.

        Not until then while threads run: to a MockClock they look as if nothing went on, and it would jump there.
        """
        at = anyio.current_time() + (due - self.now()) / 1000
        with anyio.CancelScope(deadline=_NEVER if self._in_threads else at):
            await self._moved.wait()
        self._moved = anyio.Event()


def _owned(tenant: str, task: NewTask) -> NewTask:
    return NewTask(full_id(tenant, task.id), *task[1:])


@define(eq=False)
class _Caller:
    """Stands where a client has its session, and answers at once."""

    memory: _Memory
    tenant: str
    max_payload_bytes: int = DEFAULT_PAYLOAD_BYTES

    def enqueue(self, queue: str, tasks: Sequence[NewTask], deadline: float) -> list[str]:
        """Store tasks."""
        now, line = self.memory.now(), self.memory.queue(queue)
        if any(owner_of(task.id) for task in tasks):
            raise Forbidden("only producers name the tenant of a task", field="tenant")
        if any(task.batch for task in tasks):
            raise BadRequest("the service in memory has no batches", field="batch")
        outcomes = [line.enqueue(now, self.tenant, _owned(self.tenant, task)) for task in tasks]
        self.memory.on_change()
        return [outcome.replace(f" {self.tenant}/", " ") for outcome in outcomes]

    def now(self) -> float:
        """Return the time of the event loop's clock."""
        return anyio.current_time()

    async def wait(self, answer: Any) -> Any:
        """Wait for an answer."""
        if isawaitable(answer):  # first: one that is never awaited would be warned of
            answer = await answer
        await checkpoint()
        return answer

    async def sleep_until(self, time: float) -> None:
        """Wait until a time of `now`."""
        await anyio.sleep_until(time)

    async def pass_turn(self) -> None:
        """Let others have a turn."""
        await checkpoint()

    def request(self, verb: str, body: Mapping[str, Any], deadline: float) -> Any:
        """Carry out what a tenant may ask; what waits is to be awaited."""
        if verb not in ("tasks", "events"):
            raise Forbidden(f"the service in memory has no verb {verb}", field="type")
        line = self.memory.queue(check_name(body["queue"], "queue"))
        if verb == "events":
            if body.get("tenant", self.tenant) != self.tenant:
                raise Forbidden("what other tenants have is not your own", field="tenant")
            return self._events(line, body["after"], body.get("count", MAX_BATCH), body.get("timeout_ms", 0))
        ids = [check_known_id(id, "ids") for id in body["ids"]]
        return {"tasks": [{**asdict(line.state(full_id(self.tenant, id))), "id": id} for id in ids]}

    async def wait_task(self, queue: str, id: str, deadline: float) -> dict[str, Any]:
        """Return a task's row of `wait_tasks` once it has ended. Raises: NotYet at the deadline."""
        line = self.memory.queue(queue)
        with anyio.CancelScope(deadline=deadline):
            while (row := self._end(line, id)) is None:
                await self.memory.wait_for_ends()
            return row
        raise NotYet(f"task {id} has not ended", field="id")

    async def _events(self, line: MemoryQueue, after: int, count: int, timeout_ms: int) -> dict[str, Any]:
        with anyio.move_on_after(timeout_ms / 1000):
            while timeout_ms and not line.events(self.tenant, after, count).events:
                await self.memory.wait_for_ends()
        return asdict(line.events(self.tenant, after, count))

    def _end(self, line: MemoryQueue, id: str) -> dict[str, Any] | None:
        state = line.state(full_id(self.tenant, id))
        result = line.result(self.memory.now(), full_id(self.tenant, id))
        if state.state not in ("done", "dead", "unknown"):
            return None
        row = {"id": id, "state": state.state, "reason": state.reason, "error": state.error}
        return row if result is None else {**row, "result": orjson.loads(result)}


@define(eq=False)
class MemoryClient(Client):
    """A tenant's client: to be used, and given to the code under test, as the one of `fairq.open_client`."""

    _memory: _Memory = field(kw_only=True)
    tenant: str = field(kw_only=True)

    @classmethod
    def of(cls, memory: _Memory, tenant: str) -> Self:
        """Make a tenant's client."""
        caller = cast(Caller, _Caller(memory, check_tenant(tenant)))
        return cls(caller, memory=memory, tenant=tenant)

    async def enqueue(
        self,
        queue: str,
        payload: Any,
        *,
        id: str | None = None,
        tenant: str | None = None,
        timeout: float | None = None,
        **options: Unpack[TaskOptions],
    ) -> TrackedTask:
        """As `Client.enqueue`."""
        ids = None if id is None else [id]
        return (await self.enqueue_many(queue, [payload], ids=ids, tenant=tenant, timeout=timeout, **options))[0]

    async def enqueue_many(  # type: ignore[override]
        self,
        queue: str,
        payloads: Iterable[Any],
        *,
        ids: Sequence[str] | None = None,
        tenant: str | Sequence[str] | None = None,
        timeout: float | None = None,
        **options: Unpack[TaskOptions],
    ) -> list[TrackedTask]:
        """As `Client.enqueue_many`."""
        tasks = await super().enqueue_many(queue, payloads, ids=ids, tenant=tenant, timeout=timeout, **options)
        records = self._memory.queue(queue).records
        return [
            TrackedTask(
                task.id,
                queue,
                task.is_duplicate,
                self,
                is_replaced=task.is_replaced,
                record=records[full_id(self.tenant, task.id)],
            )
            for task in tasks
        ]


@define(eq=False)
class MemoryService(MemoryClient):
    """The service in memory, and a tenant's client of it. Handlers run inside `drain` and `advance` only."""

    def as_tenant(self, tenant: str) -> MemoryClient:
        """Return another tenant's client."""
        return MemoryClient.of(self._memory, tenant)

    @property
    def now(self) -> datetime:
        """The time, as the service has it: it begins with the real one."""
        return datetime.fromtimestamp(self._memory.now() / 1000, UTC)

    async def drain(self) -> None:
        """Run all tasks that have a handler to their end, also delayed ones and every retry, however late they start.

        Raises: RuntimeError after 100,000 runs of handlers.
        """
        await self._memory.run_until(_NEVER)

    async def advance(self, seconds: float) -> None:
        """Let this much time pass, and run to its end what is ready or becomes due meanwhile."""
        if not 0 <= seconds < _NEVER:
            raise BadRequest(f"seconds must be 0 or more, not {seconds!r:.80}", field="seconds")
        await self._memory.run_until(self._memory.now() + round(seconds * 1000))


@asynccontextmanager
async def run(
    worker: Worker,
    *,
    tenant: str = "test",
    settings: Mapping[str, Mapping[str, str | int]] | None = None,
    seed: int = 0,
) -> AsyncIterator[MemoryService]:
    """Give a test the service in memory, with a worker's handlers; what its on_startup and on_shutdown do is done too.

    `settings` are queues' settings, by queue, as of `fairq queues set`; `seed` decides the jitter of retries.
    Raises: BadRequest for a worker that could not run, or unknown settings.
    """
    if not worker.handlers:
        raise BadRequest("the worker has no handlers; register one with @app.task(queue)", field="queues")
    check_int(worker.concurrency, "concurrency", 1, MAX_CREDIT)
    chosen = {
        check_name(queue, "queue"): QueueSettings(**check_settings(dict(changes)))  # type: ignore[arg-type]
        for queue, changes in (settings or {}).items()
    }
    await worker.hooks.start()
    try:
        yield MemoryService.of(_Memory(worker, chosen, random.Random(seed)), tenant)
    finally:
        await worker.hooks.end()
