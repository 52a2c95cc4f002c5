"""Abuse: what one connection that does its worst does to another tenant's latency, in pairs of rounds without and with.

A victim has RATE tasks a second enqueued over one connection and run by a worker of its own that does nothing.
An abuser (abusers.py) of another tenant, on queues of its own, is a process beside them; in the last row it is another
tenant of the victim's own producer, on the same connection.
"""

from __future__ import annotations

import itertools
import json
import math
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import trio
from attrs import define, field, frozen

import fairq
from fairq.client.channel import Target
from fairq.client.connect import connect
from fairq.client.transport import ClientTransport
from fairq.errors import FairqError
from fairq.wire.connection_errors import Disconnected
from loadtest.abusers import ABUSERS
from loadtest.abusers import QUEUE as ABUSED
from loadtest.figures import Verdict, judge, percentile
from loadtest.processes import CpuMeter, RunFailed, Server, resident_bytes, running_abuser, running_server
from loadtest.report import Progress, Table
from loadtest.throughput import PAYLOAD
from loadtest.watch import wait_attached

RATE, DELAYED_RATE, NEWCOMER_RATE = 40.0, 20.0, 5.0
QUEUE, CREDIT = "victim", 20
FACTOR, FLOOR_MS = 3.0, 60.0
DELAY_S = 1.0
WARM_TASKS = 40
ABUSED_PART = 0.9  # of a round: what the end of an abuser's connection does to others belongs to it
ABUSER_S = 90.0  # beyond its round, until it has ended
VICTIM = "victim"
TOKEN = f"dev-tenant:{VICTIM}"
SAME_PRODUCER = "tenant of the same producer"
FLOOD_TASKS, FLOOD_QUEUED, FLOOD_WAITS = 500, 20_000, 1_500  # in a call; that may be queued; results that are awaited
DELAYED = {"pending waits", "queue names"}  # rows in which the victim has delayed tasks too
NEWCOMERS = {"silent connections", "refused handshakes"}  # and in which somebody else connects
WORKERS = {"slow worker": 8}  # how many tasks the abuser itself is to acknowledge

FLOODER, WAITER = "abuser", "waiter"
ROWS = (*ABUSERS, SAME_PRODUCER)

Rounds = dict[str, list[float]]  # measurements of a round: name of the figure -> ms of each task


@frozen
class Sizes:
    """How long a round lasts, how many pairs a row has, and how long the last tasks may take."""

    seconds: float = 10.0
    pairs: int = 3
    limit: float = 60.0


QUICK = Sizes(seconds=0.5, pairs=1, limit=30.0)


def of_bound(undisturbed_p99: float, abused_p99: float) -> float:
    """Return a p99 as a part of what it may be: FACTOR times the undisturbed one, or FLOOR_MS. Infinite for nothing."""
    if math.isnan(abused_p99) or math.isnan(undisturbed_p99):
        return math.inf
    return abused_p99 / max(FACTOR * undisturbed_p99, FLOOR_MS)


