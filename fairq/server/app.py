"""The server: its parts, and the order in which they stop.

A server is stateless: all lasting state is in the store, so any number of servers may serve one store. Stopping takes
three steps. First, there are no new connections and no new claims, and waiting requests are answered `draining`. Then
workers are told to drain and get `grace` seconds to settle their leases. Then the remaining leases are released, so
that workers of other servers get the tasks at once.
"""

from __future__ import annotations

import platform
import random
import secrets
from collections import defaultdict
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import structlog
import trio
from attrs import define, field

from fairq.model.operating import Takers
from fairq.model.rates import Rate
from fairq.model.tasks import Action
from fairq.model.waiting import WAIT_CAUSES, WaitCause
from fairq.server.dispatch.dispatcher import Dispatcher, give_back
from fairq.server.dispatch.tracing import Tracing
from fairq.server.dispatch.worker_account import Place
from fairq.server.long_poll import LongPolls
from fairq.server.net.auth import Auth
from fairq.server.net.connection import Connection
from fairq.server.net.lease_holders import HOLDERS, LeaseHolders
from fairq.server.net.questions import Questions
from fairq.server.net.refusals import Refusals
from fairq.server.net.revocations import Revocations
from fairq.server.net.token_uses import TokenUses
from fairq.server.net.worker_registry import WORKER, WorkerRegistry
from fairq.server.settings import Settings
from fairq.server.stats.recorder import Recorder
from fairq.server.timers.forgetting import forget_idle
from fairq.server.timers.ticker import Ticker
from fairq.store import keys
from fairq.store.counts import Counts
from fairq.store.store import Store

log = structlog.get_logger("fairq.server")

_GIVE_BACK_S = 5.0
RETURNS_PER_S = 250.0  # workers that can reconnect to a server when thousands lose their connections at once
MAX_GRACE_S = 20.0  # the longest time that leases are kept then
MAX_UNMADE = 100  # queues that do not exist, and for whose messages one tenant or token waits
_FORGET_S = 30.0  # between checks for queues without workers and waiting requests
QUEUES = "queues"  # the kind of question: queue, ... -> those that workers take tasks of
WAITS = "waits"  # queue and tenant -> what each of its last starts had waited for
PRODUCERS_CALLS = 500  # of the store at once, for all producers
IDLE_TICKS = 100  # at once, for all workers that ask whether their queues are empty
LATER_MS = 250  # until the servers look that were not notified first
_ANSWER_S = 1.0  # after the grace, for answers that are still due


class Brought(NamedTuple):
    """A lease that a worker brings to another connection, taken over `taken` times, for `lease_s` (0: unknown)."""

    place: Place
    lease: int
    taken: int
    lease_s: float


