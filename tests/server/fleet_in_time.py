"""Servers that share a queue with partitions, in virtual time: all that a server dispatches by, over the exact model.

Each partition is a model of its own (fairq/model/queue), and lives on a primary of a cluster, which may stand still, be
away, or give the partition to another one. A worker and its server settle as wire/settlements.py and verbs/workers.py
have it. All of it runs by trio's mock clock.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import trio
from attrs import define, field

from fairq.errors import FairqError, OutcomeUnknown, Unavailable
from fairq.io.taskless import in_task
from fairq.model.queue.model import Model
from fairq.model.queues import Tick
from fairq.model.tasks import Lease, NewTask, Settlement
from fairq.server.engine.dispatch.worker_account import WorkerAccount
from fairq.server.engine.net.server_slots import ServerSlots
from fairq.server.engine.queues import Queues
from fairq.store import keys
from fairq.store.partitions import place_in, places_of
from fairq.store.task_calls import Claim

from .fake_worker import FakeWorker

T = TypeVar("T")

Q, START_MS, RTT_S, TIMEOUT_S, REPORT_S = "q", 1_800_000_000_000, 0.001, 5.0, 0.25


@define(eq=False)
class Primary:
    """A node of the store. What is sent to it while it stands still is carried out later, perhaps too late."""

    is_away: bool = False
    is_lost: bool = False  # a call has timed out, and nothing answers on a new connection while it stands still
    thawed: trio.Event = field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self.thawed.set()


@define(eq=False)
class Cluster:
    """A queue's partitions, their tenants and all servers. `lengths`: of a tenant's tasks, in seconds."""

    nursery: trio.Nursery
    partitions: int = 4
    lengths: Mapping[str, float] = field(factory=dict)
    primaries: list[Primary] = field(factory=lambda: [Primary() for _ in range(3)])
    servers: list[Server] = field(factory=list)
    added: dict[str, float] = field(factory=dict)  # tasks, when
    begun: Counter[str] = field(factory=Counter)  # tasks
    ended: set[str] = field(factory=set)
    waits_s: defaultdict[str, list[float]] = field(factory=lambda: defaultdict(list))  # of each tenant's tasks
    given_s: Counter[str] = field(factory=Counter)  # by the tasks that have ended
    running: dict[str, float] = field(factory=dict)  # tasks, since when
    names: int = 0
    calls: int = 0
    moved: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)  # woken as tasks begin, and are settled
    places: tuple[str, ...] = field(init=False)
    models: dict[str, Model] = field(init=False)
    home: dict[str, Primary] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.places = places_of(Q, self.partitions)
        self.models = {place: Model() for place in self.places}
        self.home = {place: self.primaries[n % len(self.primaries)] for n, place in enumerate(self.places)}

    def tenants(self, place: int, count: int) -> list[str]:
        """Name so many tenants of a partition."""
        found = (name for name in map("t{}".format, range(10_000)) if place_in(self.places, name) == self.places[place])
        return [next(found) for _ in range(count)]

    def publish(self, place: str, message: str) -> None:
        """Notify all servers, a little later."""
        for server in self.servers:
            self.nursery.start_soon(server.hear, keys.ready_channel(place), message)

    async def call(self, place: str, carry_out: Callable[[Model, int], T]) -> T:
        """Carry out a call of the library. Raises: Unavailable, OutcomeUnknown."""
        await in_task()
        primary = self.home[place]
        if primary.is_away or (primary.is_lost and not primary.thawed.is_set()):
            raise Unavailable("no connection to the store")
        self.calls += 1
        await trio.sleep(RTT_S / 2 + 1e-9 * self.calls)  # calls arrive in the order in which they leave
        done: list[T] = []
        answered = trio.Event()

        async def arrive() -> None:
            await primary.thawed.wait()
            if self.home[place] is primary and not primary.is_away:
                done.append(carry_out(self.models[place], START_MS + round(trio.current_time() * 1000)))
            answered.set()

        self.nursery.start_soon(arrive)
        with trio.move_on_after(TIMEOUT_S):
            await answered.wait()
            await trio.sleep(RTT_S / 2)
        if not done:
            primary.is_lost = not primary.thawed.is_set()
            raise OutcomeUnknown("the connection to the store was lost")
        return done[0]

    def add(self, tenant: str, count: int, server: int = 0, **options: Any) -> None:
        """Enqueue tasks by a server."""
        tasks = [NewTask(f"{tenant}/{self.names + n}", b"1", **options) for n in range(count)]
        self.added |= {task.id: trio.current_time() for task in tasks}
        self.names += count
        self.nursery.start_soon(self.servers[server].enqueue, tenant, tasks)

    def set_limits(self, tenant: str, **limits: float) -> None:
        """Set limits of a tenant."""
        self.models[place_in(self.places, tenant)].change_limits(tenant, limits)

    def set_weight(self, tenant: str, weight: int) -> None:
        """Set the weight of a tenant."""
        now_ms = START_MS + round(trio.current_time() * 1000)
        self.models[place_in(self.places, tenant)].set_weight(now_ms, tenant, 1000 * weight)

    def given(self) -> Counter[str]:
        """Return the worker time of each tenant until now."""
        given, now = Counter(self.given_s), trio.current_time()
        for id, began in self.running.items():
            given[id.partition("/")[0]] += now - began  # type: ignore[assignment]
        return given

    @property
    def slots(self) -> int:
        return sum(worker.account.credit for server in self.servers for worker in server.workers)

    async def used(self, seconds: float) -> float:
        """Return which part of all slots' time tasks ran, from now on."""
        before = sum(self.given().values())
        await trio.sleep(seconds)
        return (sum(self.given().values()) - before) / seconds / self.slots

    async def shares(self, seconds: float, tenants: Sequence[str]) -> dict[str, float]:
        """Return the worker time that tenants are given from now on."""
        before = self.given()
        await trio.sleep(seconds)
        return {name: self.given()[name] - before[name] for name in tenants}

    def start_server(self, *credits: int) -> Server:
        """Start a server with workers."""
        server = Server(self, f"server-{len(self.servers)}")
        self.servers.append(server)
        server.start(credits)
        return server


