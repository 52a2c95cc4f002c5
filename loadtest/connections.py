"""Connections: what ten thousand idle workers and tenants weigh, and what they do to the latency of the others."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen

import fairq
from loadtest.figures import Verdict, judge, read_records
from loadtest.openloop import OpenLoop, percentiles_ms
from loadtest.processes import RunFailed, Server, resident_bytes, running_server, running_worker
from loadtest.report import Progress, Table
from loadtest.throughput import PAYLOAD
from loadtest.watch import queue_state, wait_attached, wait_done, wait_until

RATE, CREDIT = 200.0, 10
SPARE_FILES = 200
GROUP = 50  # workers that connect at once; more would wait for each other in this one process


@frozen
class Sizes:
    """How many idle connections of each kind, and for how long latency is measured."""

    each: int = 5_000
    seconds: float = 15.0
    limit: float = 600.0


QUICK = Sizes(each=100, seconds=1.0, limit=40.0)


def check_files(wanted: int) -> None:
    """Raise this process's limit of open files (its children inherit it). Raises: RunFailed if it is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise RunFailed(
            f"{wanted:,} open files are needed and {hard:,} allowed; raise the limit (`ulimit -Hn {wanted}`)"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@define(eq=False)
class Connections:
    """One run of the scenario, against one server."""

    server: Server
    operator: fairq.Client
    busy: fairq.Client
    sizes: Sizes
    progress: Progress
    verdicts: dict[str, Verdict] = field(factory=dict, init=False)
    rows: list[dict[str, Any]] = field(factory=list, init=False)

    async def latency(self, name: str, idle: int) -> None:
        """Measure the latency of a busy tenant and worker beside so many idle connections."""
        queue, seed = f"busy-{len(self.rows)}", len(self.rows) + 1
        record, traffic = self.server.directory / f"{queue}.record", OpenLoop(queue, PAYLOAD, RATE, seed)
        self.progress.say(f"connections: latency, {name}")
        async with running_worker(self.server, [queue], CREDIT, record):
            await wait_attached(self.operator, queue)
            await traffic.run([self.busy], self.sizes.seconds)
            await wait_done(self.operator, queue, len(traffic.due_ms), f"connections, {name}", self.sizes.limit)
        starts = read_records(record)
        self.verdicts[f"connections, {name}"] = judge(traffic.due_ms, [entry.id for entry in starts])
        self.rows.append({"name": name, "idle": idle, **percentiles_ms(traffic.latency(starts))})

    async def _idle(self, n: int, *, task_status: trio.TaskStatus[None]) -> None:
        async with fairq.open_client(self.server.url, token=f"dev-tenant:idle-{n}") as client:
            await client.tasks("idle", ["none"])  # answered, so it is connected
            task_status.started()
            await trio.sleep_forever()

    async def open_tenants(self, nursery: trio.Nursery) -> None:
        """Connect idle tenants."""
        for n in range(self.sizes.each):
            if n % 500 == 0:
                self.progress.say(f"connections: idle tenants, {n:,} of {self.sizes.each:,}")
            await nursery.start(self._idle, n)

    async def open_workers(self, nursery: trio.Nursery) -> None:
        """Attach idle workers to one queue."""
        for n in range(self.sizes.each):
            if n % 500 == 0:
                self.progress.say(f"connections: idle workers, {n:,} of {self.sizes.each:,}")
            worker = fairq.Worker(self.server.url, token="dev-worker", name=f"idle-{n}", concurrency=1)
            worker.task("idle")(_never)
            await nursery.start(worker.run)
            if (n + 1) % GROUP == 0 or n + 1 == self.sizes.each:
                await self._until_attached(n + 1)

    async def _until_attached(self, count: int) -> None:
        async def all_attached() -> float:
            return float((await queue_state(self.operator, "idle"))["workers"]) / count

        await wait_until("connections, idle workers", self.sizes.limit, all_attached)


async def _never(task: fairq.Task) -> None:
    raise AssertionError("an idle worker got a task")


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report."""
    sizes = QUICK if quick else Sizes()
    check_files(2 * sizes.each + SPARE_FILES)
    settings = {"FAIRQ_MAX_CONNECTIONS": str(2 * sizes.each + SPARE_FILES)}
    progress.say("connections: starting a server")
    weights = dict[str, int]()
    async with (
        running_server(directory / "connections", fsync=fsync, settings=settings) as server,
        fairq.open_client(server.url, token="dev-operator") as operator,
        fairq.open_client(server.url, token="dev-tenant:busy") as busy,
    ):
        scenario = Connections(server, operator, busy, sizes, progress)
        await scenario.latency("no idle connections", 0)
        before = resident_bytes(server.pid)
        async with trio.open_nursery() as nursery:
            await scenario.open_tenants(nursery)
            with_tenants = resident_bytes(server.pid)
            weights["tenant"] = (with_tenants - before) // sizes.each
            await scenario.latency("beside idle tenants", sizes.each)
            between = resident_bytes(server.pid)
            await scenario.open_workers(nursery)
            weights["worker"] = (resident_bytes(server.pid) - between) // sizes.each
            await scenario.latency("beside idle tenants and workers", 2 * sizes.each)
            nursery.cancel_scope.cancel()
    return {"each": sizes.each, "bytes": weights, "rate": RATE, "rows": scenario.rows, "verdicts": scenario.verdicts}


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    names = ("p50", "p90", "p99", "p99.9", "max")
    weights = part["bytes"]
    return [
        Table(
            f"latency in ms of {part['rate']:g} tasks/s beside idle connections (open loop)",
            ["", "idle connections", *names],
            [[row["name"], row["idle"], *(row[name] for name in names)] for row in part["rows"]],
            f"the server's memory: {weights['tenant'] / 1024:.1f} KiB per idle tenant,"
            f" {weights['worker'] / 1024:.1f} KiB per idle worker",
        )
    ]