def summary(undisturbed: Sequence[Sequence[float]], abused: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Sum up a figure over pairs of rounds: the medians of p50 and p99, and of the parts of the bound."""
    sides = {"undisturbed": undisturbed, "abused": abused}
    found: dict[str, Any] = {
        side: {f"p{p}": round(median(percentile(round_, p) for round_ in rounds), 2) for p in (50, 99)}
        for side, rounds in sides.items()
    }
    parts = [of_bound(percentile(u, 99), percentile(a, 99)) for u, a in zip(undisturbed, abused, strict=True)]
    return {**found, "of_bound": round(median(parts), 3)}


@frozen
class Pair:
    """A round without and a round with an abuser: the measurements, the effect and the cost."""

    undisturbed: Rounds
    abused: Rounds
    did: Counter[str] = field(factory=Counter)
    grown_bytes: int = 0
    cores: Mapping[str, float] = field(factory=dict)  # that server and store were busy on, beside the abuser


def row_of(name: str, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Make the report's row of an abuser: within if all its figures are, and if it got all the answers due to it."""
    did = sum((pair.did for pair in pairs), Counter[str]())
    figures = {
        figure: summary([pair.undisturbed[figure] for pair in pairs], [pair.abused[figure] for pair in pairs])
        for figure in pairs[0].undisturbed
    }
    is_served = did["acknowledged"] >= WORKERS.get(name, 0) * len(pairs)
    return {
        "name": name, "figures": figures, "did": dict(did), "grown_bytes": max(pair.grown_bytes for pair in pairs),
        "cores": {process: round(median(pair.cores[process] for pair in pairs), 2) for process in pairs[0].cores},
        "is_within": is_served and all(figure["of_bound"] <= 1 for figure in figures.values()),
    }  # fmt: skip


@define(eq=False)
class Victim:
    """A tenant with a connection, and a worker in this process; `measured` is of the present round."""

    server: Server
    client: fairq.Client
    producer: fairq.Client | None = None  # on which it is one tenant of several, if `is_shared`
    is_shared: bool = field(default=False, init=False)
    measured: Rounds = field(factory=dict, init=False)
    sent: set[str] = field(factory=set, init=False)  # and acknowledged
    undecided: set[str] = field(factory=set, init=False)
    started: list[str] = field(factory=list, init=False)
    _called: dict[str, float] = field(factory=dict, init=False)  # id -> when, of tasks that have not started
    _emptied: trio.Event = field(factory=trio.Event, init=False)

    async def start(self, task: fairq.Task) -> None:
        """Take note of a task's start: the handler."""
        self.started.append(task.id)
        called = self._called.pop(task.id, None)
        if called is not None and task.start_at_ms:
            self.measured["late"].append(time.time() * 1000 - task.start_at_ms)
        elif called is not None:
            self.measured["start"].append(_ms_since(called))
        if not self._called:
            self._emptied.set()

    async def enqueue(self, **options: Any) -> None:
        """Enqueue a task; one that is refused or not decided in time counts as never started."""
        id = f"t{len(self.sent) + len(self.undecided) + len(self._called)}-{time.perf_counter_ns()}"
        called = self._called[id] = time.perf_counter()
        try:
            if self.is_shared and self.producer:
                await self.producer.enqueue(QUEUE, PAYLOAD, id=id, tenant=VICTIM, **options)
            else:
                await self.client.enqueue(QUEUE, PAYLOAD, id=id, **options)
        except FairqError:
            self.undecided.add(id)
            self._called.pop(id, None)
            self.measured["late" if options else "start"].append(math.inf)
        else:
            self.sent.add(id)
            self.measured["reply"].append(_ms_since(called))

    async def connect(self) -> None:
        """Connect somebody else, and read the first answer."""
        began = time.perf_counter()
        try:
            opened = await connect(Target.parse(self.server.url), "dev-tenant:newcomer")
            with closing(ClientTransport.of(opened)) as transport:
                await transport.receive()
                self.measured["newcomer"].append(_ms_since(began))
        except (FairqError, Disconnected):
            self.measured["newcomer"].append(math.inf)

    async def measure(self, row: str, sizes: Sizes) -> Rounds:
        """Send for a round, and wait until all that was sent has started."""
        self.measured = {"start": [], "reply": []}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_at_rate, RATE, sizes.seconds, self.enqueue)
            if row in DELAYED:
                self.measured["late"] = []
                nursery.start_soon(_at_rate, DELAYED_RATE, sizes.seconds, self._enqueue_delayed)
            if row in NEWCOMERS:
                self.measured["newcomer"] = []
                nursery.start_soon(_at_rate, NEWCOMER_RATE, sizes.seconds, self.connect)
        await self._until_started(sizes.limit)
        return self.measured

    async def measure_while(self, work: Callable[[], Awaitable[object]], rate: float, limit: float) -> Rounds:
        """Send at a rate until some work is done, and wait until all that was sent has started."""
        self.measured, over = {"start": [], "reply": []}, trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_at_rate_until, over, rate, self.enqueue)
            await work()
            over.set()
        await self._until_started(limit)
        return self.measured

    async def warm_up(self, limit: float) -> None:
        """Have some tasks run that do not count."""
        self.measured = {"start": [], "reply": []}
        for _ in range(WARM_TASKS):
            await self.enqueue()
        await self._until_started(limit)

    async def _enqueue_delayed(self) -> None:
        await self.enqueue(delay=DELAY_S)

    async def _until_started(self, limit: float) -> None:
        with trio.move_on_after(limit):
            while self._called:
                self._emptied = trio.Event()
                await self._emptied.wait()
        self._called.clear()  # what is lost is named by the verdict

    def verdict(self) -> Verdict:
        """Say what became of the tasks; failed enqueues leave theirs unknown."""
        return judge(self.sent, [id for id in self.started if id not in self.undecided])