@define(eq=False)
class Server:
    """A server, as its dispatchers see it: `Queues`, with a store."""

    cluster: Cluster
    name: str
    workers: list[Worker] = field(factory=list)
    slots: ServerSlots = field(factory=ServerSlots)
    queues: Queues = field(init=False)
    random: random.Random = field(init=False)
    is_gone: bool = False
    # What `Queues` and its parts need of a store:
    on_woken: Callable[[str, int], None] = field(init=False)
    registry: SimpleNamespace = field(init=False)
    subscription: SimpleNamespace = field(init=False)
    connection: SimpleNamespace = field(init=False)
    attempts: SimpleNamespace = field(init=False)

    def start(self, credits: Sequence[int]) -> None:
        """Begin to serve."""
        cluster, self.random = self.cluster, random.Random(self.name)

        async def nothing(*_: Any) -> None: ...

        async def places(queue: str) -> Sequence[str]:
            return cluster.places

        self.subscription = SimpleNamespace(add=nothing, remove=nothing)
        self.attempts = SimpleNamespace(stopping=nothing)
        self.connection = SimpleNamespace(owner=lambda prefix: cluster.home[Q + "/" + prefix.split("/")[1].rstrip("}")])
        self.registry = SimpleNamespace(
            known={Q: cluster.places}, making={}, places=places, on_places=None,
            places_known=lambda queue: cluster.places if queue == Q else (queue,), all_places=lambda: places(Q),
        )  # fmt: skip
        self.queues = Queues(self.name, self, cluster.nursery, self.slots)  # type: ignore[arg-type]
        cluster.nursery.start_soon(self.queues.ticker.run)
        cluster.nursery.start_soon(self.report)
        for credit in credits:
            worker = Worker(WorkerAccount(credit), self)
            self.workers.append(worker)
            self.queues.join(worker)  # type: ignore[arg-type]

    async def report(self) -> None:
        """Tell the other servers how many slots there are here."""
        while not self.is_gone:
            count = float(sum(worker.account.credit for worker in self.workers))
            for server in self.cluster.servers:
                if server is not self:
                    server.slots.hear(self.name, {Q: [count, count]}, {})
            await trio.sleep(REPORT_S)

    def leave(self) -> None:
        """End as a server that drains: its workers end what they run, and get no more."""
        self.is_gone = True
        for worker in self.workers:
            worker.account.credit = 0
            self.queues.leave(worker)  # type: ignore[arg-type]
        self.queues.stop_claiming()
        self.cluster.servers.remove(self)
        for server in self.cluster.servers:
            server.slots.hear(self.name, {}, {})

    async def hear(self, channel: str, message: str) -> None:
        """Take in a message of the store."""
        await trio.sleep(RTT_S * self.random.random())
        if not self.is_gone:
            self.queues.on_message(channel, message)

    def _announce(self, model: Model, place: str, was_hungry: int, server: str) -> bool:
        """Publish what a call announces; returns whether it names a server."""
        if was_hungry and not model.hungry:
            self.cluster.publish(place, f"1 {server}/{model.weight_sum}" if server else f"1/{model.weight_sum}")
            return bool(server)
        return False

    async def enqueue(self, tenant: str, tasks: Sequence[NewTask]) -> None:
        """Store tasks, as often as it takes."""
        place = place_in(self.cluster.places, tenant)

        def carry_out(model: Model, now_ms: int) -> int:
            was_hungry, server = model.hungry, self.slots.choose(Q, len(tasks))
            model.enqueue(now_ms, tenant, tasks)
            is_named = self._announce(model, place, was_hungry, server)
            return 0 if is_named or not model.woken else int(model.weight_sum)

        while True:
            try:
                if weight := await self.cluster.call(place, carry_out):
                    self.on_woken(place, weight)
                return
            except FairqError:
                await trio.sleep(0.25)

    async def claim(
        self, place: str, name: str, limit: int, *, slots: int, owed: int, again: bool = False, covered: object = None
    ) -> Claim:
        def carry_out(model: Model, now_ms: int) -> Claim:
            leased = model.claim_again(now_ms, name) if again else []
            number = model.claims.get(name, 0)
            if not leased:
                leased = model.claim(now_ms, iter(self.random.random, None), name, limit, slots, owed)
                number = model.last_lease
            leases = [
                Lease(
                    id, number, attempt, most, id.partition("/")[0], 1, 0, 0, b"1",
                    is_guaranteed=id in model.within_guarantee,
                )
                for id, attempt, most in leased
            ]  # fmt: skip
            lease_ms, weight = int(model.settings["lease_ms"]), int(model.weight_sum)
            return Claim(lease_ms, leases, None, now_ms, tenants_weight=weight, owed=model.owed)

        return await self.cluster.call(place, carry_out)

    def claimed(self, place: str, claim: Claim) -> None:
        """Count nothing."""

    async def tick(self, place: str, server: str) -> Tick:
        def carry_out(model: Model, now_ms: int) -> Tick:
            was_hungry = model.hungry
            reply = model.tick(now_ms, 125)
            self._announce(model, place, was_hungry, "")
            return Tick(*reply[:9])

        return await self.cluster.call(place, carry_out)

    async def settle(self, place: str, settlements: Sequence[Settlement]) -> list[str]:
        said = [(each.action, each.id, each.lease, None, "", "") for each in settlements]
        sent_ms = START_MS + round(trio.current_time() * 1000)
        return await self.cluster.call(
            place, lambda model, now_ms: model.settle(now_ms, iter(self.random.random, None), said, sent_ms)
        )

    async def give_back(self, place: str, leases: Sequence[tuple[str, int, int]], action: Any) -> None:
        await self.settle(place, [Settlement(action, id, lease) for id, lease, _ in leases])

    async def wake(self, place: str) -> None:
        self.cluster.publish(place, keys.READY)


