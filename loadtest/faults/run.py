"""One run of `faults`: traffic, one fault after the other by a seed, then peace, and the history.

The next fault begins when a task that was enqueued behind the last one is done, and all servers serve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

import trio
from attrs import define, field, frozen

import fairq
from fairq.errors import FairqError
from loadtest.faults.app import QUEUE
from loadtest.faults.clustered import Clustered, Partitioned
from loadtest.faults.deeds import Deed
from loadtest.faults.edges import kills
from loadtest.faults.history import Dead, History, Ran
from loadtest.faults.http_worker import LEASE_MS, HttpWorker
from loadtest.faults.http_worker import QUEUE as HTTP_QUEUE
from loadtest.faults.stores import Clock, Disk, Embedded, Rolling, Single, Stores
from loadtest.faults.traffic import Traffic
from loadtest.faults.watched import Watched, WatchedTwice
from loadtest.faults.world import SERVERS, WORKERS, World
from loadtest.report import Progress
from loadtest.watch import queue_state


class Scenario(NamedTuple):
    """How the store is set up, and which faults are done."""

    stores: type[Stores]
    deeds: Callable[[World], dict[str, Deed]] = World.deeds


SCENARIOS: Mapping[str, Scenario] = {
    "single": Scenario(Single),
    "embedded": Scenario(Embedded),
    "sentinel": Scenario(Watched),
    "sentinel-2": Scenario(WatchedTwice),
    "cluster": Scenario(Clustered),
    "partitions": Scenario(Partitioned),
    "rolling": Scenario(Rolling),
    "disk": Scenario(Disk),
    "clock": Scenario(Clock),
    "edges": Scenario(Rolling, kills),
}


@frozen
class Sizes:
    """For how long faults are done, each so many times at least; how many kinds (0: all); how long a drain may take.

    `rate`: tasks a second beside them.
    """

    seconds: float = 300.0
    rounds: int = 1
    kinds: int = 0
    limit: float = 240.0
    rate: float = 40.0


QUICK = Sizes(seconds=0.0, kinds=2, limit=120.0)


@define(eq=False)
class Run:
    """One run: what is sent, what is seen, and the faults."""

    name: str
    seed: int
    world: World
    sizes: Sizes
    progress: Progress
    history: History = field(factory=History, init=False)
    deeds: dict[str, Deed] = field(init=False)
    recovery_s: dict[str, list[float]] = field(init=False)
    traffic: Traffic = field(init=False)
    http: HttpWorker = field(init=False)
    _order: Random = field(init=False)

    @classmethod
    def of(cls, name: str, seed: int, directory: Path, fsync: str, sizes: Sizes, progress: Progress) -> Run:
        """Make a run of a scenario. Raises: RunFailed, with the remedy, if this machine lacks something."""
        draws = Random(f"{seed} victims")
        stores = SCENARIOS[name].stores(directory / "store", fsync, SERVERS, draws)
        stores.check()
        return cls(name, seed, World(directory, stores, draws), sizes, progress)

    def __attrs_post_init__(self) -> None:
        self._order = Random(f"{self.seed} order")
        self.traffic = Traffic(Random(f"{self.seed} traffic"), self.history, self.sizes.rate)
        self.http = HttpWorker(self.world.http_urls, self.history, self.seed)
        self.deeds = SCENARIOS[self.name].deeds(self.world)
        kinds = Random(f"{self.seed} {self.name}")  # so that one seed chooses others for each scenario
        self.only(*kinds.sample(sorted(self.deeds), min(self.sizes.kinds or len(self.deeds), len(self.deeds))))

    def only(self, *faults: str) -> None:
        """Do only these faults."""
        self.deeds = {name: self.deeds[name] for name in faults}
        self.recovery_s = {name: [] for name in faults}

    async def run(self) -> None:
        """Do it all; then `history` is complete. Raises: RunFailed if the service does not come back."""
        self._say("starting a store, servers and workers")
        try:
            async with trio.open_nursery() as nursery:
                await self.world.start(nursery)
                nursery.start_soon(self.http.run)
                await self._disturb()
                nursery.cancel_scope.cancel()
        finally:
            await self.world.close()

    async def _disturb(self) -> None:
        urls = self.world.urls
        async with fairq.open_client(urls, token="dev-operator") as operator:
            await operator.request("configure", {"queue": HTTP_QUEUE, "settings": {"lease_ms": LEASE_MS}})
            if (partitions := self.world.stores.partitions) > 1:
                await operator.request("configure", {"queue": QUEUE, "settings": {"partitions": partitions}})
            async with trio.open_nursery() as sending:
                sending.start_soon(self.traffic.run, self.world.urls_of)
                async with fairq.open_client(urls, token="dev-tenant:probe") as client:
                    await self.traffic.probe(client)
                    await self._do_all(client)
                self.traffic.is_over.set()
            await self._until_empty(operator)
            self.history.crashed = self.world.crashed()
            await self._gather(operator)

    async def _do_all(self, client: fairq.Client) -> None:
        end = trio.current_time() + self.sizes.seconds
        for fault in self._in_order():
            rounds = min(map(len, self.recovery_s.values()))
            if rounds >= self.sizes.rounds and trio.current_time() >= end:
                return
            await self.world.wait_serving()
            self.history.fault = fault
            self._say(f"{len(self.history.enqueued):,} tasks, {self.history.faults.total()} faults; now: {fault}")
            began = await self.deeds[fault]()
            self.history.faults[fault] += 1
            await self.traffic.probe(client)
            self.recovery_s[fault].append(trio.current_time() - began)

    def _in_order(self) -> Iterable[str]:
        """Name each fault once in a random order, and again."""
        while True:
            yield from self._order.sample(list(self.deeds), len(self.deeds))

    def _say(self, what: str) -> None:
        self.progress.say(f"faults, {self.name} (seed {self.seed}): {what}")

    async def _until_empty(self, operator: fairq.Client) -> None:
        """Wait until no task is left, and the last outcome is known; or note how many are."""
        left = {"tasks": 1}
        with trio.move_on_after(self.sizes.limit):
            while any(left.values()):
                await trio.sleep(0.1)
                with suppress(FairqError):
                    states = {queue: await queue_state(operator, queue) for queue in (QUEUE, HTTP_QUEUE)}
                    left = {
                        f"{place}, {queue}": state.get(place, 0)
                        for queue, state in states.items() for place in ("ready", "delayed", "leased")
                    } | {"under way over HTTP": self.http.working}  # fmt: skip
            return
        self.history.left = [f"{count} {place}" for place, count in left.items() if count]

    async def _gather(self, client: fairq.Client) -> None:
        """Read what handlers wrote down, and the dead letters."""
        for n in range(WORKERS):
            rows = (line.split(" ") for line in self.world.record(n).read_text(encoding="ascii").splitlines())
            self.history.ran += [Ran(id, int(attempt), event, float(at)) for id, attempt, event, at in rows]
        for queue in (QUEUE, HTTP_QUEUE):
            async for letter in client.dead_letters(queue).walk(brief=True):
                self.history.dead[letter.id.rpartition("/")[2]] = Dead(letter.reason, letter.died_at_ms / 1000)
