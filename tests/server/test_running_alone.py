"""Tasks that kill their worker's process, beside others, in virtual time: real dispatchers over the exact model.

The queue is fairq/model/queue; what a server does when a worker is gone is fairq/server/engine/leases.py.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import trio
from attrs import define, field

from fairq.model.queue.model import Model
from fairq.model.tasks import Action, Lease, NewTask, Outcome, Settlement
from fairq.server.engine.dispatch.dispatcher import Dispatcher
from fairq.server.engine.dispatch.worker_account import WorkerAccount
from fairq.server.engine.leases import Leases
from fairq.server.engine.timers.ticker import Ticker
from fairq.store.task_calls import Claim

from .fake_worker import FakeWorker

START, RESTART_S, POISON_S, TASK_S, SLOW_S = 1_800_000_000_000, 1.0, 0.3, 2.0, 28.0


@define(eq=False)
class ModelStore:
    """The store's verbs that dispatching needs, on the model."""

    model: Model = field(factory=Model)
    random: random.Random = field(factory=lambda: random.Random(1))
    is_over: trio.Event = field(factory=trio.Event)  # no task is left

    @property
    def now(self) -> int:
        return START + round(trio.current_time() * 1000)

    async def claim(self, queue: str, name: str, limit: int, *, slots: int | None = None, **_: object) -> Claim:
        leased = self.model.claim(self.now, iter(self.random.random, None), name, limit, slots or 0)
        number = self.model.last_lease
        leases = [Lease(id, number, attempt, most, "ada", START, 0, 0, b"{}") for id, attempt, most in leased]
        alone = frozenset(id for id, *_ in leased if self.model.runs_alone(id))
        return Claim(self.model.settings["lease_ms"], leases, None, self.now, (), alone=alone)

    def claimed(self, queue: str, claim: Claim) -> None:
        """Count nothing."""

    async def settle(self, queue: str, settlements: Sequence[Settlement]) -> list[Outcome]:
        said = [(each.action, each.id, each.lease, None, "", "") for each in settlements]
        outcomes = self.model.settle(self.now, iter(self.random.random, None), said)
        if not self.model.records.keys() - self.model.dead.keys():
            self.is_over.set()
        return outcomes  # type: ignore[return-value]

    async def give_back(self, queue: str, leases: Sequence[tuple[str, int, int]], action: Action) -> None:
        await self.settle(queue, [Settlement(action, id, lease) for id, lease, _ in reversed(leases)])

    async def wake(self, queue: str) -> None:
        """Tell no other server."""


@define(eq=False)
class Process(FakeWorker):
    """A worker's process; a task whose id begins with `poison` kills it."""

    world: World
    queues: Sequence[str] = ("q",)
    session: SimpleNamespace = field(factory=lambda: SimpleNamespace(is_timed_out=False))
    is_broken: bool = False
    is_alive_elsewhere: bool = False
    end_leases_now: trio.Event = field(factory=trio.Event)
    running: set[str] = field(factory=set)

    def begin(self, place: str, lease: Lease) -> None:
        self.world.nursery.start_soon(self.perform, lease)

    async def perform(self, lease: Lease) -> None:
        self.running.add(lease.id)
        self.world.begun[lease.id] += 1
        self.world.most_at_once = max(self.world.most_at_once, len(self.running))
        kind = lease.id.rstrip("0123456789")
        await trio.sleep({"poison": self.world.poison_s, "slow": SLOW_S}.get(kind, TASK_S))
        if kind == "poison":
            self.kill()
        if self.is_broken:
            return
        self.running.discard(lease.id)
        self.account.drop(("q", lease.id))
        await self.world.store.settle("q", [Settlement("ack", lease.id, lease.lease)])
        self.world.dispatcher.credit_changed(self)

    def kill(self) -> None:
        if not self.is_broken:
            self.is_broken, self.account.credit = True, 0
            self.world.deaths += [set(self.running)]
            self.world.nursery.start_soon(self.world.bury, self)

    def unlink(self) -> None:
        """Keep everything, to be looked at."""


