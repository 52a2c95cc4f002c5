"""Latency: from the moment a task is due to be sent until its handler starts, idle and under load, in an open loop."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen

import fairq
from loadtest.figures import Verdict, judge, read_records
from loadtest.openloop import OpenLoop, curve_ms, percentiles_ms
from loadtest.pictures import new_figure, save
from loadtest.processes import CpuMeter, Server, running_server, running_worker
from loadtest.report import Progress, Table
from loadtest.throughput import PAYLOAD
from loadtest.watch import wait_attached, wait_done

CALLERS, CREDIT, CONNECTIONS = 200, 100, 4
IDLE_RATE = 20.0
LOADS = (0.25, 0.5, 0.75)


@frozen
class Sizes:
    """How long each load lasts, and how many tasks find the maximum."""

    seconds: float = 20.0
    saturating: int = 40_000
    limit: float = 120.0


QUICK = Sizes(seconds=1.5, saturating=1_000, limit=30.0)


@define(eq=False)
class Latency:
    """One run of the scenario, against one server."""

    server: Server
    operator: fairq.Client
    clients: list[fairq.Client]
    sizes: Sizes
    progress: Progress
    rows: list[dict[str, Any]] = field(factory=list, init=False)
    verdicts: dict[str, Verdict] = field(factory=dict, init=False)

    async def _until_done(self, queue: str, count: int) -> None:
        await wait_done(self.operator, queue, count, f"latency, {queue}", self.sizes.limit)

    async def maximum(self) -> float:
        """Find how many tasks per second pass when CALLERS callers wait for each of theirs, and a worker works."""
        queue, ids, count = "maximum", list[str](), self.sizes.saturating
        record, left = self.server.directory / f"{queue}.record", iter(range(count))

        async def call(client: fairq.Client) -> None:
            for _ in left:
                ids.append((await client.enqueue(queue, PAYLOAD)).id)

        self.progress.say(f"latency: finding the maximum with {count:,} tasks")
        async with running_worker(self.server, [queue], CREDIT, record):
            await wait_attached(self.operator, queue)
            began = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for i in range(CALLERS):
                    nursery.start_soon(call, self.clients[i % len(self.clients)])
            await self._until_done(queue, count)
            seconds = time.perf_counter() - began
        self.verdicts["maximum"] = judge(ids, [entry.id for entry in read_records(record)])
        return count / seconds

    async def at(self, name: str, rate: float, seed: int) -> None:
        """Measure at one rate."""
        queue = f"latency-{seed}"
        record, traffic = self.server.directory / f"{queue}.record", OpenLoop(queue, PAYLOAD, rate, seed)
        self.progress.say(f"latency, {name}: {rate:,.0f} tasks/s for {self.sizes.seconds:g} s")
        async with running_worker(self.server, [queue], CREDIT, record) as worker:
            await wait_attached(self.operator, queue)
            warm = await self.clients[0].enqueue(queue, PAYLOAD)
            pids = {"server": self.server.pid, "store": self.server.store_pid, "client": os.getpid(), "worker": worker}
            meter = CpuMeter(pids)
            await traffic.run(self.clients, self.sizes.seconds)
            await self._until_done(queue, len(traffic.due_ms) + 1)
            cpu = meter.used()
        starts = [entry for entry in read_records(record) if entry.id != warm.id]
        self.verdicts[f"latency, {name}"] = judge(traffic.due_ms.keys(), [entry.id for entry in starts])
        gathered = traffic.latency([entry for entry in starts if entry.id in traffic.due_ms])
        self.rows.append(
            {
                "name": name, "rate": round(rate), "tasks": len(starts), **percentiles_ms(gathered),
                "cpu_of_2_cores": round(sum(cpu.values()) / self.sizes.seconds / 2, 3), "curve": curve_ms(gathered),
            }
        )  # fmt: skip


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report."""
    sizes = QUICK if quick else Sizes()
    progress.say("latency: starting a server")
    async with (
        running_server(directory / "latency", fsync=fsync) as server,
        fairq.open_client(server.url, token="dev-operator") as operator,
        fairq.open_client(server.url, token="dev-tenant:a") as a,
        fairq.open_client(server.url, token="dev-tenant:b") as b,
        fairq.open_client(server.url, token="dev-tenant:c") as c,
        fairq.open_client(server.url, token="dev-tenant:d") as d,
    ):
        scenario = Latency(server, operator, [a, b, c, d], sizes, progress)
        maximum = await scenario.maximum()
        await scenario.at("idle", IDLE_RATE, 1)
        for n, part in enumerate(LOADS, 2):
            await scenario.at(f"{part:.0%} of the maximum", part * maximum, n)
    return {"maximum": round(maximum), "credit": CREDIT, "rows": scenario.rows, "verdicts": scenario.verdicts}


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    names = ("p50", "p90", "p99", "p99.9", "max")
    title = (
        f"latency in ms from the moment a task is due to be sent to its start (open loop, Poisson, {CONNECTIONS}"
        f" tenants, one worker with credit {part['credit']}; maximum {part['maximum']:,} tasks/s)"
    )
    rows = [
        [row["name"], row["rate"], row["tasks"], *(row[name] for name in names), f"{row['cpu_of_2_cores']:.0%}"]
        for row in part["rows"]
    ]
    return [Table(title, ["", "tasks/s", "tasks", *names, "CPU of 2 cores"], rows)]


def draw(part: Mapping[str, Any], directory: Path) -> list[Path]:
    """Draw the percentile curves."""
    figure, axes = new_figure("Enqueue to start, by percentile", "percentile", "ms")
    for row in part["rows"]:
        axes.plot(*zip(*row["curve"], strict=True), label=f"{row['name']} ({row['rate']:,}/s)")
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = {1: "0", 2: "50", 10: "90", 100: "99", 1_000: "99.9", 10_000: "99.99"}
    highest = max(point[0] for row in part["rows"] for point in row["curve"])
    shown = {at: text for at, text in ticks.items() if at <= highest}
    axes.set_xticks(list(shown), list(shown.values()), minor=False)
    axes.minorticks_off()
    axes.legend(frameon=False)
    return [save(figure, directory / "latency.png")]
