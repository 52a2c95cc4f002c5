"""Tenants: what an enqueue and a claim cost the store with ten tenants and with a million, and what a tenant weighs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import trio
from attrs import asdict, define, field, frozen

from fairq.model import Lease, NewTask, Settlement
from fairq.store.embedded import embedded_store
from fairq.store.opening import open_store
from fairq.store.store import Store
from loadtest.figures import Verdict, judge
from loadtest.pictures import new_figure, save
from loadtest.processes import RunFailed, cpu_seconds
from loadtest.report import Progress, Table
from loadtest.throughput import PAYLOAD_BYTES

CALLERS = 64  # enqueues under way at once
CALL_TASKS = 100
QUEUE = "tenants"
PAYLOAD = b'"' + b"x" * (PAYLOAD_BYTES - 2) + b'"'
ENOUGH_BYTES_PER_TASK = 3_000  # of free memory: what a tenant with a task may take, with room to spare


@frozen
class Sizes:
    """How many tenants, and how many tasks are enqueued and claimed at each number of them."""

    tenants: tuple[int, ...] = (10, 1_000, 100_000, 1_000_000)
    tasks: int = 20_000


QUICK = Sizes(tenants=(10, 500), tasks=1_000)


@frozen
class Cost:
    """Microseconds per task: seen by the caller, of the store's CPU, and of that inside the function library."""

    wall: float
    cpu: float
    function: float


