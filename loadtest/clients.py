"""Clients: how fast each way into the service is, and each loop of a worker, in rounds that alternate."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import trio
from attrs import define, field, frozen

import fairq
from loadtest.caller import KINDS
from loadtest.figures import Verdict, judge, percentile, read_records
from loadtest.processes import CpuMeter, RunFailed, Server, running_module, running_server, running_worker
from loadtest.report import Progress, Table
from loadtest.throughput import PAYLOAD
from loadtest.watch import wait_attached, wait_done

CREDIT, IDLE_RATE = 100, 20.0
LOOPS = ("trio", "asyncio")  # of workers
FIRST = "trio"  # the others are compared with it


@frozen
class Sizes:
    """How many tasks a round has, by one caller and by 100, and at IDLE_RATE; how many rounds there are."""

    one: int = 1_000
    hundred: int = 10_000
    idle: int = 100
    drained: int = 20_000
    rounds: int = 3
    limit: float = 120.0


QUICK = Sizes(one=30, hundred=200, idle=5, drained=500, rounds=1, limit=30.0)


@define(eq=False)
class Caller:
    """A running program that enqueues."""

    kind: str
    process: trio.Process
    _buffer: bytearray = field(factory=bytearray, init=False)

    async def line(self) -> bytes:
        """Read a line of its output. Raises: RunFailed if it has ended."""
        assert self.process.stdout
        while (end := self._buffer.find(b"\n")) < 0:
            data = await self.process.stdout.receive_some()
            if not data:
                raise RunFailed(f"the {self.kind} caller ended")
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    async def do(self, **job: float) -> dict[str, Any]:
        """Have it do a job; returns what it tells."""
        assert self.process.stdin
        await self.process.stdin.send_all(orjson.dumps(job) + b"\n")
        answer: dict[str, Any] = orjson.loads(await self.line())
        return answer


@asynccontextmanager
async def running_caller(server: Server, kind: str, queue: str) -> AsyncIterator[Caller]:
    """Run a caller while the context lasts."""
    async with running_module("caller", kind, server.http_url if kind == "HTTP" else server.url, queue) as process:
        caller = Caller(kind, process)
        assert await caller.line() == b"ready"
        yield caller


@define(eq=False)
class Clients:
    """One run of the scenario, against one server."""

    server: Server
    operator: fairq.Client
    sizes: Sizes
    progress: Progress
    verdicts: dict[str, Verdict] = field(factory=dict, init=False)
    rows: list[dict[str, Any]] = field(factory=list, init=False)

    async def measure(self, name: str, **job: float) -> None:
        """Have callers of each kind do the same job, in turns, while a worker does the tasks; notes a row for each."""
        queue = name.replace(" ", "-").replace(",", "")
        record = self.server.directory / f"{queue}.record"
        took, rates, cpus = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list), dict[str, float]()
        ids: list[str] = []
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(running_worker(self.server, [queue], CREDIT, record))
            await wait_attached(self.operator, queue)
            callers = [await stack.enter_async_context(running_caller(self.server, kind, queue)) for kind in KINDS]
            for number in range(self.sizes.rounds):
                self.progress.say(f"clients: {name}, round {number + 1}")
                for caller in callers if number % 2 else reversed(callers):
                    note = await caller.do(**job)
                    ids += note["ids"]
                    took[caller.kind] += note["took_ms"]
                    rates[caller.kind].append(len(note["ids"]) / note["seconds"])
                    cpus[caller.kind] = cpus.get(caller.kind, 0.0) + note["cpu_s"]
            await wait_done(self.operator, queue, len(ids), f"clients, {name}", self.sizes.limit)
        self.verdicts[f"clients, {name}"] = judge(ids, [entry.id for entry in read_records(record)])
        for kind in KINDS:
            rate = percentile(rates[kind], 50)
            self.rows.append(
                {
                    "name": name, "kind": kind, "tasks": len(took[kind]), "rate": round(rate),
                    "of_first": round(rate / percentile(rates[FIRST], 50), 3),
                    "p50": round(percentile(took[kind], 50), 2), "p99": round(percentile(took[kind], 99), 2),
                    "cpu_us": round(cpus[kind] / len(took[kind]) * 1_000_000),
                }
            )  # fmt: skip

    async def drain(self, client: fairq.Client) -> None:
        """Have a worker of each loop do a full queue, in turns; notes a row for each."""
        rates, cpus = defaultdict[str, list[float]](list), defaultdict[str, float](float)
        count = self.sizes.drained
        for number in range(self.sizes.rounds):
            for loop in LOOPS if number % 2 else reversed(LOOPS):
                queue = f"drain-{loop}-{number}"
                self.progress.say(f"clients: {queue}")
                record = self.server.directory / f"{queue}.record"
                await self.operator.request("set_paused", {"paused": True, "queue": queue})
                ids = [task.id for task in await client.enqueue_many(queue, [PAYLOAD] * count)]
                async with running_worker(self.server, [queue], CREDIT, record, loop=loop) as worker:
                    await wait_attached(self.operator, queue)
                    began, meter = time.perf_counter(), CpuMeter({"worker": worker})
                    await self.operator.request("set_paused", {"paused": False, "queue": queue})
                    await wait_done(self.operator, queue, count, queue, self.sizes.limit)
                    rates[loop].append(count / (time.perf_counter() - began))
                    cpus[loop] += meter.used()["worker"]
                self.verdicts[f"clients, {queue}"] = judge(ids, [entry.id for entry in read_records(record)])
        for loop in LOOPS:
            rate, done = percentile(rates[loop], 50), count * self.sizes.rounds
            self.rows.append(
                {
                    "name": "worker drains", "kind": loop, "tasks": done, "rate": round(rate),
                    "of_first": round(rate / percentile(rates[FIRST], 50), 3), "p50": "", "p99": "",
                    "cpu_us": round(cpus[loop] / done * 1_000_000),
                }
            )  # fmt: skip


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report."""
    sizes = QUICK if quick else Sizes()
    progress.say("clients: starting a server")
    async with (
        running_server(directory / "clients", fsync=fsync) as server,
        fairq.open_client(server.url, token="dev-operator") as operator,
    ):
        scenario = Clients(server, operator, sizes, progress)
        await scenario.measure("one caller", tasks=sizes.one)
        await scenario.measure("100 callers", tasks=sizes.hundred, callers=100)
        await scenario.measure("idle, 20 a second", tasks=sizes.idle, rate=IDLE_RATE)
        async with fairq.open_client(server.url, token="dev-tenant:acme") as client:
            await scenario.drain(client)
    return {"rows": scenario.rows, "verdicts": scenario.verdicts}


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    title = "clients: enqueue, each call waited for; each kind in a process of its own, in turns (rate: median round)"
    names = ("name", "kind", "tasks", "rate", "of_first", "p50", "p99", "cpu_us")
    headings = ["", "", "tasks", "tasks/s", f"of {FIRST}", "p50 ms", "p99 ms", "client CPU us/task"]
    return [Table(title, headings, [[row[name] for name in names] for row in part["rows"]])]
