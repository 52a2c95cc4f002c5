"""Scale: one and two servers on one store, and the same on clusters of one and three nodes, with several queues.

Each server has a worker of its own. The queues are chosen so that each node of a cluster has equally many. Then one
server of one and more processes, on a store by itself, with equally many workers and clients in each row. Last one
queue over a cluster of three, with one partition and with twelve (partitions.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
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
from loadtest import partitions
from loadtest.figures import Verdict, judge, read_records
from loadtest.processes import CpuMeter, RunFailed, Server, children, running_server, running_worker
from loadtest.report import Progress, Table
from loadtest.stores import Node, count_errors, running_nodes
from loadtest.throughput import PAYLOAD, PAYLOAD_BYTES
from loadtest.watch import wait_until, wait_workers

QUEUES, THIRDS = 6, 3
CREDIT = 500
CREW = 4  # workers, and clients, of a server of several processes: the kernel gives each to one of them
CHUNK = 5_000  # tasks in one call of enqueue_many
ALONE, ONE, THREE = "a store", "cluster of 1", "cluster of 3"


@frozen
class Sizes:
    """How many tasks and seconds a measurement takes, how many servers on which store, and how many processes."""

    tasks: int = 30_000
    seconds: float = 240.0
    servers: Mapping[str, Sequence[int]] = {ALONE: (1, 2), ONE: (1, 2), THREE: (1, 2)}
    processes: Sequence[int] = (1, 2, 4)
    one_queue: partitions.Sizes = field(factory=partitions.Sizes)


QUICK = Sizes(tasks=1_200, seconds=30.0, servers={THREE: (1, 2)}, processes=(1, 2), one_queue=partitions.QUICK)


def spread_queues() -> list[str]:
    """Choose names of queues, equally many for each third of the slots."""
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
    """Measurements on one store, with one server after the other joining.

    Each server has so many `processes`, and a `crew` of so many workers and clients.
    """

    store: str
    nodes: list[Node]
    directory: Path
    sizes: Sizes
    progress: Progress
    steps: Sequence[int] = (1,)  # how many servers there are in each measurement
    processes: int = 1
    crew: int = 1
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
            for wanted in self.steps:
                for number in range(len(self.servers) + 1, wanted + 1):
                    self.progress.say(f"scale: {self.store}: starting server {number}")
                    await self._add_server(stack, number)
                await self._measure()
            errors = await count_errors(self.nodes)
        if errors.get("CROSSSLOT") or errors.get("MOVED"):
            raise RunFailed(f"{self.store}: calls went to the wrong node: {errors}")
        return judge(self.ids, [entry.id for record in self.records for entry in read_records(record)])

    async def _add_server(self, stack: AsyncExitStack, number: int) -> None:
        """Start a server and its crew."""
        directory, url = self.directory / f"server-{number}", self.nodes[0].address.shown
        settings = {"FAIRQ_PROCESSES": str(self.processes)}
        server = await stack.enter_async_context(running_server(directory, store=url, settings=settings))
        pids = children(server.pid) if self.processes > 1 else [server.pid]
        self.pids |= {f"server {n}": pid for n, pid in enumerate(pids, (number - 1) * self.processes + 1)}
        operator = await stack.enter_async_context(fairq.open_client(server.url, token="dev-operator"))
        for queue in self.queues:
            await operator.request("set_paused", {"paused": True, "queue": queue})
        names = [await self._add_worker(stack, server) for _ in range(self.crew)]
        await wait_workers(operator, names)
        self.servers.append(server)
        self.operators.append(operator)

    async def _add_worker(self, stack: AsyncExitStack, server: Server) -> str:
        """Start a worker, and connect a client; returns the worker's name."""
        number = len(self.records) + 1
        name, token = f"worker-{number}", f"dev-tenant:t{number}"
        record = server.directory / f"{name}.record"
        worker = running_worker(server, self.queues, CREDIT, record, name=name)
        self.pids[f"worker {number}"] = await stack.enter_async_context(worker)
        self.records.append(record)
        self.clients.append(await stack.enter_async_context(fairq.open_client(server.url, token=token)))
        return name

    async def _measure(self) -> None:
        """Fill the paused queues through all servers, then have all workers empty them."""
        name = self._name()
        self.progress.say(f"scale: {name}: {self.sizes.tasks:,} tasks")
        meter, began = CpuMeter(self.pids), time.perf_counter()
        async with trio.open_nursery() as nursery:
            for i, queue in enumerate(self.queues):
                nursery.start_soon(self._enqueue, self.clients[i % len(self.clients)], queue)
        filled, cpu_filled = time.perf_counter(), meter.used()
        for queue in self.queues:
            await self.operators[0].request("set_paused", {"paused": False, "queue": queue})
        await wait_until(name, self.sizes.seconds, self._part_done)
        emptied, cpu_all = time.perf_counter(), meter.used()
        for queue in self.queues:
            await self.operators[0].request("set_paused", {"paused": True, "queue": queue})
        cpu = {process: used - cpu_filled[process] for process, used in cpu_all.items()}
        self.rows.append(
            {
                "name": name,
                "servers": len(self.servers),
                "processes": self.processes,
                "nodes": len(self.nodes),
                "tasks": self.sizes.tasks,
                "enqueue_rate": round(self.sizes.tasks / (filled - began)),
                "drain_rate": round(self.sizes.tasks / (emptied - filled)),
                "enqueue_cpu_s_per_1000": self._per_1000(cpu_filled),
                "drain_cpu_s_per_1000": self._per_1000(cpu),
            }
        )

    def _name(self) -> str:
        """Name the row that is measured now."""
        if self.crew > 1:
            return f"{self.store}, {self.processes} process{'es' if self.processes > 1 else ''}"
        return f"{self.store}, {len(self.servers)} server{'s' if len(self.servers) > 1 else ''}"

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
        return float(sum(row["done"] for row in rows)) / len(self.ids)