@define(eq=False)
class World:
    nursery: trio.Nursery
    concurrency: int
    poison_s: float = POISON_S
    store: ModelStore = field(factory=ModelStore)
    dispatcher: Dispatcher = field(init=False)
    leases: Leases = field(init=False)
    processes: list[Process] = field(factory=list)
    begun: Counter[str] = field(factory=Counter)
    deaths: list[set[str]] = field(factory=list)  # what ran when a process died
    most_at_once: int = 0

    def __attrs_post_init__(self) -> None:
        store, ticker = self.store, Ticker(self.store, print)  # type: ignore[arg-type]
        self.dispatcher = Dispatcher("q", store, ticker, "server")  # type: ignore[arg-type]
        self.leases = Leases(0.5, store, self.nursery, SimpleNamespace())  # type: ignore[arg-type]

    @property
    def model(self) -> Model:
        return self.store.model

    def start_process(self) -> Process:
        process = Process(WorkerAccount(self.concurrency), self)
        self.processes.append(process)
        self.dispatcher.join(process)
        return process

    async def bury(self, process: Process) -> None:
        """Do what a server does when a connection has broken, and start another process."""
        self.dispatcher.leave(process)
        self.processes.remove(process)
        await self.leases.end(process)  # type: ignore[arg-type]
        await trio.sleep(RESTART_S)
        self.start_process()

    async def tick(self) -> None:
        while True:
            self.model.tick(self.store.now, 500)
            self.dispatcher.notify()
            await trio.sleep(0.1)

    def states(self, kind: str) -> Counter[str]:
        return Counter(self.model.state_of(id).state for id in self.ids if id.startswith(kind))

    ids: list[str] = field(factory=list)

    def enqueue(self, kind: str, count: int) -> None:
        ids = [f"{kind}{n}" for n in range(count)]
        self.ids += ids
        self.model.enqueue(self.store.now, "ada", [NewTask(id, b"1") for id in ids])

    async def until_over(self, most_s: float) -> float:
        """Wait until no task is left; returns how long that took."""
        began = trio.current_time()
        with trio.fail_after(most_s):
            await self.store.is_over.wait()
        return trio.current_time() - began


def open_world(nursery: trio.Nursery, concurrency: int, processes: int, **settings: int) -> World:
    world = World(nursery, concurrency)
    world.model.configure(world.store.now, **settings)
    for _ in range(processes):
        world.start_process()
    nursery.start_soon(world.dispatcher.run)
    nursery.start_soon(world.tick)
    return world


CASES = [*itertools.product((1, 3), (3, 10), (2,), (0.0, TASK_S)), (1, 10, 5, POISON_S)]


@pytest.mark.parametrize(("limit", "attempts"), [(3, 3), (3, 25), (2, 25), (5, 25), (3, 0)])
async def test_a_task_that_kills_its_process_takes_no_other_with_it(
    autojump_clock: object, limit: int, attempts: int
) -> None:
    for processes, concurrency, poisons, poison_s in CASES:
        async with trio.open_nursery() as nursery:
            world = open_world(nursery, concurrency, processes, max_lost_leases=limit, max_attempts=attempts)
            world.poison_s = poison_s
            world.enqueue("poison", poisons)
            world.enqueue("good", 20)
            await world.until_over(600)
            nursery.cancel_scope.cancel()
        about = processes, concurrency, poisons, poison_s
        assert not world.states("good")["dead"], about
        assert world.states("poison") == {"dead": poisons}, about
        assert max(world.begun[f"poison{n}"] for n in range(poisons)) <= limit, about
        for n in range(poisons):
            assert world.model.dead[f"poison{n}"].lost_leases == limit
            assert {f"poison{n}"} in world.deaths, "the last time it ran alone"


async def test_a_machine_that_dies_is_replaced_as_fast_as_ever(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        world = open_world(nursery, 100, 5)
        world.enqueue("good", 500)
        await trio.sleep(1)
        assert world.states("good") == {"leased": 500}
        for process in list(world.processes):
            process.kill()
        took_s = await world.until_over(60)
        nursery.cancel_scope.cancel()
    assert took_s < 0.5 + RESTART_S + TASK_S + 0.5
    assert not world.model.dead
    assert world.begun == dict.fromkeys(world.ids, 2)


async def test_those_that_wait_behind_a_slow_one_go_to_a_worker_that_is_idle(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        world = open_world(nursery, 10, 1, max_lost_leases=2)
        world.enqueue("slow", 1)
        world.enqueue("good", 3)
        await trio.sleep(1)
        world.processes[0].kill()
        await trio.sleep(3)
        assert world.begun == {"slow0": 2, "good0": 1, "good1": 1, "good2": 1}
        world.start_process()
        await trio.sleep(3 * TASK_S + 0.5)
        assert world.states("good") == {"done": 3}
        assert world.states("slow") == {"leased": 1}
        nursery.cancel_scope.cancel()


async def test_whatever_kills_processes_buries_nothing_that_did_not_run_alone(autojump_clock: object) -> None:
    """Only a task that was the only one may be taken for the cause, and only after two other deaths."""
    for seed in range(10):
        drawn = random.Random(seed)
        async with trio.open_nursery() as nursery:
            world = open_world(nursery, 10, 3)
            world.enqueue("good", 60)
            for _ in range(6):
                await trio.sleep(drawn.uniform(0.5, 3))
                if world.processes:
                    drawn.choice(world.processes).kill()
            await world.until_over(600)
            nursery.cancel_scope.cancel()
        for id in world.model.dead:
            assert {id} in world.deaths, seed
            assert sum(id in death for death in world.deaths) == 3
