"""One queue over the primaries of a cluster, with one partition and with twelve: rate, cost, fairness.

Each row has a cluster of three and some servers, each with a worker of its own; together they have the row's slots.
First the workers empty the queue of tasks that do nothing. Then tenants of weights 1 to 10 have more tasks of 100 ms
than can run, and quiet tenants send a short one now and then. A tenant's lag is how far the worker time that it was
given is from its due, at any moment after the first fifth.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen

import fairq
from loadtest.figures import Record, Verdict, judge, read_records, spread
from loadtest.processes import CpuMeter, Server, running_server, running_worker
from loadtest.report import Progress, Table
from loadtest.stores import Node, running_nodes
from loadtest.watch import stop_handing_out, wait_done, wait_workers

PRIMARIES, TENANTS, QUIET_TENANTS = 3, 200, 10
TASK_MS, QUIET_MS, QUIET_EVERY_S = 100, 20, 0.7
CHUNK = 2_000  # tasks in one call of enqueue_many
NOTHING, SLEEP = "noop", "sleep"  # queues: what their tasks do (handlers.py)
MOMENTS = 40  # at which lags are looked at


@frozen
class Case:
    """A row: how many partitions, servers and slots."""

    partitions: int
    servers: int
    slots: int

    def __str__(self) -> str:
        return f"{self.partitions} partitions, {self.servers} servers, {self.slots} slots"


@frozen
class Sizes:
    """Which rows, how many tasks are drained, and for how long shares are measured."""

    cases: Sequence[Case] = tuple(Case(p, s, k) for k in (100, 500) for s in (1, 4) for p in (1, 12))
    tasks: int = 40_000
    seconds: float = 20.0
    limit: float = 240.0


QUICK = Sizes(cases=(Case(1, 1, 20), Case(12, 2, 20)), tasks=2_000, seconds=2.0, limit=60.0)


def _weights() -> dict[str, float]:
    """Return the weights of the tenants that always have tasks."""
    return {f"t{n}": 1.0 + n % 10 for n in range(TENANTS)}


def _bare(task: fairq.EnqueuedTask) -> str:
    """Return a task's id as workers see it, without its tenant."""
    return task.id.rpartition("/")[2]