async def _measure_on(
    directory: Path, progress: Progress, sizes: Sizes, fsync: str, store: str, **options: Any
) -> tuple[list[dict[str, Any]], Verdict]:
    """Measure on a new store; returns the rows, and what became of the tasks."""
    progress.say(f"scale: {store}: starting")
    number = 3 if store == THREE else 1
    async with running_nodes(directory, number, fsync=fsync, is_cluster=store != ALONE) as nodes:
        scenario = Scale(store, nodes, directory, sizes, progress, **options)
        verdict = await scenario.run()
    return scenario.rows, verdict


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report."""
    sizes, place = QUICK if quick else Sizes(), directory / "scale"
    by_servers: list[dict[str, Any]] = []
    by_processes: list[dict[str, Any]] = []
    verdicts: dict[str, Verdict] = {}
    for store, steps in sizes.servers.items():
        rows, verdicts[f"scale, {store}"] = await _measure_on(
            place / store.replace(" ", "-"), progress, sizes, fsync, store, steps=steps
        )
        by_servers += rows
    for number in sizes.processes:
        rows, verdict = await _measure_on(
            place / f"processes-{number}", progress, sizes, fsync, ALONE, processes=number, crew=CREW
        )
        by_processes += rows
        verdicts[f"scale, {rows[0]['name']}"] = verdict
    one_queue, own = await partitions.measure(place / "one-queue", progress, sizes.one_queue, fsync)
    return {
        "payload_bytes": PAYLOAD_BYTES,
        "queues": QUEUES,
        "cores": len(os.sched_getaffinity(0)),
        "rows": by_servers,
        "crew": CREW,
        "processes": by_processes,
        "one_queue": one_queue,
        "verdicts": verdicts | own,
    }


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    tasks, crew = part["rows"][0]["tasks"], part["crew"]
    what = f"{tasks:,} tasks each, {part['queues']} queues, {part['payload_bytes']} B payloads"
    headings = ["", "in/s", "drained/s", "of first", "servers", "store", "workers", "client", "all"]
    spread = "; ".join(f"{row['name']}: {_of_each(row, 'server')}" for row in part["processes"])
    return [
        Table(
            f"scale ({what}; CPU of the drain in seconds per 1,000 tasks)",
            headings,
            _lines(part["rows"], _of_each),
            f"All processes share {part['cores']} cores: servers and nodes add no CPU here.",
        ),
        Table(
            f"one server of several processes ({what}, {crew} workers, {crew} clients; CPU of all of a kind)",
            headings,
            _lines(part["processes"], _of_all),
            f"CPU of each server process: {spread}",
        ),
        partitions.table(part["one_queue"]),
    ]


def _lines(rows: Sequence[Mapping[str, Any]], show: Callable[[Mapping[str, Any], str], str]) -> list[list[Any]]:
    """Make the lines of a table; `show` shows the CPU of a kind of process."""
    first = rows[0]["drain_rate"]
    return [
        [
            row["name"], row["enqueue_rate"], row["drain_rate"], round(row["drain_rate"] / first, 2),
            *(show(row, kind) for kind in ("server", "node", "worker", "client")),
            round(sum(row["drain_cpu_s_per_1000"].values()), 4),
        ]
        for row in rows
    ]  # fmt: skip


def _of_kind(row: Mapping[str, Any], kind: str) -> list[float]:
    """Return the CPU of each process of a kind."""
    return [used for process, used in row["drain_cpu_s_per_1000"].items() if process.startswith(kind)]


def _of_each(row: Mapping[str, Any], kind: str) -> str:
    """Show the CPU of each process of a kind."""
    return " + ".join(f"{used:.3f}" for used in _of_kind(row, kind))


def _of_all(row: Mapping[str, Any], kind: str) -> str:
    """Show the CPU of all processes of a kind together."""
    return f"{sum(_of_kind(row, kind)):.3f}"
