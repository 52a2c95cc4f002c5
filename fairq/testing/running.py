"""All queues in memory, the clock, and the handlers that run when the test says so.

Time is virtual: it follows the event loop's clock, which may be trio's `MockClock`. When nothing runs, and something is
due later, it jumps there at once. Only the service's time jumps: deadlines do not.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from contextvars import Context
from math import inf
from typing import Any

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled
from attrs import define, field

from fairq.client import tracing
from fairq.client.handlers import outcome_of, perform
from fairq.client.isolation import in_context
from fairq.client.threads import Threads
from fairq.client.worker import Worker
from fairq.errors import FairqError
from fairq.io.event_loop import current_runtime
from fairq.io.exception_groups import ungrouped
from fairq.io.forks import running_worker
from fairq.io.interrupts import remembering_interrupts
from fairq.model.checks import full_id, owner_of
from fairq.model.options import check_in_time
from fairq.model.queues import QueueSettings
from fairq.model.refusals import not_held
from fairq.model.tasks import NewTask, Settlement
from fairq.testing.memory import MemoryQueue, Record
from fairq.wire.frames import PushedTask
from fairq.wire.settlements import failed

MAX_RUNS = 100_000  # of handlers in one call, so that tasks that enqueue each other do not hang the test


@asynccontextmanager
async def _open_tasks() -> AsyncIterator[TaskGroup]:
    with running_worker(current_runtime()), remembering_interrupts(), ungrouped():
        async with anyio.create_task_group() as group:
            yield group


@define(eq=False)
class Memory:
    """The queues, and a worker that runs handlers only in `run_until`."""

    worker: Worker
    settings: Mapping[str, QueueSettings]
    rng: random.Random
    fresh_context: Callable[[], Context]  # of a handler
    queues: dict[str, MemoryQueue] = field(factory=dict)
    threads: Threads = field(init=False)
    _running: int = field(default=0, init=False)
    _in_threads: int = field(default=0, init=False)
    _scopes: dict[int, anyio.CancelScope] = field(factory=dict, init=False)  # by id() of the record
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
            settings = self.settings.get(name, QueueSettings())
            self.queues[name] = MemoryQueue(settings, self.worker.concurrency, self.rng)
        return self.queues[name]

    def on_change(self) -> None:
        """There may be work, or a free place; or something has ended."""
        self._moved.set()
        self._tell_ends()

    def _tell_ends(self) -> None:
        self._ended.set()
        self._ended = anyio.Event()

    async def wait_for_ends(self) -> None:
        """Wait until tasks or batches may have ended."""
        await self._ended.wait()

    def stop(self, records: Iterable[Record]) -> None:
        """Cancel the handlers of tasks that were cancelled."""
        for record in records:
            if scope := self._scopes.get(id(record)):
                scope.cancel()

    def _claim(self, now: int) -> tuple[str, PushedTask] | None:
        """Lease the next task, one queue after the other."""
        for _ in range(len(self._turns)):
            name = self._turns[0]
            self._turns.rotate(-1)
            if name in self.queues and (pushed := self.queues[name].claim(now)):
                return name, pushed
        return None

    async def _perform_apart(self, name: str, pushed: PushedTask) -> None:
        attempt = tracing.active.processing(name, pushed, self._perform(name, pushed))
        await in_context(self.fresh_context(), attempt)

    async def _perform(self, name: str, pushed: PushedTask) -> None:
        handler, queue = self.worker.handlers[name].find(pushed.name), self.queues[name]
        record, limit_s = queue.records[pushed.id], queue.settings.run_timeout_ms / 1000 or inf
        settlement = Settlement("release", pushed.id, pushed.lease)  # of a handler that is cancelled
        try:
            with anyio.CancelScope() as self._scopes[id(record)]:
                settlement, error = await perform(
                    handler, name, pushed, self.threads, self._report, self._enqueue, self._read_results, limit_s
                )
                if error is not None:
                    record.exceptions.append(error)
        finally:
            del self._scopes[id(record)]
            self._in_threads -= not handler.is_async
            self._running -= 1
            self._settle(name, pushed, settlement)
            self.on_change()

    def _settle(self, name: str, pushed: PushedTask, settlement: Settlement) -> None:
        """End a task's lease, with a span unless its handler was cancelled; it has failed if its links are refused."""
        end = None
        if settlement.action != "release":
            end = tracing.active.settling(name, pushed, settlement, outcome_of(pushed, settlement))
        try:
            self._settle_linked(name, settlement)
        except FairqError as error:
            settlement = failed(settlement, error)
            self.queues[name].settle(self.now(), settlement)
        if end is not None:
            end(settlement, "ok", "")

    def _settle_linked(self, name: str, settlement: Settlement) -> None:
        """End a lease. What it links to in other queues is enqueued before. Raises: what refuses a link."""
        tenant, tasks = owner_of(settlement.id), defaultdict[str, list[NewTask]](list)
        for target, task in settlement.links:
            tasks[target].append(owned(tenant, task))
        own = tasks.pop(name, [])
        for target, some in tasks.items():
            check_in_time(self.queue(target).enqueue(self.now(), tenant, some))
        self.queues[name].settle(self.now(), settlement, own)

    def _report(self, name: str, pushed: PushedTask, fraction: float, text: str) -> None:
        self.queues[name].records[pushed.id].progress.append((fraction, text))

    async def _enqueue(self, name: str, pushed: PushedTask, target: str, task: NewTask) -> str:
        """Store a task that a handler enqueues."""
        await checkpoint()
        state = self.queues[name].state(pushed.id)
        if state.state != "leased" or state.attempt != pushed.attempt:
            raise not_held(pushed.id, pushed.lease)
        (outcome,) = self.queue(target).enqueue(self.now(), pushed.tenant, [owned(pushed.tenant, task)])
        self.on_change()
        return outcome.replace(f" {pushed.tenant}/", " ")

    async def _read_results(self, name: str, pushed: PushedTask, cursor: str | None) -> Any:
        """Read the results of the batch for which a task calls back, all in one page."""
        await checkpoint()
        rows = self.queues[name].batch_results(self.now(), pushed.id, pushed.lease)
        return {"results": rows, "cursor": None}

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
                    group.start_soon(self._perform_apart, *found)
                due = min((self.queues[name].next_due() for name in self._turns if name in self.queues), default=inf)
                if self._running:
                    await self._wait(due if due <= end else inf)
                elif due <= end and due < inf:
                    self._ahead += due - now
                else:
                    break
        if end < inf:
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
        with anyio.CancelScope(deadline=inf if self._in_threads else at):
            await self._moved.wait()
        self._moved = anyio.Event()


def owned(tenant: str, task: NewTask) -> NewTask:
    """Return a tenant's task with its full id."""
    return NewTask(full_id(tenant, task.id), *task[1:])
