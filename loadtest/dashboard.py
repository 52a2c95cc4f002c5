"""Dashboard: how fast its pages are with 100,000 tenants in a queue, and what tenants feel of somebody who opens them.

The crowd's queue has a task of each tenant, which a worker does all the while, and delayed tasks, dead letters,
batches and schedules. A reader (reader.py) opens every page, stream and list, one after the other. Then a quiet tenant
with a queue and a worker of its own is measured in pairs of rounds: without and with a reader that opens pages all the
time, then without and with a tab open on a dead letter of 1 MB.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen

import fairq
from fairq.client.operator import OperatorClient, open_operator
from loadtest import abuse
from loadtest.abuse import FACTOR, FLOOR_MS, RATE, Victim, running_victim, summary
from loadtest.crowd import connected_crowd
from loadtest.figures import Verdict, judge, percentile, read_records
from loadtest.processes import CpuMeter, RunFailed, running_module, running_worker
from loadtest.report import Progress, Table
from loadtest.watch import queue_state, wait_until

QUEUE = "sleep-crowd"
CREDIT, TASK_MS = 10, 100
ONE_TASK = "t"
BOUND_MS = 200.0  # the p95 that a page may have
CHUNK = 10_000
HISTORY_S = 12.0  # until the history has its first interval
READ_S = 600.0
BIG_TENANT = "big"
BIG_PAYLOAD = {"fails": True, "text": "x" * 1_000_000}
TAB = {"a dead letter of 1 MB": f"/queues/{QUEUE}/tasks/{BIG_TENANT}/dead"}
PAGES_BESIDE, TAB_BESIDE = "somebody who opens pages all the time", "one tab on a dead letter of 1 MB"


@frozen
class Sizes:
    """How much the crowd's queue has, how often each place is opened, and how long the quiet tenant is measured."""

    tenants: int = 100_000
    delayed: int = 5_000
    dead: int = 2_000
    batches: int = 500
    schedules: int = 500
    workers: int = 100
    rounds: int = 30
    pairs: int = 3
    seconds: float = 10.0
    limit: float = 120.0


QUICK = Sizes(
    tenants=400, delayed=20, dead=10, batches=5, schedules=5, workers=2, rounds=2, pairs=1, seconds=0.5, limit=60.0
)


def tenant(n: int) -> str:
    """Name a tenant, as a product may that has numbers for its customers."""
    return f"customer-{n:06}"


def places(sizes: Sizes) -> dict[str, str]:
    """Return all that the reader opens, by what it is called in the report.

    Those with a round's number (`{n}`) would else be answered with the answer of a moment ago.
    """
    of, last = f"queue={QUEUE}", tenant(sizes.tenants - 1)
    queue, api = f"/queues/{QUEUE}", f"/api/queues/{QUEUE}"
    pages = {
        "Fairness": f"/?{of}",
        "Fairness, the last hour": f"/?{of}&period=1h",
        "Fairness, two weeks": f"/?{of}&period=14d",
        "Queues": "/queues",
        "a queue": queue,
        "Tenants": f"/tenants?{of}",
        "Tenants, by weight": f"/tenants?{of}&sort=weight",
        "Tenants whose name begins so": f"/tenants?{of}&text={last[:-2]}{{n}}",
        "Tenants with a text in the name": f"/tenants?{of}&text={last[-3:]}{{n}}",
        "Tenants that all match": f"/tenants?{of}&text=customer",
        "Tenants, where no name matches": f"/tenants?{of}&text=none{{n}}",
        "a tenant": f"{queue}/tenants/{last}",
        "a task that is delayed": f"{queue}/tasks/{tenant(0)}/delayed",
        "a dead task": f"{queue}/tasks/{tenant(0)}/dead",
        "Delayed": f"/delayed?{of}",
        "Schedules": f"/schedules?{of}",
        "Batches": f"/batches?{of}",
        "Workers": "/workers",
        "a worker": "/workers/loadtest",
        "Dead letters": f"/dead?{of}",
        "Dead letters with an error": f"/dead?{of}&error=fails",
        "Dead letters of a tenant": f"/dead?{of}&tenant={tenant(0)}",
        "Simulate": f"/simulate?{of}",  # the form; its result comes later, from a process of its own
        "Audit": "/audit",
        "Tokens": "/tokens",
        "System": "/system",
        "search: a tenant": f"/search?{of}&text={last[:-2]}{{n}}",
        "search: a task": f"/search?{of}&text={tenant(0)}/delayed",
        "search: nothing": f"/search?{of}&text=nothing{{n}}",
    }
    streams = {
        "stream of Fairness": f"/live/?{of}&n={{n}}",
        "stream of Queues": "/live/queues?n={n}",
        "stream of a queue": f"/live{queue}?n={{n}}",
        "stream of Tenants": f"/live/tenants?{of}&n={{n}}",
        "stream of Tenants with a text": f"/live/tenants?{of}&text=988{{n}}",
        "stream of a tenant": f"/live{queue}/tenants/{last}?n={{n}}",
        "stream of a task": f"/live{queue}/tasks/{tenant(0)}/delayed?n={{n}}",
        "stream of Delayed": f"/live/delayed?{of}&n={{n}}",
        "stream of Schedules": f"/live/schedules?{of}&n={{n}}",
        "stream of Batches": f"/live/batches?{of}&n={{n}}",
        "stream of Workers": "/live/workers?n={n}",
        "stream of a worker": "/live/workers/loadtest?n={n}",
        "stream of Audit": "/live/audit?n={n}",
        "stream of System": "/live/system?n={n}",
    }
    lists = {
        path: path
        for path in (
            "/api/queues", api, f"{api}/tenants", f"{api}/tenants/{last}", f"{api}/dead", f"{api}/batches",
            f"{api}/schedules", f"{api}/history?period=1h", "/api/workers", "/api/tokens", "/api/audit", "/metrics",
        )
    }  # fmt: skip
    return pages | streams | lists


