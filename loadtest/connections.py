"""Connections: what ten thousand idle workers and tenants weigh, and what they do to the latency of the others."""

from __future__ import annotations

import resource
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen

import fairq
from loadtest.figures import Verdict, judge, read_records
from loadtest.openloop import OpenLoop, percentiles_ms
from loadtest.processes import RunFailed, Server, resident_bytes, running_idle, running_server, running_worker
from loadtest.report import Progress, Table
from loadtest.throughput import PAYLOAD
from loadtest.watch import wait_attached, wait_done

RATE, CREDIT = 200.0, 10
SPARE_FILES = 200


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

    @asynccontextmanager
    async def idle(self, kind: str) -> AsyncIterator[None]:
        """Keep idle clients connected while the context lasts. Raises: RunFailed if they cannot be."""
        each, connected, printed = self.sizes.each, 0, b""
        async with running_idle(self.server, kind, each) as process:
            assert process.stdout is not None
            with trio.move_on_after(self.sizes.limit):
                async for chunk in process.stdout:
                    printed += chunk
                    connected = int((b"0\n" + printed).rpartition(b"\n")[0].split()[-1])
                    self.progress.say(f"connections: idle {kind}, {connected:,} of {each:,}")
                    if connected == each:
                        break
            if connected < each:
                raise RunFailed(f"no more than {connected:,} of {each:,} idle {kind} were connected in time")
            yield


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
        async with scenario.idle("tenants"):
            weights["tenant"] = (resident_bytes(server.pid) - before) // sizes.each
            await scenario.latency("beside idle tenants", sizes.each)
            between = resident_bytes(server.pid)
            async with scenario.idle("workers"):
                weights["worker"] = (resident_bytes(server.pid) - between) // sizes.each
                await scenario.latency("beside idle tenants and workers", 2 * sizes.each)
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