@define(eq=False)
class Tenants:
    """One number of tenants, on a store of its own."""

    store: Store
    count: int
    sizes: Sizes
    progress: Progress
    ids: set[str] = field(factory=set, init=False)
    seen: list[str] = field(factory=list, init=False)
    leases: list[Lease] = field(factory=list, init=False)

    async def _info(self, section: str, name: str) -> str:
        """Read one field of the store's INFO; `0` if it is not there."""
        text = (await self.store.connection.call("INFO", section)).decode()
        return text.partition(f"{name}")[2].split()[0] if name in text else "0"

    async def _memory(self) -> int:
        return int(await self._info("memory", "used_memory:"))

    async def _used(self) -> tuple[float, float, float]:
        pid = int(await self._info("server", "process_id:"))
        function = await self._info("commandstats", "cmdstat_fcall:")
        inside = int(function.partition("usec=")[2].partition(",")[0] or 0)
        return time.perf_counter(), cpu_seconds(pid), inside / 1e6

    async def cost_of(self, tasks: int, work: Callable[[], Awaitable[None]]) -> Cost:
        """Do the work on so many tasks; return what it cost."""
        before = await self._used()
        await work()
        after = await self._used()
        return Cost(*(round((end - start) / tasks * 1e6, 1) for end, start in zip(after, before, strict=True)))

    async def _enqueue(self, tenants: range, tasks: int, kind: str) -> None:
        """Give each of these tenants so many tasks, in calls of CALL_TASKS at most, CALLERS tenants at a time."""
        left = iter(tenants)

        async def call() -> None:
            for i in left:
                if i % 10_000 == 0:
                    self.progress.say(f"tenants: {kind}, {i:,} of {self.count:,}")
                batch = [NewTask(f"t{i}-{kind}-{n}", PAYLOAD) for n in range(tasks)]
                for start in range(0, tasks, CALL_TASKS):
                    await self.store.enqueue(QUEUE, f"t{i}", batch[start : start + CALL_TASKS])
                self.ids.update(task.id for task in batch)

        async with trio.open_nursery() as nursery:
            for _ in range(CALLERS):
                nursery.start_soon(call)

    async def _claim(self, tasks: int) -> None:
        while tasks > 0:
            claim = await self.store.claim(QUEUE, "loadtest", min(CALL_TASKS, tasks))
            if not claim.leases:
                raise RunFailed(f"tenants: the queue gave nothing with {tasks:,} tasks to come")
            tasks -= len(claim.leases)
            self.leases += claim.leases

    async def _settle(self) -> None:
        for start in range(0, len(self.leases), CALL_TASKS):
            some = self.leases[start : start + CALL_TASKS]
            await self.store.settle(QUEUE, [Settlement("ack", lease.id, lease.attempt) for lease in some])
        self.seen += [lease.id for lease in self.leases]
        self.leases.clear()

    async def measure(self) -> dict[str, Any]:
        """Give each tenant a task, and some of them more, one call each; then claim and acknowledge."""
        empty = await self._memory()
        first = await self.cost_of(self.count, lambda: self._enqueue(range(self.count), 1, "first"))
        one_each = await self._memory()
        calls = min(self.count, self.sizes.tasks // 10)
        per_call = self.sizes.tasks * 2 // calls
        more = await self.cost_of(calls * per_call, lambda: self._enqueue(range(calls), per_call, "more"))
        full = await self._memory()
        self.progress.say(f"tenants: claiming of {self.count:,}")
        await self._claim(min(self.count, self.sizes.tasks))  # serves from the wake list; after it darts are thrown
        await self._settle()
        tasks = self.sizes.tasks // 2
        claim = await self.cost_of(tasks, lambda: self._claim(tasks))
        settle = await self.cost_of(tasks, self._settle)
        return {
            "tenants": self.count, "per_call": min(per_call, CALL_TASKS),
            "enqueue_one": asdict(first), "enqueue_more": asdict(more),
            "claim": asdict(claim), "settle": asdict(settle),
            "tenant_bytes": round((one_each - empty) / self.count),
            "task_bytes": round((full - one_each) / (calls * per_call)),
        }  # fmt: skip

    def verdict(self) -> Verdict:
        """Judge what was claimed; the rest is still in the queue."""
        return judge(self.ids, self.seen, left=len(self.ids) - len(self.seen))


def _check_memory(count: int) -> None:
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    if free < count * ENOUGH_BYTES_PER_TASK:
        raise RunFailed(f"{count:,} tenants want {count * ENOUGH_BYTES_PER_TASK >> 20:,} MiB of memory; free some")


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report."""
    sizes, rows, verdicts = QUICK if quick else Sizes(), [], {}
    for count in sizes.tenants:
        _check_memory(count)
        home = directory / f"tenants-{count}"
        async with embedded_store(home, fsync=fsync) as url, open_store(url) as store:
            scenario = Tenants(store, count, sizes, progress)
            rows.append(await scenario.measure())
        verdicts[f"{count:,} tenants"] = scenario.verdict()
        await trio.to_thread.run_sync(shutil.rmtree, home)
    return {"claimed": sizes.tasks // 2, "call_tasks": CALL_TASKS, "rows": rows, "verdicts": verdicts}


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    kinds = ("enqueue_one", "enqueue_more", "claim", "settle")
    title = (
        f"what many active tenants cost the store, in us of its CPU per task (and of that inside the function library);"
        f" {part['claimed']:,} tasks claimed and acknowledged, {part['call_tasks']} per call, all in turn"
    )
    rows = [
        [
            f"{row['tenants']:,}", *(f"{row[kind]['cpu']:g} ({row[kind]['function']:g})" for kind in kinds),
            row["per_call"], row["tenant_bytes"], row["task_bytes"],
        ]
        for row in part["rows"]
    ]  # fmt: skip
    headings = ["tenants", "enqueue, 1 per call", "enqueue, N per call", "claim", "ack", "N"]
    return [Table(title, [*headings, "bytes/tenant with a task", "bytes/more task"], rows)]


def draw(part: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw cost against the number of tenants."""
    figure, axes = new_figure("Store CPU per task against active tenants", "active tenants", "us")
    for kind, label in (("claim", "claim"), ("settle", "acknowledge"), ("enqueue_more", "enqueue")):
        axes.plot([r["tenants"] for r in part["rows"]], [r[kind]["cpu"] for r in part["rows"]], "o-", label=label)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return [save(figure, directory / "tenants.png")]
