"""A purge: what a quiet tenant feels while all waiting tasks of another tenant of its queue are cancelled.

The quiet tenant has RATE tasks a second at fixed moments, run by a worker of its own that does nothing. The other
tenant is paused, so that its tasks wait and nothing but the purge is different. A round goes before the purge, with all
its tasks waiting, and one after it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import trio
from attrs import define, evolve, field, frozen

import fairq
from loadtest.abuse import QUEUE, Rounds, running_victim
from loadtest.figures import Verdict, percentile
from loadtest.processes import RunFailed
from loadtest.report import Progress, Table
from loadtest.throughput import CHUNK, PAYLOAD

VARIABLE = "FAIRQ_LOADTEST_PURGE_TASKS"  # how many tasks to purge
CROWD, RATE = "crowd", 100.0


@frozen
class Sizes:
    """How many tasks are purged, how long the rounds without a purge last, and how long the last tasks may take."""

    tasks: int = 50_000
    seconds: float = 8.0
    limit: float = 60.0


QUICK = Sizes(tasks=2_000, seconds=0.5, limit=30.0)


def sizes_of(*, quick: bool) -> Sizes:
    """Return the sizes of a run; VARIABLE may say how many tasks."""
    sizes = QUICK if quick else Sizes()
    return evolve(sizes, tasks=int(os.environ.get(VARIABLE) or sizes.tasks))


def row_of(tasks: int, seconds: float, without: Rounds, during: Rounds) -> dict[str, Any]:
    """Make the report's row: each figure's p50 and p99 without and with the purge, and as parts of those without."""
    figures = {}
    for name in without:
        sides = {"without": without[name], "purge": during[name]}
        shown = {side: {p: percentile(values, p) for p in (50, 99)} for side, values in sides.items()}
        figures[name] = {
            **{side: {f"p{p}": round(found[p], 2) for p in found} for side, found in shown.items()},
            "of_without": {f"p{p}": round(shown["purge"][p] / shown["without"][p], 2) for p in (50, 99)},
        }
    return {"tasks": tasks, "seconds": round(seconds, 2), "figures": figures}


async def measure(
    directory: Path, progress: Progress, sizes: Sizes, *, fsync: str
) -> tuple[dict[str, Any], dict[str, Verdict]]:
    """Measure on a server of its own; returns the row and what became of the quiet tenant's tasks."""
    progress.say(f"purge: enqueueing {sizes.tasks:,} tasks")
    async with (
        running_victim(directory, fsync, sizes.limit) as quiet,
        fairq.open_client(quiet.server.url, token=f"dev-tenant:{CROWD}") as crowd,
        fairq.open_client(quiet.server.url, token="dev-operator") as operator,
    ):
        await operator.request("set_paused", {"paused": True, "queue": QUEUE, "tenant": CROWD})
        for start in range(0, sizes.tasks, CHUNK):
            await crowd.enqueue_many(QUEUE, [PAYLOAD] * min(CHUNK, sizes.tasks - start))
        progress.say(f"purge: {sizes.tasks:,} tasks")
        purge = Purge(operator)
        rest = partial(trio.sleep, sizes.seconds)
        before, during, after = [await quiet.measure_while(work, RATE, sizes.limit) for work in (rest, purge.run, rest)]
    if purge.cancelled != sizes.tasks:
        raise RunFailed(f"purge: {purge.cancelled:,} of {sizes.tasks:,} tasks were cancelled")
    without = {name: before[name] + after[name] for name in before}
    return row_of(sizes.tasks, purge.seconds, without, during), {"features, purge": quiet.verdict()}


@define(eq=False)
class Purge:
    """The purge: how many tasks it cancelled, and how long it took."""

    operator: fairq.Client
    cancelled: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)

    async def run(self) -> None:
        """Cancel all that waits of the crowd, as `fairq tenants purge` does."""
        began = time.perf_counter()
        self.cancelled = await self.operator.cancel_all(QUEUE, tenant=CROWD)
        self.seconds = time.perf_counter() - began


def table(row: Mapping[str, Any]) -> Table:
    """Show the row."""
    title = (
        f"purge: a quiet tenant's latency in ms, {RATE:g} tasks/s, while {row['tasks']:,} waiting tasks of another"
        f" tenant of its queue are cancelled, in {row['seconds']:g} s ({row['tasks'] / row['seconds']:,.0f}/s)"
    )
    lines = [
        [
            name, *(found[side][p] for side in ("without", "purge") for p in ("p50", "p99")),
            *found["of_without"].values(),
        ]
        for name, found in row["figures"].items()
    ]  # fmt: skip
    note = "without: rounds before and after the purge"
    return Table(title, ["", "p50", "p99", "purge p50", "purge p99", "p50, of without", "p99, of without"], lines, note)
