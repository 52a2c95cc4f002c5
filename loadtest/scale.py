"""Scale: one and two servers on one store, and the same on clusters of one and three nodes, with several queues.

Each server has a worker of its own. The queues are chosen so that each node of a cluster has equally many.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen
from redis.crc import key_slot

import fairq
from fairq.store import keys
from fairq.store.topology import SLOTS
from loadtest.figures import Verdict, judge, read_records
from loadtest.processes import CpuMeter, RunFailed, Server, running_server, running_worker
from loadtest.report import Progress, Table
from loadtest.stores import Node, count_errors, running_nodes
from loadtest.throughput import PAYLOAD, PAYLOAD_BYTES
from loadtest.watch import wait_attached, wait_until

QUEUES, THIRDS = 6, 3
CREDIT = 500
CHUNK = 5_000  # tasks in one call of enqueue_many
ALONE, ONE, THREE = "a store", "cluster of 1", "cluster of 3"


@frozen
class Sizes:
    """How many tasks and seconds a measurement takes, and how many servers are measured on which store."""

    tasks: int = 30_000
    seconds: float = 240.0
    servers: Mapping[str, Sequence[int]] = {ALONE: (1, 2), ONE: (1, 2), THREE: (1, 2)}


QUICK = Sizes(tasks=1_200, seconds=30.0, servers={THREE: (1, 2)})


def spread_queues() -> list[str]:
    """Choose names of queues of which each third of the slots has equally many."""
    found: dict[int, list[str]] = {third: [] for third in range(THIRDS)}
    for number in count(1):
        name = f"scale-{number}"
        queues = found[key_slot(keys.queue_prefix(name).encode()) * THIRDS // SLOTS]
        if len(queues) < QUEUES // THIRDS:
            queues.append(name)
        if all(len(queues) == QUEUES // THIRDS for queues in found.values()):
            break
    return [name for queues in found.values() for name in queues]


@define(eq=False)
class Scale:
    """Measurements on one store, with one server after the other joining."""

    store: str
    nodes: list[Node]
    directory: Path
    sizes: Sizes
    progress: Progress
    queues: list[str] = field(factory=spread_queues)
    ids: list[str] = field(factory=list)
    servers: list[Server] = field(factory=list)
    operators: list[fairq.Client] = field(factory=list)
    clients: list[fairq.Client] = field(factory=list)
    pids: dict[str, int] = field(factory=dict)
    records: list[Path] = field(factory=list)
    rows: list[dict[str, Any]] = field(factory=list)

    async def run(self) -> Verdict:
        """Measure; returns what became of the tasks."""
        self.pids = {f"node {i}": node.pid for i, node in enumerate(self.nodes, 1)} | {"client": os.getpid()}
        async with AsyncExitStack() as stack:
            for wanted in self.sizes.servers[self.store]:
                for number in range(len(self.servers) + 1, wanted + 1):
                    self.progress.say(f"scale: {self.store}: starting server {number}")
                    await self._add_server(stack, number)
                await self._measure()
            errors = await count_errors(self.nodes)
        if errors.get("CROSSSLOT") or errors.get("MOVED"):
            raise RunFailed(f"{self.store}: calls went to the wrong node: {errors}")
        return judge(self.ids, [entry.id for record in self.records for entry in read_records(record)])

    async def _add_server(self, stack: AsyncExitStack, number: int) -> None:
        """Start a server and its worker."""
        directory, url = self.directory / f"server-{number}", self.nodes[0].address.shown
        server = await stack.enter_async_context(running_server(directory, store=url))
        record = directory / "worker.record"
        worker = await stack.enter_async_context(
            running_worker(server, self.queues, CREDIT, record, name=f"worker-{number}")
        )
        operator = await stack.enter_async_context(fairq.open_client(server.url, token="dev-operator"))
        for queue in self.queues:
            await operator.request("pause", {"queue": queue})
            await wait_attached(operator, queue)
        self.clients.append(
            await stack.enter_async_context(fairq.open_client(server.url, token=f"dev-tenant:t{number}"))
        )
        self.servers.append(server)
        self.records.append(record)
        self.pids |= {f"server {number}": server.pid, f"worker {number}": worker}
        self.operators.append(operator)

    async def _measure(self) -> None:
        """Fill the paused queues through all servers, then have all workers empty them."""
        name = f"{self.store}, {len(self.servers)} server{'s' if len(self.servers) > 1 else ''}"
        self.progress.say(f"scale: {name}: {self.sizes.tasks:,} tasks")
        meter, began = CpuMeter(self.pids), time.perf_counter()
        async with trio.open_nursery() as nursery:
            for i, queue in enumerate(self.queues):
                nursery.start_soon(self._enqueue, self.clients[i % len(self.clients)], queue)
        filled, cpu_filled = time.perf_counter(), meter.used()
        for queue in self.queues:
            await self.operators[0].request("resume", {"queue": queue})
        await wait_until(name, self.sizes.seconds, self._part_done)
        emptied, cpu_all = time.perf_counter(), meter.used()
        for queue in self.queues:
            await self.operators[0].request("pause", {"queue": queue})
        cpu = {process: used - cpu_filled[process] for process, used in cpu_all.items()}
        self.rows.append(
            {
                "name": name,
                "servers": len(self.servers),
                "nodes": len(self.nodes),
                "tasks": self.sizes.tasks,
                "enqueue_rate": round(self.sizes.tasks / (filled - began)),
                "drain_rate": round(self.sizes.tasks / (emptied - filled)),
                "enqueue_cpu_s_per_1000": self._per_1000(cpu_filled),
                "drain_cpu_s_per_1000": self._per_1000(cpu),
            }
        )

    def _per_1000(self, cpu: Mapping[str, float]) -> dict[str, float]:
        return {process: round(used / self.sizes.tasks * 1000, 4) for process, used in cpu.items()}

    async def _enqueue(self, client: fairq.Client, queue: str) -> None:
        left = self.sizes.tasks // QUEUES
        while left:
            tasks = await client.enqueue_many(queue, [PAYLOAD] * min(CHUNK, left))
            left -= len(tasks)
            self.ids += [task.id for task in tasks]

    async def _part_done(self) -> float:
        rows = (await self.operators[0].request("queues"))["queues"]
        return sum(row["done"] for row in rows) / len(self.ids)


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report."""
    sizes = QUICK if quick else Sizes()
    rows: list[dict[str, Any]] = []
    verdicts: dict[str, Verdict] = {}
    for store in sizes.servers:
        progress.say(f"scale: {store}: starting")
        place = directory / "scale" / store.replace(" ", "-")
        number = 3 if store == THREE else 1
        async with running_nodes(place, number, fsync=fsync, is_cluster=store != ALONE) as nodes:
            scenario = Scale(store, nodes, place, sizes, progress)
            verdicts[f"scale, {store}"] = await scenario.run()
        rows += scenario.rows
    return {
        "payload_bytes": PAYLOAD_BYTES,
        "queues": QUEUES,
        "cores": len(os.sched_getaffinity(0)),
        "rows": rows,
        "verdicts": verdicts,
    }


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    first = part["rows"][0]
    rows = []
    for row in part["rows"]:
        cpu = row["drain_cpu_s_per_1000"]
        rates = [row["enqueue_rate"], row["drain_rate"], round(row["drain_rate"] / first["drain_rate"], 2)]
        kinds = [_of_each(cpu, kind) for kind in ("server", "node", "worker", "client")]
        rows.append([row["name"], *rates, *kinds, round(sum(cpu.values()), 4)])
    what = f"{first['tasks']:,} tasks each, {part['queues']} queues, {part['payload_bytes']} B payloads"
    title = f"scale ({what}; CPU of the drain in seconds per 1,000 tasks)"
    headings = ["", "in/s", "drained/s", "of first", "servers", "store", "workers", "client", "all"]
    note = f"All processes share {part['cores']} cores: servers and nodes add no CPU here."
    return [Table(title, headings, rows, note)]


def _of_each(cpu: Mapping[str, float], kind: str) -> str:
    """Show the CPU of each process of a kind."""
    return " + ".join(f"{used:.3f}" for process, used in cpu.items() if process.startswith(kind))
