"""A queue worked on through the Store's verbs: what that costs the store, and what becomes of the tasks."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import trio
from attrs import define, field, frozen

from fairq.model.tasks import Lease, NewTask, Settlement
from fairq.store.store import Store
from loadtest.figures import Verdict, judge
from loadtest.processes import RunFailed, cpu_seconds
from loadtest.throughput import PAYLOAD_BYTES

CALLERS = 64  # calls under way at once
CALL_TASKS = 100
PAYLOAD = b'"' + b"x" * (PAYLOAD_BYTES - 2) + b'"'
T = TypeVar("T")


async def for_all(items: Iterable[T], work: Callable[[T], Awaitable[object]]) -> None:
    """Do some work on each item, CALLERS of them at a time."""
    left = iter(items)

    async def caller() -> None:
        for item in left:
            await work(item)

    async with trio.open_nursery() as nursery:
        for _ in range(CALLERS):
            nursery.start_soon(caller)


@frozen
class Cost:
    """Microseconds per task: seen by the caller, of the store's CPU, and of that inside the function library."""

    wall: float
    cpu: float
    function: float


@define(eq=False)
class Bench:
    """One queue, on a store that does nothing else."""

    store: Store
    queue: str
    ids: set[str] = field(factory=set, init=False)
    seen: list[str] = field(factory=list, init=False)
    leases: list[Lease] = field(factory=list, init=False)

    async def _info(self, section: str, name: str) -> str:
        """Read one field of the store's INFO; `0` if it is not there."""
        text = (await self.store.connection.call("INFO", section)).decode()
        return text.partition(f"{name}")[2].split()[0] if name in text else "0"

    async def memory(self) -> int:
        """Return how many bytes the store uses."""
        return int(await self._info("memory", "used_memory:"))

    async def process_id(self) -> int:
        """Return the store's process id."""
        return int(await self._info("server", "process_id:"))

    async def _used(self) -> tuple[float, float, float]:
        pid = await self.process_id()
        function = await self._info("commandstats", "cmdstat_fcall:")
        inside = int(function.partition("usec=")[2].partition(",")[0] or 0)
        return time.perf_counter(), cpu_seconds(pid), inside / 1e6

    async def cost_of(self, tasks: int, work: Callable[[], Awaitable[None]]) -> Cost:
        """Do the work on so many tasks; return what it cost."""
        before = await self._used()
        await work()
        after = await self._used()
        return Cost(*(round((end - start) / tasks * 1e6, 1) for end, start in zip(after, before, strict=True)))

    async def enqueue(self, tenant: str, tasks: Sequence[NewTask]) -> None:
        """Give a tenant tasks, in calls of CALL_TASKS at most."""
        for start in range(0, len(tasks), CALL_TASKS):
            await self.store.enqueue(self.queue, tenant, tasks[start : start + CALL_TASKS])
        self.ids.update(task.id for task in tasks)

    async def claim(self, tasks: int, per_call: int = CALL_TASKS) -> None:
        """Claim so many tasks, some per call."""
        while tasks > 0:
            claim = await self.store.claim(self.queue, "loadtest", min(per_call, tasks))
            if not claim.leases:
                raise RunFailed(f"{self.queue}: the queue gave nothing with {tasks:,} tasks to come")
            tasks -= len(claim.leases)
            self.leases += claim.leases

    async def settle(self) -> None:
        """Acknowledge the claimed tasks, with a result where one is wanted."""
        for start in range(0, len(self.leases), CALL_TASKS):
            some = self.leases[start : start + CALL_TASKS]
            acks = [
                Settlement("ack", lease.id, lease.lease, result=PAYLOAD if lease.wants_result else b"")
                for lease in some
            ]
            await self.store.settle(self.queue, acks)
        self.seen += [lease.id for lease in self.leases]
        self.leases.clear()

    def verdict(self) -> Verdict:
        """Check the claimed tasks; the rest is still in the queue."""
        return judge(self.ids, self.seen, left=len(self.ids) - len(self.seen))
