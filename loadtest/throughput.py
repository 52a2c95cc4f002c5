"""Throughput: how many tasks per second go in, come out, and pass through; and what that costs each process."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen

import fairq
from loadtest.baseline import Baseline, Rates
from loadtest.figures import Verdict, judge, read_records
from loadtest.processes import CpuMeter, Server, plain_store, running_server, running_worker
from loadtest.report import Progress, Table
from loadtest.watch import wait_attached, wait_done

PAYLOAD_BYTES = 200
PAYLOAD = {"pad": "x" * (PAYLOAD_BYTES - len('{"pad":""}'))}
CALLERS = 100
TENANTS = 50
CHUNK = 10_000  # tasks in one call of enqueue_many
SHORT_MS = 5
SLOTS = 10  # for tasks of so long


@frozen
class Sizes:
    """How many tasks each measurement takes, and how many seconds it may last."""

    one_by_one: int = 3_000
    concurrent: int = 20_000
    many: int = 50_000
    flow: int = 50_000
    short: int = 10_000
    raw: int = 20_000
    seconds: float = 240.0


QUICK = Sizes(one_by_one=100, concurrent=500, many=2_000, flow=2_000, short=500, raw=1_000, seconds=30.0)


@define(eq=False)
class Queue:
    """A queue of this run, with the ids enqueued into it."""

    name: str
    ids: list[str] = field(factory=list)


@define(eq=False)
class Throughput:
    """One run of the scenario, against one server."""

    server: Server
    operator: fairq.Client
    client: fairq.Client
    baseline: Baseline
    sizes: Sizes
    progress: Progress
    rows: list[dict[str, Any]] = field(factory=list, init=False)
    verdicts: dict[str, Verdict] = field(factory=dict, init=False)
    _raw_before: Rates | None = field(default=None, init=False)

    async def measure(self, name: str, kind: str, count: int, work: Callable[[], Awaitable[None]], **pids: int) -> None:
        """Time some work and note a row, beside rounds of the baseline before and after."""
        self.progress.say(f"{name}: {count:,} tasks")
        before = self._raw_before or await self.baseline.take()
        meter = CpuMeter({"server": self.server.pid, "store": self.server.store_pid, "client": os.getpid(), **pids})
        began = time.perf_counter()
        await work()
        seconds = time.perf_counter() - began
        cpu = {process: round(used / count * 1000, 4) for process, used in meter.used().items()}
        after = self._raw_before = await self.baseline.take()
        raw = (getattr(before, kind) + getattr(after, kind)) / 2
        self.rows.append(
            {
                "name": name,
                "tasks": count,
                "seconds": round(seconds, 3),
                "rate": round(count / seconds),
                "raw_rate": round(raw),
                "of_raw": round(count / seconds / raw, 4),
                "cpu_s_per_1000": cpu,
                "cpu_s_per_1000_total": round(sum(cpu.values()), 4),
            }
        )

    async def make_queue(self, name: str) -> Queue:
        """Make a queue that hands nothing out yet."""
        await self.operator.request("set_paused", {"paused": True, "queue": name})
        return Queue(name)

    async def enqueue_one_by_one(self, queue: Queue, count: int) -> None:
        """A single caller, which waits for each."""
        for _ in range(count):
            queue.ids.append((await self.client.enqueue(queue.name, PAYLOAD)).id)

    async def enqueue_concurrently(self, queue: Queue, count: int) -> None:
        """CALLERS callers; each waits for one request before the next. The SDK sends requests that gather together."""
        left = iter(range(count))

        async def call() -> None:
            for _ in left:
                queue.ids.append((await self.client.enqueue(queue.name, PAYLOAD)).id)

        async with trio.open_nursery() as nursery:
            for _ in range(CALLERS):
                nursery.start_soon(call)

    async def enqueue_many(
        self, queue: Queue, count: int, client: fairq.Client | None = None, payload: Mapping[str, Any] = PAYLOAD
    ) -> None:
        """One caller with batches of CHUNK."""
        for start in range(0, count, CHUNK):
            tasks = await (client or self.client).enqueue_many(queue.name, [payload] * min(CHUNK, count - start))
            queue.ids += [task.id for task in tasks]

    async def enqueue_as_tenants(self, queue: Queue, count: int) -> None:
        """TENANTS tenants, each over a connection of its own; not measured."""
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(fairq.open_client(self.server.url, token=f"dev-tenant:t{i}"))
                for i in range(TENANTS)
            ]
            async with trio.open_nursery() as nursery:
                for client in clients:
                    nursery.start_soon(self.enqueue_many, queue, count // TENANTS, client)

    async def drain(self, queue: Queue, credit: int, label: str = "", prefetch: int = 0) -> None:
        """Have one worker process do all that is in a queue."""

        async def work() -> None:
            await self.operator.request("set_paused", {"paused": False, "queue": queue.name})
            await wait_done(self.operator, queue.name, len(queue.ids), f"drain, credit {credit}", self.sizes.seconds)

        name = f"drain, credit {credit}{label}"
        with self._judged(name, queue) as record:
            async with running_worker(self.server, [queue.name], credit, record, prefetch=prefetch) as worker:
                await wait_attached(self.operator, queue.name)
                await self.measure(name, "drain", len(queue.ids), work, worker=worker)

    async def drain_short(self, prefetch: int) -> None:
        """Have SLOTS slots do tasks of SHORT_MS: without a pause between them they would do SLOTS / SHORT_MS per ms."""
        queue = await self.make_queue(f"sleep-{prefetch}")
        await self.enqueue_many(queue, self.sizes.short, payload={"ms": SHORT_MS})
        await self.drain(queue, SLOTS, f", tasks of {SHORT_MS} ms, prefetch {prefetch}", prefetch)

    async def flow(self, queue: Queue, count: int, credit: int) -> None:
        """Enqueue while a worker process works."""

        async def work() -> None:
            await self.operator.request("set_paused", {"paused": False, "queue": queue.name})
            for start in range(0, count, 1_000):
                tasks = await self.client.enqueue_many(queue.name, [PAYLOAD] * min(1_000, count - start))
                queue.ids += [task.id for task in tasks]
            await wait_done(self.operator, queue.name, count, "flow", self.sizes.seconds)

        name = f"flow, credit {credit}"
        with self._judged(name, queue) as record:
            async with running_worker(self.server, [queue.name], credit, record) as worker:
                await wait_attached(self.operator, queue.name)
                await self.measure(name, "flow", count, work, worker=worker)

    @contextmanager
    def _judged(self, name: str, queue: Queue) -> Iterator[Path]:
        """Give the worker's record file; judges what stands in it when the worker has ended."""
        record = self.server.directory / f"{queue.name}.record"
        yield record
        self.verdicts[name] = judge(queue.ids, [entry.id for entry in read_records(record)])

    async def run(self, *, quick: bool) -> None:
        """Take all measurements; tasks enqueued in one are drained in the next ones, so that every task is judged."""
        sizes = self.sizes
        one, concurrent = await self.make_queue("one"), await self.make_queue("concurrent")
        many, more = await self.make_queue("many"), await self.make_queue("more")
        await self.enqueue_one_by_one(one, 1)  # the connection stands
        await self.measure(
            "enqueue, one caller", "push", sizes.one_by_one, partial(self.enqueue_one_by_one, one, sizes.one_by_one)
        )
        await self.measure(
            f"enqueue, {CALLERS} callers", "push", sizes.concurrent,
            partial(self.enqueue_concurrently, concurrent, sizes.concurrent),
        )  # fmt: skip
        for queue in [many] if quick else [many, more]:
            await self.measure("enqueue_many", "push", sizes.many, partial(self.enqueue_many, queue, sizes.many))
        await self.drain(one, 1)
        await self.drain(concurrent, 10)
        await self.drain(many, 100)
        if not quick:
            mixed = await self.make_queue("mixed")
            await self.enqueue_as_tenants(mixed, sizes.many)
            await self.drain(mixed, 100, f", {TENANTS} tenants")
            await self.drain(more, 500)
        await self.flow(await self.make_queue("flow"), sizes.flow, 100)
        for prefetch in (0, SLOTS):
            await self.drain_short(prefetch)


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report."""
    sizes = QUICK if quick else Sizes()
    progress.say("throughput: starting a server")
    with plain_store(directory / "raw", fsync=fsync) as (socket, raw_pid):
        async with (
            running_server(directory / "throughput", fsync=fsync) as server,
            fairq.open_client(server.url, token="dev-operator") as operator,
            fairq.open_client(server.url, token="dev-tenant:acme") as client,
        ):
            baseline = Baseline(socket, raw_pid, sizes.raw, PAYLOAD_BYTES)
            scenario = Throughput(server, operator, client, baseline, sizes, progress)
            await scenario.run(quick=quick)
    return {
        "payload_bytes": PAYLOAD_BYTES,
        "rows": scenario.rows,
        "raw": baseline.summary(),
        "verdicts": scenario.verdicts,
    }


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    processes = ("server", "store", "client", "worker")
    rows = []
    for row in [*part["rows"], *part["raw"]]:
        cpu = [row["cpu_s_per_1000"].get(name, "") for name in processes]
        ratio = f"{row['of_raw']:.3f}" if "of_raw" in row else f"{row['lowest']:,}-{row['highest']:,}"
        raw = row.get("raw_rate", "")
        rows.append([row["name"], row["tasks"], row["rate"], raw, ratio, *cpu, row["cpu_s_per_1000_total"]])
    title = f"throughput ({part['payload_bytes']} B payloads; CPU in seconds per 1,000 tasks)"
    return [Table(title, ["", "tasks", "tasks/s", "raw/s", "of raw", *processes, "all"], rows)]
