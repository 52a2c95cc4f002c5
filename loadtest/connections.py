"""Connections: what ten thousand idle workers and tenants weigh, and what they do to the latency of the others.

Also what it takes, and what it does to the others, when all the workers' connections break at once.
"""

from __future__ import annotations

import resource
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

import fairq
from loadtest.crowd import Crowd, connected_crowd
from loadtest.figures import Verdict, judge, read_records
from loadtest.openloop import OpenLoop, percentiles_ms
from loadtest.processes import RunFailed, Server, resident_bytes, running_server, running_worker
from loadtest.pulse import Pulse
from loadtest.reconnect import Reconnect
from loadtest.report import Progress, Table
from loadtest.throughput import PAYLOAD
from loadtest.watch import wait_attached, wait_done

RATE, CREDIT = 200.0, 10
SPARE_FILES = 200


@frozen
class Sizes:
    """How many idle connections of each kind, how many workers hold a task, and for how long latency is measured."""

    each: int = 5_000
    holders: int = 500
    seconds: float = 15.0
    limit: float = 600.0


QUICK = Sizes(each=100, holders=10, seconds=1.0, limit=40.0)


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
        await self._measure(name, idle, lambda traffic: traffic.run([self.busy], self.sizes.seconds))

    async def _measure(self, name: str, idle: int, send: Callable[[OpenLoop], Awaitable[None]]) -> None:
        """Have traffic sent to a queue and worker of its own, and note a row."""
        queue, seed = f"busy-{len(self.rows)}", len(self.rows) + 1
        record, traffic = self.server.directory / f"{queue}.record", OpenLoop(queue, PAYLOAD, RATE, seed)
        self.progress.say(f"connections: latency, {name}")
        async with running_worker(self.server, [queue], CREDIT, record):
            await wait_attached(self.operator, queue)
            await send(traffic)
            await wait_done(self.operator, queue, len(traffic.due_ms), f"connections, {name}", self.sizes.limit)
        starts = read_records(record)
        self.verdicts[f"connections, {name}"] = judge(traffic.due_ms, [entry.id for entry in starts])
        self.rows.append({"name": name, "idle": idle, **percentiles_ms(traffic.latency(starts))})

    async def reconnect(self, workers: Crowd, idle: int) -> None:
        """Measure the same while all idle workers lose their connections, some of them holding leases."""
        name = f"while {self.sizes.each:,} workers reconnect"
        async with fairq.open_client(self.server.url, token="dev-tenant:pulse") as client:
            reconnect = Reconnect(workers, self.operator, self.busy, Pulse(client), self.sizes.limit)
            await reconnect.hold(self.sizes.holders)
            await self._measure(name, idle, reconnect.send)
            found, self.verdicts[f"connections, tasks held {name}"] = await reconnect.finish()
        self.rows[-1] |= found


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report."""
    sizes = QUICK if quick else Sizes()
    connections = 3 * sizes.each + SPARE_FILES  # broken ones are there until the server has read their end
    check_files(connections)
    settings = {"FAIRQ_MAX_CONNECTIONS": str(connections)}
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
        async with connected_crowd(server, "tenants", sizes.each, progress, limit=sizes.limit):
            weights["tenant"] = (resident_bytes(server.pid) - before) // sizes.each
            await scenario.latency("beside idle tenants", sizes.each)
            between = resident_bytes(server.pid)
            async with connected_crowd(
                server, "workers", sizes.each, progress, holders=sizes.holders, limit=sizes.limit
            ) as workers:
                weights["worker"] = (resident_bytes(server.pid) - between) // sizes.each
                await scenario.latency("beside idle tenants and workers", 2 * sizes.each)
                await scenario.reconnect(workers, 2 * sizes.each)
    return {"each": sizes.each, "bytes": weights, "rate": RATE, "rows": scenario.rows, "verdicts": scenario.verdicts}


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    names = ("p50", "p90", "p99", "p99.9", "max")
    weights, again = part["bytes"], part["rows"][-1]
    return [
        Table(
            f"latency in ms of {part['rate']:g} tasks/s beside idle connections (open loop)",
            ["", "idle connections", *names],
            [[row["name"], row["idle"], *(row[name] for name in names)] for row in part["rows"]],
            f"the server's memory: {weights['tenant'] / 1024:.1f} KiB per idle tenant,"
            f" {weights['worker'] / 1024:.1f} KiB per idle worker",
        ),
        Table(
            "the reconnect",
            ["", "all attached after s", "longest silence ms", "tasks held", "leases lost"],
            [[again[name] for name in ("name", "attached_again_s", "longest_silence_ms", "held", "leases_lost")]],
        ),
    ]