@define(eq=False)
class App:
    """One server process's state: its connections, its dispatchers, its ticker."""

    settings: Settings
    store: Store
    nursery: trio.Nursery
    tracing: Tracing | None = None
    name: str = field(factory=lambda: f"{platform.node() or 'fairq'}-{secrets.token_hex(3)}")
    auth: Auth = field(init=False)
    token_uses: TokenUses = field(init=False)
    ticker: Ticker = field(init=False)
    questions: Questions = field(init=False)
    lease_holders: LeaseHolders = field(init=False)
    worker_registry: WorkerRegistry = field(init=False)
    revocations: Revocations = field(init=False)
    recorder: Recorder = field(init=False)
    refusals: Refusals = field(factory=Refusals, init=False)
    connections: set[Connection] = field(factory=set, init=False)
    owners: dict[Place, Connection] = field(factory=dict, init=False)  # of the leases on accounts of this server
    returns: Rate = field(factory=lambda: Rate(RETURNS_PER_S, 1), init=False)  # of workers whose connection broke
    kept: set[Connection] = field(factory=set, init=False)  # broken connections whose leases may be brought to new ones
    dispatchers: dict[str, Dispatcher] = field(factory=dict, init=False)
    long_polls: dict[str, LongPolls] = field(factory=dict, init=False)
    searches: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1), init=False)  # by schedules
    tenants_purge: trio.Lock = field(factory=trio.Lock, init=False)  # of those of all tenants one works at a time,
    operators_purge: trio.Lock = field(factory=trio.Lock, init=False)  # and one of the operators';
    own_purges: WeakValueDictionary[str, trio.Lock] = field(
        factory=WeakValueDictionary, init=False
    )  # one of each waits
    producers_calls: trio.CapacityLimiter = field(
        factory=lambda: trio.CapacityLimiter(PRODUCERS_CALLS), init=False
    )  # of the store, each for one tenant
    idle_ticks: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(IDLE_TICKS), init=False)
    reports: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(4), init=False)  # that ask all servers
    is_draining: bool = field(default=False, init=False)
    _unmade: defaultdict[Hashable, set[str]] = field(factory=lambda: defaultdict(set), init=False)  # by whose
    _channels: dict[str, str] = field(factory=dict, init=False)  # channels that this server listens to -> their queues
    _connection_left: trio.Event = field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self.token_uses = TokenUses(self.store, self.connections)
        self.auth = Auth(self.store, self.settings.dev, self.token_uses.note)
        self.ticker = Ticker(self.store, self.notify)
        self.revocations = Revocations(self.store)
        self.store.counts = Counts()
        self.recorder = Recorder(self.store, self.store.counts)
        self.questions = Questions(self.name, self.store, self.nursery, self._answer)
        self.lease_holders = LeaseHolders(self.owners, self.questions, self.nursery)
        self.worker_registry = WorkerRegistry(self.name, self.store, self.nursery, self._give_back, self.questions)

    async def start(self) -> None:
        """Subscribe to the store's channels, and start the background tasks."""
        await self.store.subscription.add(keys.REVOKED, sharded=False)
        await self.store.subscription.add(keys.WORKERS, sharded=False)
        await self.store.subscription.add(keys.DELETED, sharded=False)
        self.nursery.start_soon(self._forget_idle)
        self.nursery.start_soon(self.ticker.run)
        self.nursery.start_soon(forget_idle, self.store, self.takers)
        self.nursery.start_soon(self.worker_registry.run)
        self.nursery.start_soon(self.worker_registry.renew)
        self.nursery.start_soon(self.recorder.run)
        self.nursery.start_soon(self.revocations.run)
        self.nursery.start_soon(self.revocations.run_expiries)
        self.nursery.start_soon(self.token_uses.run)

    def on_message(self, channel: str, message: str = "") -> None:
        """Handle a message from the store; an empty channel means that any message may have been missed."""
        if channel in ("", keys.REVOKED):
            self.revocations.on_message(message)
        if channel == keys.WORKERS and message:
            self.worker_registry.on_announcement(message)
        if channel == keys.DELETED and message:
            self.forget(message)
        queues = self._channels.values() if not channel else filter(None, [self._channels.get(channel)])
        for queue in list(queues):
            if dispatcher := self.dispatchers.get(queue):
                if message.startswith(keys.STOP):
                    dispatcher.stop(message.removeprefix(keys.STOP))
                elif message in ("", keys.READY):
                    dispatcher.notify()
                elif message.startswith(keys.READY):
                    self._claim_first(queue, message.removeprefix(keys.READY).strip())
            if long_polls := self.long_polls.get(queue):
                long_polls.on_message(message)

    def _listen(self, queue: str) -> None:
        """Listen to a queue's channel from now on."""
        channel = keys.ready_channel(queue)
        if channel not in self._channels:
            self._channels[channel] = queue
            self.nursery.start_soon(self.store.subscription.add, channel)  # the caller may be cancelled

    async def _forget_idle(self) -> None:
        """Stop listening to queues without waiting requests and without workers."""
        while True:
            await trio.sleep(_FORGET_S)
            for queue, long_polls in list(self.long_polls.items()):
                if long_polls.is_idle:
                    del self.long_polls[queue]
            for channel, queue in list(self._channels.items()):
                if queue not in self.long_polls and queue not in self.dispatchers:
                    del self._channels[channel]
                    await self.store.subscription.remove(channel)
            for whose, unmade in list(self._unmade.items()):
                unmade.intersection_update(self.long_polls)
                if not unmade:
                    del self._unmade[whose]

    def forget(self, queue: str) -> None:
        """Forget a queue that is being deleted; its workers stay attached, and get no tasks."""
        self.store.registry.forget(queue)
        self.ticker.forget(queue)
        self.recorder.forget(queue)
        if dispatcher := self.dispatchers.get(queue):
            dispatcher.forget()
            dispatcher.stop_all()
            if not dispatcher.capacity.workers:
                dispatcher.stop_claiming()
                del self.dispatchers[queue]
        if long_polls := self.long_polls.get(queue):
            long_polls.on_message("")
            if long_polls.is_idle:
                del self.long_polls[queue]

    async def watch(self, queue: str, whose: Hashable) -> LongPolls:
        """Return the long polls of a queue, listening to its channel from now on.

        Of queues that do not exist the server listens to MAX_UNMADE for each tenant or token, by their names; those
        who wait for others of them read every POLL_S.
        """
        if queue not in self.long_polls:
            if not await self.store.registry.exists(queue):
                unmade = self._unmade[whose]
                unmade -= self.store.registry.known
                if len(unmade) >= MAX_UNMADE and queue not in unmade:
                    return LongPolls()
                unmade.add(queue)
            self.long_polls.setdefault(queue, LongPolls())
            self._listen(queue)
        return self.long_polls[queue]

    def notify(self, queue: str) -> None:
        """Note that there may be ready tasks in a queue."""
        if queue in self.dispatchers:
            self.dispatchers[queue].notify()

    def cover(self, queue: str, tasks: int) -> str:
        """Claim tasks that are about to be enqueued, if workers of this server have room for all of them.

        Returns which servers the store notifies: `covered` (none: the claim follows at once), `wake <server>`, `all`.
        """
        dispatcher = self.dispatchers.get(queue)
        if dispatcher and dispatcher.cover(tasks):
            return "covered"
        server = self.name if dispatcher and dispatcher.has_room else self.worker_registry.one_elsewhere(queue, tasks)
        return f"wake {server}" if server else "all"

    def _claim_first(self, queue: str, server: str) -> None:
        """Claim if this server is the one to claim first; otherwise look a little later, in case it does not."""
        if server != self.name:
            self.ticker.tick_within(queue, LATER_MS)
        elif not self.dispatchers[queue].claim_first():
            self.nursery.start_soon(self.dispatchers[queue].pass_on)

    def may_have_work(self, queue: str) -> bool:
        """True if a claim from a queue might find tasks."""
        return queue in self.dispatchers and self.dispatchers[queue].may_have_work

    def attach(self, connection: Connection) -> None:
        """Start to give tasks to a worker."""
        log.info("worker attached", worker=connection.name, queues=connection.queues, credit=connection.account.credit)
        self.worker_registry.join(connection)
        connection.drained = partial(self.credit_changed, connection)
        for broken in self.kept:
            is_same = (broken.name, broken.identity) == (connection.name, connection.identity)
            if is_same and 0 < broken.order <= connection.order:
                broken.is_over.set()  # leases that it has not brought were never received
        for queue in connection.queues:
            dispatcher = self.dispatchers.get(queue)
            if dispatcher is None:
                dispatcher = self.dispatchers[queue] = Dispatcher(
                    queue, self.store, self.ticker, self.name, self.credit_changed,
                    self.worker_registry.slots_elsewhere, self.tracing,
                )  # fmt: skip
                self._listen(queue)
                self.nursery.start_soon(dispatcher.run)
            dispatcher.join(connection)
            self.ticker.tick_within(queue, 0)

    def credit_changed(self, connection: Connection) -> None:
        """Note that a worker has more (or less) room."""
        queues = random.sample(connection.queues, len(connection.queues))  # so that no queue is always the last
        for queue in queues:
            if dispatcher := self.dispatchers.get(queue):  # None if the queue was deleted, and its last worker has left
                dispatcher.credit_changed(connection)

    def drop_lease(self, connection: Connection, place: Place, lease: int) -> None:
        """Take a lease off a worker's account, if it is there; this makes room for another."""
        if connection.account.has(place, lease):
            connection.account.drop(place)
            connection.account.reported.discard(place)
            self.credit_changed(connection)

    def holder(self, place: Place, lease: int) -> Connection | None:
        """Return the connection of this server that has a lease on its account."""
        connection = self.owners.get(place)
        return connection if connection is not None and connection.account.has(place, lease) else None

    def known_lease(self, place: Place) -> tuple[int, int]:
        """Return a task's lease number at a worker here, and how often it was taken over; 0, 0 if none has it."""
        connection = self.owners.get(place)
        if connection is None:
            return 0, 0
        return connection.account.held.get(place, 0), connection.account.taken.get(place, 0)

    def forget_lease(self, place: Place, lease: int) -> None:
        """Take a lease off the account of the worker of this server that has it."""
        if holder := self.holder(place, lease):
            self.drop_lease(holder, place, lease)

    def is_of_another(self, connection: Connection, place: Place, lease: int) -> bool:
        """True if another worker's connection to this server has a lease on its account."""
        holder = self.holder(place, lease)
        if holder is None or holder is connection or holder.closing:
            return False
        return (holder.identity.token_id, holder.name) != (connection.identity.token_id, connection.name)

    def move_leases(self, leases: Sequence[Brought], connection: Connection) -> None:
        """Move leases to the account of the connection that brought them, from any other one of this server."""
        now = trio.current_time()
        for each in leases:
            self.forget_lease(each.place, each.lease)
            connection.account.bring(each.place, each.lease, each.taken, now, each.lease_s)

    def count_slots(self, queue: str) -> int:
        """Count the slots that are attached to a queue, over all servers."""
        if queue in self.dispatchers:
            return self.dispatchers[queue].slots
        return self.worker_registry.slots_elsewhere(queue)

    def count_places(self, queue: str) -> float:
        """Count the tasks of a queue that can run at once, with each worker's slots divided among its queues."""
        workers = self.dispatchers[queue].capacity.workers if queue in self.dispatchers else ()
        here = [connection for connection in self.connections.intersection(workers) if connection.is_attached]
        return self.worker_registry.places_elsewhere(queue) + sum(
            connection.account.credit / len(connection.queues) for connection in here
        )

    def count_workers(self, queue: str) -> int:
        """Count the workers of a queue that are attached to this server."""
        return len(self.dispatchers[queue].capacity.workers) if queue in self.dispatchers else 0

    def is_taken_here(self, queue: str) -> bool:
        """True if a worker that is attached to this server takes tasks of a queue."""
        workers = self.dispatchers[queue].capacity.workers if queue in self.dispatchers else ()
        return any(isinstance(worker, Connection) and worker.is_attached for worker in workers)

    async def takers(self, queues: Sequence[str]) -> dict[str, Takers]:
        """Tell for queues whether workers take their tasks, at any server; `unknown` where a server did not answer."""
        if not queues:
            return {}
        answers, unanswered = await self.questions.ask(QUEUES, queues)
        taken = {queue for some in answers.values() for queue in some}
        absent: Takers = "unknown" if unanswered or self.worker_registry.is_unsure else "none"
        return {queue: "some" if queue in taken else absent for queue in queues}

    def _answer(self, kind: str, asked: Any) -> Any:
        """Answer a question about the workers of this server; None if its kind is unknown."""
        if kind == HOLDERS:
            return self.lease_holders.here(asked)
        if kind == WORKER:
            return self.worker_registry.named(*asked)
        if kind == WAITS:
            return self._waits_here(*asked)
        return [queue for queue in asked if self.is_taken_here(queue)] if kind == QUEUES else None

    def _waits_here(self, queue: str, tenant: str) -> list[list[int]]:
        """Return what each of a tenant's last starts at this server had waited for: ms by cause, in their order."""
        dispatcher = self.dispatchers.get(queue)
        parts = dispatcher.wait_times.parts(tenant, dispatcher.store_now_ms) if dispatcher else []
        return [list(each.values()) for each in parts]

    async def waits(self, queue: str, tenant: str) -> tuple[list[dict[WaitCause, int]], int]:
        """Return what each of a tenant's last starts had waited for, at all servers; how many of these said nothing."""
        async with self.reports:
            answers, unanswered = await self.questions.ask(WAITS, [queue, tenant])
        rows = [dict(zip(WAIT_CAUSES, row, strict=True)) for rows in answers.values() for row in rows]
        return rows, len(unanswered)

    async def serve(self, connection: Connection) -> None:
        """Serve a connection until it ends; a worker's leases are then given back at once, with two exceptions.

        If the connection broke, the worker may soon reconnect, here or at another server, and bring its leases. They
        are kept for a while, and then those that it did not bring are given back. If the connection timed out, the
        worker may still be running, and its leases expire by themselves.
        """
        self.connections.add(connection)
        self.revocations.join(connection)
        connection.freed, connection.refusals = self.credit_changed, self.refusals
        connection.account.owner, connection.account.owners = connection, self.owners
        if self.is_draining:  # its handshake was under way when the drain began
            connection.session.drain()
            connection.leave()
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)
            self.revocations.leave(connection)
            self.worker_registry.leave(connection)
            for queue in connection.queues:
                self.dispatchers[queue].leave(connection)
            if connection.session.is_timed_out:
                connection.account.drop_all()
            is_broken_worker = connection.is_broken and bool(connection.queues)
            if is_broken_worker:  # tenants may break off as often as they like: workers' leases do not wait for them
                self.returns.take(1, trio.current_time())
            keeps = self.settings.reconnect_grace and not self.is_draining
            if is_broken_worker and connection.account.held and keeps:
                self.kept.add(connection)
                self.nursery.start_soon(self._keep, connection)
            else:
                await self._end_leases(connection)
            self._note_left()

    async def _keep(self, connection: Connection) -> None:
        """Keep the leases of a broken connection for a while, then give back those not brought to another one."""
        now = trio.current_time()
        until, most = now + self.settings.reconnect_grace, now + max(self.settings.reconnect_grace, MAX_GRACE_S)
        try:
            while trio.current_time() < until and not connection.is_over.is_set():
                with trio.move_on_at(until):
                    await connection.is_over.wait()
                until = max(until, min(self.returns.paid_at, most))  # many broke at once: not all can be back yet
        finally:
            await self._end_leases(connection)
            self.kept.discard(connection)
            self._note_left()

    async def _end_leases(self, connection: Connection) -> None:
        with trio.move_on_after(_GIVE_BACK_S, shield=True):
            await self._give_back(connection, "release" if self.is_draining else "reap")
        connection.unlink()

    def _note_left(self) -> None:
        self._connection_left.set()
        self._connection_left = trio.Event()

    async def _give_back(self, connection: Connection, action: Action) -> None:
        """Give the leases of a worker back. If it is gone (`reap`), tasks that had not begun lose no attempt."""
        not_begun = connection.account.not_begun() if action == "reap" else ()
        for queue, leases in connection.account.drop_all().items():
            parts: dict[Action, list[tuple[str, int, int]]] = {}
            for lease in leases:
                parts.setdefault("release" if (queue, lease[0]) in not_begun else action, []).append(lease)
            for how, some in parts.items():
                log.info(
                    "giving back a worker's leases", worker=connection.name, queue=queue, count=len(some), action=how
                )
                await give_back(self.store, queue, some, how)
            self.notify(queue)

    async def drain(self, grace: float) -> None:
        """Stop gracefully; returns when all connections have ended, at most some seconds after `grace`."""
        self.is_draining = True
        for long_polls in self.long_polls.values():
            long_polls.on_message("")
        for dispatcher in self.dispatchers.values():
            dispatcher.stop_claiming()
        for connection in list(self.connections):
            connection.session.drain()
            connection.leave()
            connection.wake_writer()
        for connection in self.kept:
            connection.is_over.set()
        log.info("draining", connections=len(self.connections), grace_s=grace)
        with trio.move_on_after(grace):
            while self.connections:
                await self._connection_left.wait()
        with trio.move_on_after(_ANSWER_S):
            while any(connection.owes_answers and not connection.account.held for connection in self.connections):
                await self._connection_left.wait()  # they close themselves after their last answer
        for connection in list(self.connections):
            connection.close(1001, "the server is stopping")
        with trio.move_on_after(_GIVE_BACK_S):
            while self.connections or self.kept:
                await self._connection_left.wait()
            for dispatcher in list(self.dispatchers.values()):
                await dispatcher.stopped.wait()
            await self.worker_registry.tell_slots()
            await self.recorder.finish()