def worst_lag(starts: Sequence[Record], weights: Mapping[str, float], began_ms: float, ended_ms: float) -> float:
    """Return how far any of these tenants was from its due at any moment, in the longest of their tasks."""
    own = [start for start in starts if start.tenant in weights]
    longest = max(start.worked_ms for start in own)
    worst, weight_sum = 0.0, sum(weights.values())
    for moment in range(MOMENTS // 5, MOMENTS + 1):
        now = began_ms + (ended_ms - began_ms) * moment / MOMENTS
        given = dict.fromkeys(weights, 0.0)
        for start in own:
            given[start.tenant] += min(max(now - start.started_ms, 0.0), start.worked_ms)
        unit = sum(given.values()) / weight_sum
        worst = max(worst, *(abs(given[tenant] - unit * weight) for tenant, weight in weights.items()))
    return worst / longest


@define(eq=False)
class OneQueue:
    """The measurements of one row, on its own cluster."""

    case: Case
    nodes: Sequence[Node]
    directory: Path
    sizes: Sizes
    progress: Progress
    servers: list[Server] = field(factory=list, init=False)
    records: list[Path] = field(factory=list, init=False)
    ids: list[str] = field(factory=list, init=False)
    left: int = field(default=0, init=False)

    async def run(self) -> tuple[dict[str, Any], Verdict]:
        """Measure; returns the row, and what became of the tasks."""
        case, row = self.case, dict[str, Any]()
        async with AsyncExitStack() as stack:
            for n in range(case.servers):
                running = running_server(self.directory / f"server-{n}", store=self.nodes[0].address.shown)
                self.servers.append(await stack.enter_async_context(running))
            operator = await stack.enter_async_context(fairq.open_client(self.servers[0].url, token="dev-operator"))
            producer = await stack.enter_async_context(fairq.open_client(self.servers[-1].url, token="dev-producer"))
            for queue in (NOTHING, SLEEP):
                await operator.request("configure", {"queue": queue, "settings": {"partitions": case.partitions}})
                await operator.request("set_paused", {"paused": True, "queue": queue})
            async with AsyncExitStack() as workers:
                for n, server in enumerate(self.servers):
                    self.records.append(server.directory / "worker.record")
                    slots = case.slots // case.servers
                    worker = running_worker(server, [NOTHING, SLEEP], slots, self.records[-1], name=f"worker-{n}")
                    await workers.enter_async_context(worker)
                await wait_workers(operator, [f"worker-{n}" for n in range(case.servers)])
                row |= await self._drain(operator, producer)
                began_ms, ended_ms = await self._share(operator, producer)
        starts = list(chain.from_iterable(map(read_records, self.records)))
        quiet = [start.dwell_ms for start in starts if start.tenant.startswith("quiet-")]
        slept = [start for start in starts if start.worked_ms]
        row["lag"] = round(worst_lag(slept, _weights(), began_ms, ended_ms), 2)
        row["used"] = round(sum(start.worked_ms for start in slept) / (ended_ms - began_ms + TASK_MS) / case.slots, 3)
        row["quiet"] = spread(quiet)
        return row, judge(self.ids, [start.id for start in starts], left=self.left)

    def _say(self, text: str) -> None:
        self.progress.say(f"scale: one queue, {self.case}: {text}")

    async def _fill(self, producer: fairq.Client, queue: str, counts: Mapping[str, int], payload: Any) -> None:
        """Enqueue so many tasks of each tenant, some tenants at once."""
        limit = trio.CapacityLimiter(8)

        async def fill(tenant: str, count: int) -> None:
            async with limit:
                for first in range(0, count, CHUNK):
                    some = [payload] * min(CHUNK, count - first)
                    self.ids += map(_bare, await producer.enqueue_many(queue, some, tenant=tenant))

        async with trio.open_nursery() as nursery:
            for tenant, count in counts.items():
                nursery.start_soon(fill, tenant, count)

    async def _drain(self, operator: fairq.Client, producer: fairq.Client) -> dict[str, Any]:
        """Have the workers empty the queue."""
        count = self.sizes.tasks // TENANTS
        self._say(f"draining {self.sizes.tasks:,} tasks")
        await self._fill(producer, NOTHING, dict.fromkeys(_weights(), count), 0)
        meter, began = CpuMeter({f"node {n}": node.pid for n, node in enumerate(self.nodes)}), time.perf_counter()
        await operator.request("set_paused", {"paused": False, "queue": NOTHING})
        await wait_done(operator, NOTHING, count * TENANTS, "the drain", self.sizes.limit)
        seconds, used = time.perf_counter() - began, meter.used()
        return {
            "drain_rate": round(count * TENANTS / seconds),
            "store_us": round(sum(used.values()) / count / TENANTS * 1e6, 1),
            "busiest": round(max(used.values()) / sum(used.values()), 3),
        }

    async def _share(self, operator: fairq.Client, producer: fairq.Client) -> tuple[float, float]:
        """Let all tenants compete for the slots; returns when that began and ended, in ms."""
        seconds, weights = self.sizes.seconds, _weights()
        for tenant, weight in weights.items():
            await operator.request("set_weight", {"queue": SLEEP, "tenant": tenant, "weight": weight})
        most = 1.3 * seconds * self.case.slots * 1000 / TASK_MS / sum(weights.values())
        self._say("filling")
        counts = {tenant: round(most * weight) + 20 + self.case.slots // 10 for tenant, weight in weights.items()}
        await self._fill(producer, SLEEP, counts, {"ms": TASK_MS})
        self._say(f"sharing for {seconds:g} s")
        began = time.time() * 1000
        await operator.request("set_paused", {"paused": False, "queue": SLEEP})
        async with trio.open_nursery() as nursery:
            for n in range(QUIET_TENANTS):
                nursery.start_soon(self._send_now_and_then, producer, f"quiet-{n}")
            await trio.sleep(seconds)
            nursery.cancel_scope.cancel()
        ended = time.time() * 1000
        self.left = await stop_handing_out(operator, SLEEP, self.sizes.limit)
        return began, ended

    async def _send_now_and_then(self, producer: fairq.Client, tenant: str) -> None:
        draws = random.Random(tenant)
        while True:
            await trio.sleep(draws.expovariate(1 / QUIET_EVERY_S))
            with trio.CancelScope(shield=True, deadline=trio.current_time() + self.sizes.limit):
                self.ids.append(_bare(await producer.enqueue(SLEEP, {"ms": QUIET_MS}, tenant=tenant)))


async def measure(
    directory: Path, progress: Progress, sizes: Sizes, fsync: str
) -> tuple[list[dict[str, Any]], dict[str, Verdict]]:
    """Measure all rows; returns them, and what became of the tasks."""
    rows, verdicts = list[dict[str, Any]](), dict[str, Verdict]()
    for case in sizes.cases:
        place = directory / f"{case.partitions}-{case.servers}-{case.slots}"
        async with running_nodes(place, PRIMARIES, fsync=fsync, is_cluster=True) as nodes:
            row, verdicts[f"scale, {case}"] = await OneQueue(case, nodes, place, sizes, progress).run()
        rows.append({"partitions": case.partitions, "servers": case.servers, "slots": case.slots, **row})
    return rows, verdicts


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Show the rows."""
    return Table(
        f"one queue on a cluster of {PRIMARIES}: {TENANTS} tenants of weights 1 to 10, tasks of {TASK_MS} ms;"
        f" {QUIET_TENANTS} quiet tenants, tasks of {QUIET_MS} ms",
        ["partitions", "servers", "slots", "drained/s", "store us a task", "busiest primary", "lag in tasks",
         "slots used", "quiet p50 ms", "p99"],
        [
            [
                row["partitions"], row["servers"], row["slots"], row["drain_rate"], row["store_us"],
                f"{row['busiest']:.0%}", row["lag"], f"{row['used']:.1%}", row["quiet"]["p50"], row["quiet"]["p99"],
            ]
            for row in rows
        ],
        "Drained: tasks that do nothing. Store: the CPU of all primaries. Lag: the worst of all tenants.",
    )  # fmt: skip