def _ms_since(moment: float) -> float:
    return (time.perf_counter() - moment) * 1000


async def _at_rate(rate: float, seconds: float, act: Callable[[], Awaitable[None]]) -> None:
    """Act at fixed moments, whether earlier actions have ended or not."""
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for n in range(max(1, round(rate * seconds))):
            await trio.sleep_until(began + n / rate)
            nursery.start_soon(act)


async def _at_rate_until(over: trio.Event, rate: float, act: Callable[[], Awaitable[None]]) -> None:
    """Act at fixed moments until it is over, at least once."""
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for n in itertools.count():
            await trio.sleep_until(began + n / rate)
            if n and over.is_set():
                return
            nursery.start_soon(act)


@asynccontextmanager
async def running_victim(directory: Path, fsync: str, limit: float) -> AsyncIterator[Victim]:
    """Run a server, a worker and a client of a tenant while the context lasts."""
    async with (
        running_server(directory, fsync=fsync) as server,
        fairq.open_client(server.url, token=TOKEN) as client,
        fairq.open_client(server.url, token="dev-producer") as producer,
        fairq.open_client(server.url, token="dev-operator") as operator,
        trio.open_nursery() as nursery,
    ):
        victim = Victim(server, client, producer)
        worker = fairq.Worker(server.url, token="dev-worker", name="victim", concurrency=CREDIT)
        worker.task(QUEUE)(victim.start)
        await nursery.start(worker.run)
        await wait_attached(operator, QUEUE)
        await victim.warm_up(limit)
        yield victim
        worker.stop()
        nursery.cancel_scope.cancel()


@define(eq=False)
class Abuse:
    """One run of the scenario."""

    directory: Path
    fsync: str
    sizes: Sizes
    progress: Progress
    rows: list[dict[str, Any]] = field(factory=list, init=False)
    verdicts: dict[str, Verdict] = field(factory=dict, init=False)

    async def run(self) -> None:
        """Measure all rows, each pair with a server of its own."""
        for name in ROWS:
            pairs = []
            for n in range(self.sizes.pairs):
                async with self._victim(f"{name}, pair {n + 1}") as victim:
                    pairs.append(await self.pair(victim, name))
            self.rows.append(row_of(name, pairs))

    async def run_on_one_server(self) -> None:
        """Measure all rows on one server: quicker, and what a row leaves behind is there in the next ones."""
        async with self._victim("all") as victim:
            for name in ROWS:
                self.rows.append(row_of(name, [await self.pair(victim, name)]))

    async def pair(self, victim: Victim, name: str) -> Pair:
        """Measure a round without and a round with an abuser. Raises: RunFailed if that does not run."""
        self.progress.say(f"abuse: {name}")
        victim.is_shared = name == SAME_PRODUCER
        server, undisturbed = victim.server, await victim.measure(name, self.sizes)
        sizes = [resident_bytes(server.pid)]
        async with _abuser(victim, name, ABUSED_PART * self.sizes.seconds) as done_by_it:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_watch, server.pid, sizes)
                began, meter = time.perf_counter(), CpuMeter({"server": server.pid, "store": server.store_pid})
                abused = await victim.measure(name, self.sizes)
                cores = {process: cpu / (time.perf_counter() - began) for process, cpu in meter.used().items()}
                nursery.cancel_scope.cancel()
            did = await done_by_it()
        if not did:
            raise RunFailed(f"the abuser {name!r} failed")
        return Pair(undisturbed, abused, did, max(sizes) - sizes[0], cores)

    @asynccontextmanager
    async def _victim(self, name: str) -> AsyncIterator[Victim]:
        directory = self.directory / f"abuse-{len(self.verdicts)}"
        async with running_victim(directory, self.fsync, self.sizes.limit) as victim:
            yield victim
        self.verdicts[f"abuse, {name}"] = victim.verdict()
        await trio.to_thread.run_sync(shutil.rmtree, directory)  # an abuser may have had gigabytes written