@define(eq=False)
class Worker(FakeWorker):
    """A worker with slots; it settles what it has done until the store has answered."""

    server: Server
    queues: Sequence[str] = (Q,)
    pool: Any = None

    def begin(self, place: str, lease: Lease) -> None:
        self.server.cluster.nursery.start_soon(self.perform, place, lease, self.server.cluster)

    async def perform(self, place: str, lease: Lease, cluster: Cluster) -> None:
        began = cluster.running[lease.id] = trio.current_time()
        cluster.begun[lease.id] += 1
        cluster.waits_s[lease.tenant].append(began - cluster.added[lease.id])
        cluster.moved.unpark_all()
        await trio.sleep(cluster.lengths.get(lease.tenant, 0.1))
        cluster.given_s[lease.tenant] += trio.current_time() - cluster.running.pop(lease.id)  # type: ignore[assignment]
        settlement = Settlement("ack", lease.id, lease.lease)
        while True:
            ended = self.account.end(Q, [settlement])
            self.server.queues.credit_changed(self)  # type: ignore[arg-type]
            try:
                (outcome,) = await self.server.settle(place, [settlement])
            except FairqError:
                for key, (number, terms) in ended.items():
                    self.account.add_unsettled(key, number, terms, trio.current_time())
                await trio.sleep(0.25)
            else:
                assert outcome in ("ok", "gone", "stale"), outcome
                cluster.ended.add(lease.id)
                cluster.moved.unpark_all()
                return