@define(eq=False)
class Dashboard:
    """One run of the scenario, against one server."""

    quiet: Victim
    operator: OperatorClient
    sizes: Sizes
    progress: Progress
    ids: list[str] = field(factory=list, init=False)

    async def fill(self) -> None:
        """Give the crowd's queue all but its dead letters."""
        sizes, url = self.sizes, self.quiet.server.url
        async with fairq.open_client(url, token="dev-producer") as client:
            for start in range(0, sizes.tenants, CHUNK):
                self.progress.say(f"dashboard: tenants, {start:,} of {sizes.tenants:,}")
                names = [tenant(n) for n in range(start, min(start + CHUNK, sizes.tenants))]
                await self._enqueue(client, names, ONE_TASK, {"ms": TASK_MS})
            await self._enqueue(
                client, [tenant(n) for n in range(sizes.delayed)], "delayed", {"ms": TASK_MS}, delay=36_000
            )
            for n in range(sizes.batches):
                await client.open_batch(QUEUE, id=f"b{n}", tenant=tenant(n))
        for n in range(sizes.schedules):
            await self.operator.schedule(QUEUE, "nightly", {"ms": 1}, cron="0 3 * * *", tenant=tenant(n))

    async def die(self) -> None:
        """Have tasks die; a worker works."""
        names = [tenant(n) for n in range(self.sizes.dead)]
        async with fairq.open_client(self.quiet.server.url, token="dev-producer") as client:
            await self._enqueue(client, names, "dead", {"fails": True}, max_attempts=1)
            await self._enqueue(client, [BIG_TENANT], "dead", BIG_PAYLOAD, max_attempts=1)

        async def are_dead() -> float:
            return float((await queue_state(self.operator, QUEUE)).get("dead", 0)) / (len(names) + 1)

        await wait_until("the dead letters", self.sizes.limit, are_dead)

    async def _enqueue(self, client: fairq.Client, names: Sequence[str], id: str, payload: Any, **options: Any) -> None:
        tasks = await client.enqueue_many(QUEUE, [payload] * len(names), ids=[id] * len(names), tenant=names, **options)
        if "fails" not in payload:
            self.ids += [task.id for task in tasks]

    async def read(self, places: Mapping[str, str], rounds: int, seconds: float) -> dict[str, list[float]]:
        """Have a reader open places; returns how long each took. Raises: RunFailed."""
        url = self.quiet.server.admin_url
        output, took = b"", dict[str, list[float]]()
        with trio.move_on_after(READ_S):
            async with running_module("reader", url, json.dumps(places), str(rounds), str(seconds)) as process:
                assert process.stdout is not None
                async for data in process.stdout:
                    output += data
                await process.wait()
        if output:
            took = json.loads(output)
        if not took:
            raise RunFailed("the reader of pages did not finish; it said why above")
        return took

    async def pages(self) -> list[dict[str, Any]]:
        """Open each place again and again; returns a row of each."""
        self.progress.say(f"dashboard: opening {len(places(self.sizes))} places {self.sizes.rounds} times")
        found = await self.read(places(self.sizes), self.sizes.rounds, READ_S)
        return [
            {"name": name, **{f"p{p}": round(percentile(took, p), 1) for p in (50, 95)}, "max": round(max(took), 1)}
            for name, took in found.items()
        ]

    async def figures(self) -> dict[str, Any]:
        """Measure the quiet tenant in pairs of rounds, beside pages and beside a tab."""
        beside = {PAGES_BESIDE: (places(self.sizes), 10**9), TAB_BESIDE: (TAB, 0)}
        return {name: await self._beside(name, *reading) for name, reading in beside.items()}

    async def _beside(self, name: str, opened: Mapping[str, str], times: int) -> dict[str, Any]:
        rounds: dict[str, list[abuse.Rounds]] = {"without": [], "with": []}
        cores, took = dict[str, list[float]](), list[int]()
        sizes = abuse.Sizes(self.sizes.seconds, self.sizes.pairs, self.sizes.limit)
        for n in range(self.sizes.pairs):
            self.progress.say(f"dashboard: a quiet tenant beside {name}, pair {n + 1} of {self.sizes.pairs}")
            for side, found in rounds.items():
                began = time.perf_counter()
                meter = CpuMeter({"server": self.quiet.server.pid, "store": self.quiet.server.store_pid})
                if side == "without":
                    found.append(await self.quiet.measure("", sizes))
                else:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._read_along, opened, times, took)
                        found.append(await self.quiet.measure("", sizes))
                for process, cpu in meter.used().items():
                    cores.setdefault(f"{process}, {side}", []).append(cpu / (time.perf_counter() - began))
        return {
            "figures": {
                figure: summary([each[figure] for each in rounds["without"]], [each[figure] for each in rounds["with"]])
                for figure in rounds["without"][0]
            },
            "opened": sum(took),
            "cores": {process: round(sum(used) / len(used), 2) for process, used in cores.items()},
        }

    async def _read_along(self, opened: Mapping[str, str], times: int, took: list[int]) -> None:
        found = await self.read(opened, times, self.sizes.seconds)
        took.append(sum(len(each) for each in found.values()))


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report."""
    sizes = QUICK if quick else Sizes()
    record = directory / "dashboard.record"
    progress.say("dashboard: starting a server")
    async with (
        running_victim(directory / "dashboard", fsync, sizes.limit) as quiet,
        open_operator([quiet.server.url], token="dev-operator") as operator,
        connected_crowd(quiet.server, "workers", sizes.workers, progress, limit=sizes.limit),
    ):
        scenario = Dashboard(quiet, operator, sizes, progress)
        async with running_worker(quiet.server, [QUEUE], CREDIT, record):
            await scenario.die()
            await scenario.fill()
            await trio.sleep(0 if quick else HISTORY_S)
            pages = await scenario.pages()
            beside = await scenario.figures()
        state = await queue_state(operator, QUEUE)
    seen = [f"{entry.tenant}/{entry.id}" for entry in read_records(record)]
    verdicts: dict[str, Verdict] = {
        "dashboard, the quiet tenant": quiet.verdict(),
        "dashboard, the crowd": judge(scenario.ids, seen, left=state["ready"] + state["delayed"]),
    }
    return {
        "tenants": sizes.tenants, "rounds": sizes.rounds, "pages": pages, "rate": RATE, "seconds": sizes.seconds,
        "pairs": sizes.pairs, "beside": beside, "verdicts": verdicts,
    }  # fmt: skip


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    rows = [
        [row["name"], row["p50"], row["p95"], row["max"], "yes" if row["p95"] < BOUND_MS else "NO"]
        for row in part["pages"]
    ]
    tables = [
        Table(
            f"pages of a queue with {part['tenants']:,} tenants, each opened {part['rounds']} times, in ms",
            ["", "p50", "p95", "max", f"p95 under {BOUND_MS:g}"],
            rows,
        )
    ]
    for name, found in part["beside"].items():
        lines = [
            [
                figure, *(row[side][p] for side in ("undisturbed", "abused") for p in ("p50", "p99")),
                row["of_bound"], "yes" if row["of_bound"] <= 1 else "NO",
            ]
            for figure, row in found["figures"].items()
        ]  # fmt: skip
        cores = ", ".join(f"{process} {used:.0%}" for process, used in found["cores"].items())
        tables.append(
            Table(
                f"a quiet tenant's latency in ms, {part['rate']:g} tasks/s, beside {name}: medians of {part['pairs']}"
                f" pairs of rounds of {part['seconds']:g} s without and with",
                ["", "p50", "p99", "with p50", "with p99", "of bound", "within"],
                lines,
                f"{found['opened']:,} opened or streamed; of bound: p99 as a part of {FACTOR:g} times that without or"
                f" {FLOOR_MS:g} ms, whichever is more; of a core: {cores}",
            )
        )
    return tables