@asynccontextmanager
async def _abuser(victim: Victim, name: str, seconds: float) -> AsyncIterator[Callable[[], Awaitable[Counter[str]]]]:
    """Run an abuser while the context lasts; yields how to ask what it did. Raises: RunFailed if it does not start."""
    if name == SAME_PRODUCER:
        async with _flooding(victim, seconds) as counts:
            yield counts
        return
    async with running_abuser(victim.server, name, seconds) as process:
        output = process.stdout
        assert output is not None
        if not await _line(output):
            raise RunFailed(f"the abuser {name!r} did not start")
        yield partial(_counts_of, output)


@asynccontextmanager
async def _flooding(victim: Victim, seconds: float) -> AsyncIterator[Callable[[], Awaitable[Counter[str]]]]:
    """Have one other tenant of the producer await many results, and one enqueue all that it may, and then more."""
    did, over, client = Counter[str](), trio.Event(), victim.producer
    assert client is not None
    async with fairq.open_client(victim.server.url, token="dev-operator") as operator:
        limits = {"queue": ABUSED, "tenant": FLOODER, "limits": {"queued": FLOOD_QUEUED}}
        await operator.request("set_limits", limits)
    # The flooder may have no room left by a round before.
    waited = await client.enqueue_many(ABUSED, range(FLOOD_WAITS), tenant=WAITER, delay=3600, result_ttl=60)

    async def flood() -> None:
        while True:
            try:
                await client.enqueue_many(ABUSED, range(FLOOD_TASKS), tenant=FLOODER)
                did["tasks"] += FLOOD_TASKS
            except fairq.QuotaExceeded:
                did["refusals"] += 1

    async def act() -> None:
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as inner:
                for task in waited:
                    inner.start_soon(partial(task.result))
                did["waits"] += len(waited)
                for _ in range(4):
                    inner.start_soon(flood)
        over.set()

    async def counts() -> Counter[str]:
        await over.wait()
        return did

    async with trio.open_nursery() as nursery:
        nursery.start_soon(act)
        yield counts
        nursery.cancel_scope.cancel()


async def _line(stream: trio.abc.ReceiveStream) -> bytes:
    """Read a line, or nothing when the stream ends before."""
    line = b""
    while not line.endswith(b"\n"):
        if not (more := await stream.receive_some(1)):
            return b""
        line += more
    return line


async def _counts_of(stream: trio.abc.ReceiveStream) -> Counter[str]:
    """Read what an abuser did, once it has ended; nothing if it does not end in time."""
    with trio.move_on_after(ABUSER_S):
        return Counter(json.loads(await _line(stream) or b"{}"))
    return Counter()


async def _watch(pid: int, sizes: list[int]) -> None:
    while True:
        sizes.append(resident_bytes(pid))
        await trio.sleep(0.1)


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report."""
    scenario = Abuse(directory, fsync, QUICK if quick else Sizes(), progress)
    await (scenario.run_on_one_server() if quick else scenario.run())
    sizes = scenario.sizes
    return {
        "seconds": sizes.seconds, "pairs": sizes.pairs, "rate": RATE,
        "rows": scenario.rows, "verdicts": scenario.verdicts,
    }  # fmt: skip


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    lines = [
        [
            row["name"], figure, *(found[side][p] for side in ("undisturbed", "abused") for p in ("p50", "p99")),
            found["of_bound"], "yes" if found["of_bound"] <= 1 else "NO",
        ]
        for row in part["rows"]
        for figure, found in row["figures"].items()
    ]  # fmt: skip
    title = (
        f"another tenant's latency in ms, {part['rate']:g} tasks/s, beside one connection that does its worst:"
        f" {part['pairs']} pairs of rounds of {part['seconds']:g} s without and with it, their medians"
    )
    note = f"of bound: p99 as a part of {FACTOR:g} times the undisturbed p99 or {FLOOR_MS:g} ms, whichever is more"
    deeds = [
        [
            row["name"], ", ".join(f"{value:,} {what}" for what, value in row["did"].items() if value),
            *(f"{cores:.0%}" for cores in row["cores"].values()), row["grown_bytes"] / 2**20,
            "yes" if row["is_within"] else "NO",
        ]
        for row in part["rows"]
    ]  # fmt: skip
    return [
        Table(title, ["", "figure", "p50", "p99", "abused p50", "abused p99", "of bound", "within"], lines, note),
        Table(
            "what the abusers did in all their rounds",
            ["", "did", "server CPU", "store CPU", "growth MiB", "within"],
            deeds,
        ),
    ]
