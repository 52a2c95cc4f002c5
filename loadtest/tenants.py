"""Tenants: what an enqueue and a claim cost the store with ten tenants and with a million, and what a tenant weighs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio
from attrs import asdict, define, frozen

from fairq.model.tasks import NewTask
from fairq.store.embedded import embedded_store, socket_path
from loadtest.baseline import Baseline
from loadtest.bench import CALL_TASKS, PAYLOAD, Bench, for_all
from loadtest.pictures import new_figure, save
from loadtest.processes import RunFailed
from loadtest.report import Progress, Table
from loadtest.stores import opened
from loadtest.throughput import PAYLOAD_BYTES

ENOUGH_BYTES_PER_TASK = 3_000  # of free memory: what a tenant with a task may take, with room to spare


@frozen
class Sizes:
    """How many tenants, and how many tasks are enqueued and claimed at each number of them."""

    tenants: tuple[int, ...] = (10, 1_000, 100_000, 1_000_000)
    tasks: int = 20_000
    single: int = 2_000  # claims of one task


QUICK = Sizes(tenants=(10, 500), tasks=1_000, single=100)


@define(eq=False)
class Tenants:
    """One number of tenants, on a store of its own."""

    bench: Bench
    socket: Path
    count: int
    sizes: Sizes
    progress: Progress

    async def _enqueue(self, tenants: range, tasks: int, kind: str) -> None:
        """Give each of these tenants so many tasks."""

        async def give(i: int) -> None:
            if i % 10_000 == 0:
                self.progress.say(f"tenants: {kind}, {i:,} of {self.count:,}")
            await self.bench.enqueue(f"t{i}", [NewTask(f"t{i}-{kind}-{n}", PAYLOAD) for n in range(tasks)])

        await for_all(tenants, give)

    async def _bare(self) -> float:
        """Measure LPUSH, LMOVE and LREM, pipelined, on the same store: us of its CPU per task."""
        baseline = Baseline(self.socket, await self.bench.process_id(), self.sizes.tasks, PAYLOAD_BYTES)
        await baseline.take()
        return round((baseline.cpu["push store"] + baseline.cpu["drain store"]) / self.sizes.tasks * 1e6, 1)

    async def measure(self) -> dict[str, Any]:
        """Give each tenant a task, and some of them more, one call each; then claim and acknowledge."""
        bench = self.bench
        bare = await self._bare()
        empty = await bench.memory()
        first = await bench.cost_of(self.count, lambda: self._enqueue(range(self.count), 1, "first"))
        one_each = await bench.memory()
        calls = min(self.count, self.sizes.tasks // 10)
        per_call = self.sizes.tasks * 2 // calls
        more = await bench.cost_of(calls * per_call, lambda: self._enqueue(range(calls), per_call, "more"))
        full = await bench.memory()
        self.progress.say(f"tenants: claiming of {self.count:,}")
        await bench.claim(min(self.count, self.sizes.tasks))  # serves from the wake list; after it probes are drawn
        await bench.settle()
        tasks = self.sizes.tasks // 2
        claim = await bench.cost_of(tasks, lambda: bench.claim(tasks))
        settle = await bench.cost_of(tasks, bench.settle)
        single = self.sizes.single
        claim_one = await bench.cost_of(single, lambda: bench.claim(single, per_call=1))
        await bench.settle()
        return {
            "tenants": self.count, "per_call": min(per_call, CALL_TASKS),
            "enqueue_one": asdict(first), "enqueue_more": asdict(more),
            "claim": asdict(claim), "claim_one": asdict(claim_one), "settle": asdict(settle), "bare": bare,
            "tenant_bytes": round((one_each - empty) / self.count),
            "task_bytes": round((full - one_each) / (calls * per_call)),
        }  # fmt: skip


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
        async with embedded_store(home, fsync=fsync) as url, opened(url) as store:
            bench = Bench(store, "tenants")
            rows.append(await Tenants(bench, socket_path(home), count, sizes, progress).measure())
        verdicts[f"{count:,} tenants"] = bench.verdict()
        await trio.to_thread.run_sync(shutil.rmtree, home)
    return {"claimed": sizes.tasks // 2, "call_tasks": CALL_TASKS, "rows": rows, "verdicts": verdicts}


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    kinds = ("enqueue_one", "enqueue_more", "claim", "claim_one", "settle")
    title = (
        f"what many active tenants cost the store, in us of its CPU per task (and of that inside the function library);"
        f" {part['claimed']:,} tasks claimed and acknowledged, {part['call_tasks']} per call; bare: LPUSH, LMOVE, LREM,"
        " pipelined; of bare: enqueue, claim and ack, N per call, to that"
    )
    rows = [
        [
            f"{row['tenants']:,}", *(f"{row[kind]['cpu']:g} ({row[kind]['function']:g})" for kind in kinds),
            f"{row['bare']:g}", f"{_sum_of(row) / row['bare']:.1f}",
            row["per_call"], row["tenant_bytes"], row["task_bytes"],
        ]
        for row in part["rows"]
    ]  # fmt: skip
    headings = [
        "tenants",
        "enqueue, 1 per call",
        "enqueue, N per call",
        "claim",
        "claim, 1 per call",
        "ack",
        "bare",
        "of bare",
    ]
    return [Table(title, [*headings, "N", "bytes/tenant with a task", "bytes/more task"], rows)]


def _sum_of(row: Mapping[str, Any]) -> float:
    return float(sum(row[kind]["cpu"] for kind in ("enqueue_more", "claim", "settle")))


def draw(part: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw cost against the number of tenants."""
    figure, axes = new_figure("Store CPU per task against active tenants", "active tenants", "us")
    for kind, label in (("claim", "claim"), ("settle", "acknowledge"), ("enqueue_more", "enqueue")):
        axes.plot([r["tenants"] for r in part["rows"]], [r[kind]["cpu"] for r in part["rows"]], "o-", label=label)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return [save(figure, directory / "tenants.png")]
