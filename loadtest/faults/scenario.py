"""The scenario `faults`: traffic, one fault after the other by a seed, then peace, and the proof.

Each fault is followed by a probe: the next one begins when a task that was enqueued after it is done.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import trio
from attrs import define, evolve, field, frozen

import fairq
from fairq.errors import FairqError
from loadtest.faults.history import RULES, Enqueued, History, Ran, check
from loadtest.faults.http_worker import QUEUE as HTTP_QUEUE
from loadtest.faults.http_worker import HttpWorker
from loadtest.faults.world import SERVERS, WORKERS, World
from loadtest.figures import Verdict, spread
from loadtest.processes import RunFailed
from loadtest.report import Progress, Table
from loadtest.watch import queue_state, wait_until

SEED_VARIABLE, MINUTES_VARIABLE = "FAIRQ_LOADTEST_SEED", "FAIRQ_LOADTEST_MINUTES"
WORK = "work"
TENANTS, RATE = 3, 40.0
SERVED_S = 90.0  # until a probe is done
LINKS = ("cut", "hold", "slow", "bytes")
FAULTS = (
    *(f"{deed} {victim}" for victim in ("server", "store", "worker") for deed in ("kill", "stop")),
    *(f"{how} the link to {end}" for end in ("servers", "the store") for how in LINKS),
)


@frozen
class Sizes:
    """For how long faults are done, and how long the drain may take."""

    seconds: float = 300.0
    limit: float = 240.0


QUICK = Sizes(seconds=45.0, limit=120.0)


@define(eq=False)
class Run:
    """One run: what is sent, what is seen, and the faults."""

    world: World
    draws: random.Random
    sizes: Sizes
    progress: Progress
    history: History = field(factory=History, init=False)
    recovery_s: dict[str, list[float]] = field(factory=lambda: {fault: [] for fault in FAULTS}, init=False)
    is_over: trio.Event = field(factory=trio.Event, init=False)  # what is done to the service
    _numbers: itertools.count[int] = field(factory=itertools.count, init=False)

    async def send(self, client: fairq.Client) -> None:
        """Enqueue tasks of all kinds at random moments, until the faults are over and the last one is sent."""
        async with trio.open_nursery() as nursery:
            while not self.is_over.is_set():
                nursery.start_soon(self.send_one, client, f"f{next(self._numbers)}")
                await trio.sleep(self.draws.expovariate(RATE / TENANTS))

    async def send_one(self, client: fairq.Client, id: str) -> None:
        """Enqueue a task; one in ten is given up when its outcome is unknown, the others are sent again."""
        kind, sent_at, options = self.draws.random(), time.time(), dict[str, Any]()
        queue = HTTP_QUEUE if kind < 0.2 else WORK
        if kind < 0.4:
            options["delay"] = self.draws.uniform(0.1, 3)
        elif kind < 0.5:
            options["expires_in"] = self.draws.uniform(0.5, 6)
        payload = {"ms": self.draws.uniform(1, 80), "fails": int(0.5 <= kind < 0.6)}
        start_at, gives_up = sent_at + options.get("delay", 0.0), self.draws.random() < 0.1
        while True:
            try:
                await client.enqueue(queue, payload, id=id, timeout=5, **options)
            except FairqError:
                if gives_up:
                    self.history.enqueued.append(Enqueued(id, False, start_at))
                    return
                await trio.sleep(0.1)
            else:
                break
        expires_at = time.time() + options["expires_in"] if "expires_in" in options else 0.0
        self.history.enqueued.append(Enqueued(id, True, start_at, expires_at))

    async def disturb(self, client: fairq.Client) -> None:
        """Do each fault once in a random order, and again until the time is over."""
        end = trio.current_time() + self.sizes.seconds
        while not all(self.recovery_s.values()) or trio.current_time() < end:
            for fault in self.draws.sample(FAULTS, len(FAULTS)):
                if all(self.recovery_s.values()) and trio.current_time() >= end:
                    return
                done = sum(map(len, self.recovery_s.values()))
                self.progress.say(f"faults: {len(self.history.enqueued):,} tasks, {done} faults; now: {fault}")
                began = trio.current_time()
                await self._do(fault)()
                self.history.faults[fault] += 1
                await self._until_served(client)
                self.recovery_s[fault].append(trio.current_time() - began)

    def _do(self, fault: str) -> Callable[[], Awaitable[None]]:
        world = self.world
        deed, _, end = fault.partition(" ")
        if deed in LINKS:
            link = world.to_store if end == "the link to the store" else self.draws.choice(world.to_servers)
            return partial(world.disturb, link, deed)
        numbers = {"server": SERVERS, "worker": WORKERS}
        name = f"{end} {self.draws.randrange(numbers[end])}" if end in numbers else end
        return partial(world.stand_still if deed == "stop" else world.kill, name)

    async def _until_served(self, client: fairq.Client) -> None:
        """Wait until a task that is enqueued now is done."""
        id = f"f{next(self._numbers)}"
        with trio.move_on_after(SERVED_S):
            while True:
                try:
                    task = await client.enqueue(WORK, {"ms": 0, "fails": 0}, id=id, timeout=5)
                    state = await task.state()
                except FairqError:
                    await trio.sleep(0.05)
                    continue
                if state.state == "done":
                    self.history.enqueued.append(Enqueued(id, True))
                    return
                await trio.sleep(0.02)
        raise RunFailed(f"a task that was enqueued after a fault was not done in {SERVED_S:g} s")

    async def until_empty(self, operator: fairq.Client) -> None:
        """Wait until no task is left."""

        async def is_empty() -> float:
            try:
                states = [await queue_state(operator, queue) for queue in (WORK, HTTP_QUEUE)]
            except FairqError:
                return 0.0
            left = sum(state.get(place, 0) for state in states for place in ("ready", "delayed", "leased"))
            return 1.0 if left == 0 else 1 / (1 + left)

        await wait_until("faults: working off what is left", self.sizes.limit, is_empty)

    async def gather(self, client: fairq.Client) -> None:
        """Read what handlers wrote down, and the dead letters."""
        for n in range(WORKERS):
            rows = (line.split(" ") for line in self.world.record(n).read_text(encoding="ascii").splitlines())
            self.history.ran += [Ran(id, int(attempt), event, float(at)) for id, attempt, event, at in rows]
        for queue in (WORK, HTTP_QUEUE):
            async for letter in client.dead_letters(queue).walk(brief=True):
                self.history.dead[letter.id.rpartition("/")[2]] = letter.reason


async def run(directory: Path, progress: Progress, *, quick: bool, fsync: str) -> dict[str, Any]:
    """Run the scenario; returns its part of the report. Raises: RunFailed if the service does not come back."""
    sizes = QUICK if quick else Sizes()
    if minutes := os.environ.get(MINUTES_VARIABLE):
        sizes = evolve(sizes, seconds=60 * float(minutes))
    seed = int(os.environ.get(SEED_VARIABLE) or random.randrange(1 << 31))
    one = Run(World(directory / "faults", fsync), random.Random(seed), sizes, progress)
    one.world.directory.mkdir(parents=True, exist_ok=True)
    progress.say(f"faults: seed {seed}: starting a store, servers and workers")
    async with trio.open_nursery() as nursery:
        await one.world.start(nursery)
        urls = one.world.urls
        async with trio.open_nursery() as watching:
            worker = HttpWorker(lambda: [server.http_url for server in one.world.servers.values()], one.history)
            watching.start_soon(worker.run)
            async with fairq.open_client(urls, token="dev-operator") as operator:
                async with trio.open_nursery() as sending:
                    for n in range(TENANTS):
                        await sending.start(_sending, one, urls, f"t{n}")
                    async with fairq.open_client(urls, token="dev-tenant:probe") as client:
                        await one.disturb(client)
                    one.is_over.set()
                await one.until_empty(operator)
                await one.gather(operator)
            watching.cancel_scope.cancel()
        nursery.cancel_scope.cancel()
    return report(one, seed)


async def _sending(
    one: Run, urls: list[str], tenant: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    async with fairq.open_client(urls, token=f"dev-tenant:{tenant}") as client:
        task_status.started()
        await one.send(client)


def report(one: Run, seed: int) -> dict[str, Any]:
    """Return a run's part of the report."""
    history = one.history
    found = check(history, FAULTS)
    lost = found.pop("lost")
    broken = {f"faults, {rule}": Verdict(0, 0, [], [], those) for rule, those in found.items() if those}
    count = len(history.acknowledged)
    return {
        "seed": seed, "tasks": len(history.enqueued), "acknowledged": count, "lost": len(lost), "broken": len(broken),
        "stale_refused": sum(each.outcome == "stale" for each in history.settled), "dead": len(history.dead),
        "faults": {fault: {"times": len(times), **spread(times)} for fault, times in one.recovery_s.items()},
        "verdicts": {"faults": Verdict(count, count - len(lost), lost, [], []), **broken},
    }  # fmt: skip


def tables(part: Mapping[str, Any]) -> list[Table]:
    """Show the scenario's part of the report."""
    return [
        Table(
            f"faults (--seed {part['seed']}): {part['tasks']:,} tasks, {part['acknowledged']:,} acknowledged; s from"
            " the beginning of a fault until a task that was enqueued behind it is done",
            ["fault", "times", "p50", "p99", "max"],
            [[fault, row["times"], row["p50"], row["p99"], row["max"]] for fault, row in part["faults"].items()],
            f"rules: {', '.join(RULES)}; broken: {part['broken']}; stale settlements refused:"
            f" {part['stale_refused']}; dead letters: {part['dead']}; lost: {part['lost']}",
        )
    ]
