"""The server: the parts, put together, and the order in which they stop.

Stateless: all that matters is in the store, so any number of servers may serve one store. Stopping takes three steps:
no new connections and no new claims, and requests that wait are answered `draining`; workers are told to drain and get
`grace` seconds to settle what they hold; what is left then is released, so that other servers' workers get it at once.
"""

from __future__ import annotations

import platform
import random
import secrets
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import structlog
import trio
from attrs import define, field

from fairq.model import Action
from fairq.server.dispatch.dispatcher import Dispatcher, give_back
from fairq.server.dispatch.worker_account import Place
from fairq.server.long_poll import Watchers
from fairq.server.net.admission import Rate
from fairq.server.net.auth import Auth
from fairq.server.net.connection import Peer
from fairq.server.net.revocations import Revocations
from fairq.server.net.worker_registry import Roster
from fairq.server.settings import Settings
from fairq.server.stats.shares import Shares
from fairq.server.timers.ticker import Ticker
from fairq.store import keys
from fairq.store.store import Store
from fairq.wire.messages import State

log = structlog.get_logger("fairq.server")

_GIVE_BACK_S = 5.0
RETURNS_PER_S = 250.0  # workers that a server lets back in when thousands lose their connections at once
MOST_GRACE_S = 20.0  # for which leases are kept at most then
_FORGET_S = 30.0  # between looks for queues of which nobody needs to hear
LATER_MS = 250  # until servers look that were not called first
_ANSWER_S = 1.0  # after the grace, for answers that are owed


class Brought(NamedTuple):
    """A lease that a worker brings along to another connection; `taken` over so often, and extended for `lease_s`."""

    place: Place
    lease: int
    taken: int
    lease_s: float


@define(eq=False)
class App:
    """One server process's state: its peers, its dispatchers, its ticker."""

    settings: Settings
    store: Store
    nursery: trio.Nursery
    name: str = field(factory=lambda: f"{platform.node() or 'fairq'}-{secrets.token_hex(3)}")
    auth: Auth = field(init=False)
    ticker: Ticker = field(init=False)
    roster: Roster = field(init=False)
    revocations: Revocations = field(init=False)
    shares: Shares = field(init=False)
    peers: set[Peer] = field(factory=set, init=False)
    owners: dict[Place, Peer] = field(factory=dict, init=False)  # of the leases on accounts of this server
    returns: Rate = field(factory=lambda: Rate(RETURNS_PER_S, 1), init=False)  # of those whose connection broke
    kept: set[Peer] = field(factory=set, init=False)  # broken connections, whose leases may be brought to others
    dispatchers: dict[str, Dispatcher] = field(factory=dict, init=False)
    watchers: dict[str, Watchers] = field(factory=dict, init=False)
    searches: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(1), init=False)  # by schedules
    is_draining: bool = field(default=False, init=False)
    _channels: dict[str, str] = field(factory=dict, init=False)  # that are heard -> their queues
    _peer_left: trio.Event = field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self.auth = Auth(self.store, self.settings.dev)
        self.ticker = Ticker(self.store, self.hint)
        self.revocations = Revocations(self.store)
        self.shares = Shares(self.store, self.dispatchers)
        self.roster = Roster(self.name, self.store, self.nursery, self._give_back)

    async def start(self) -> None:
        """Begin to tick and to watch for revoked tokens."""
        await self.store.subscription.add(keys.REVOKED, sharded=False)
        await self.store.subscription.add(keys.WORKERS, sharded=False)
        await self.store.subscription.add(keys.DELETED, sharded=False)
        self.nursery.start_soon(self._forget_idle)
        self.nursery.start_soon(self.ticker.run)
        self.nursery.start_soon(self.roster.run)
        self.nursery.start_soon(self.shares.run)
        self.nursery.start_soon(self.revocations.run)

    def heard(self, channel: str, message: str = "") -> None:
        """Take a hint from the store; an empty channel means that any may have been missed."""
        if channel in ("", keys.REVOKED):
            self.revocations.heard(message)
        if channel == keys.WORKERS and message:
            self.roster.told(message)
        if channel == keys.DELETED and message:
            self.forget(*message.split(" ", 1))
        queues = self._channels.values() if not channel else filter(None, [self._channels.get(channel)])
        for queue in list(queues):
            if dispatcher := self.dispatchers.get(queue):
                if message.startswith(keys.STOP):
                    dispatcher.stop(message.removeprefix(keys.STOP))
                elif message in ("", keys.READY):
                    dispatcher.hint()
                elif message.startswith(keys.READY):
                    self._claim_first(queue, message.removeprefix(keys.READY).strip())
            if watchers := self.watchers.get(queue):
                watchers.heard(message)

    def _listen(self, queue: str) -> None:
        """Hear of a queue from now on."""
        channel = keys.ready_channel(queue)
        if channel not in self._channels:
            self._channels[channel] = queue
            self.nursery.start_soon(self.store.subscription.add, channel)  # whoever asked for it may leave

    async def _forget_idle(self) -> None:
        """Hear no more of queues for which nobody waits, and nobody works."""
        while True:
            await trio.sleep(_FORGET_S)
            for queue, watchers in list(self.watchers.items()):
                if watchers.is_idle:
                    del self.watchers[queue]
            for channel, queue in list(self._channels.items()):
                if queue not in self.watchers and queue not in self.dispatchers:
                    del self._channels[channel]
                    await self.store.subscription.remove(channel)

    def forget(self, what: str, queue: str) -> None:
        """Keep nothing of a queue whose deletion has begun, or ended; workers stay attached, and find nothing."""
        self.store.registry.forget(queue)
        self.ticker.forget(queue)
        self.shares.forget(queue)
        if dispatcher := self.dispatchers.get(queue):
            dispatcher.forget()
            if what == keys.DELETION_BEGUN:  # what they hold after the end is of a queue made anew
                dispatcher.stop_all()
            if not dispatcher.room.workers:
                dispatcher.stop_claiming()
                del self.dispatchers[queue]
        if watchers := self.watchers.get(queue):
            watchers.heard("")
            if watchers.is_idle:
                del self.watchers[queue]

    def watch(self, queue: str) -> Watchers:
        """Hear of what ends in a queue, from now on."""
        if queue not in self.watchers:
            self.watchers[queue] = Watchers()
            self._listen(queue)
        return self.watchers[queue]

    def hint(self, queue: str) -> None:
        """There may be ready tasks in a queue."""
        if queue in self.dispatchers:
            self.dispatchers[queue].hint()

    def cover(self, queue: str, tasks: int) -> str:
        """Claim so many tasks, which are about to be enqueued, if workers of this server have room for all of them.

        Returns whom the store is to tell of them: nobody if that leaves right behind, or a server that has workers.
        """
        dispatcher = self.dispatchers.get(queue)
        if dispatcher and dispatcher.cover(tasks):
            return "covered"
        server = self.name if dispatcher and dispatcher.has_room else self.roster.one_elsewhere(queue, tasks)
        return f"wake {server}" if server else "all"

    def _claim_first(self, queue: str, server: str) -> None:
        """There is work, and a server that shall claim first; for the case that it does not, look a little later."""
        if server != self.name:
            self.ticker.expect(queue, LATER_MS)
        elif not self.dispatchers[queue].claim_first():
            self.nursery.start_soon(self.dispatchers[queue].pass_on)

    def may_have_work(self, queue: str) -> bool:
        """Whether a claim from a queue might find something."""
        return queue in self.dispatchers and self.dispatchers[queue].may_have_work

    def attach(self, peer: Peer) -> None:
        """Begin to feed a worker."""
        log.info("worker attached", worker=peer.name, queues=peer.queues, credit=peer.account.credit)
        self.roster.join(peer)
        peer.drained = partial(self.credit_changed, peer)
        for broken in self.kept:
            if 0 < broken.order <= peer.order and (broken.name, broken.identity) == (peer.name, peer.identity):
                broken.is_over.set()  # what it has not brought along it never heard of
        for queue in peer.queues:
            dispatcher = self.dispatchers.get(queue)
            if dispatcher is None:
                dispatcher = self.dispatchers[queue] = Dispatcher(
                    queue, self.store, self.ticker, self.name, self.credit_changed, self.roster.slots_elsewhere
                )
                self._listen(queue)
                self.nursery.start_soon(dispatcher.run)
            dispatcher.join(peer)
            self.ticker.expect(queue, 0)

    def credit_changed(self, peer: Peer) -> None:
        """A worker has more (or less) room."""
        for queue in random.sample(peer.queues, len(peer.queues)):  # in no order, so that no queue is always the last
            if dispatcher := self.dispatchers.get(queue):  # one that has left may be the last of a deleted queue
                dispatcher.credit_changed(peer)

    def drop_lease(self, peer: Peer, place: Place, lease: int) -> None:
        """Take a lease off a worker's account, if it is there, which makes room for another."""
        if peer.account.has(place, lease):
            peer.account.drop(place)
            peer.account.reported.discard(place)
            self.credit_changed(peer)

    def holder(self, place: Place, lease: int) -> Peer | None:
        """Return the connection of this server that has a lease on its account."""
        peer = self.owners.get(place)
        return peer if peer is not None and peer.account.has(place, lease) else None

    def forget_lease(self, place: Place, lease: int) -> None:
        """Take a lease off the account of whoever has it at this server."""
        if holder := self.holder(place, lease):
            self.drop_lease(holder, place, lease)

    def is_of_another(self, peer: Peer, place: Place, lease: int) -> bool:
        """Whether another worker's connection to this server has a lease on its account."""
        holder = self.holder(place, lease)
        if holder is None or holder is peer or holder.closing:
            return False
        return (holder.identity.token_id, holder.name) != (peer.identity.token_id, peer.name)

    def move_leases(self, leases: Sequence[Brought], peer: Peer) -> None:
        """Put leases on the account of the connection that brought them, and off that of another of this server."""
        now = trio.current_time()
        for each in leases:
            self.forget_lease(each.place, each.lease)
            peer.account.bring(each.place, each.lease, each.taken, now, each.lease_s)

    def count_slots(self, queue: str) -> int:
        """Count the slots that are attached to a queue, over all servers."""
        if queue in self.dispatchers:
            return self.dispatchers[queue].slots
        return self.roster.slots_elsewhere(queue)

    def count_places(self, queue: str) -> float:
        """Count the tasks of a queue that workers take at once, each worker's slots divided among its queues."""
        workers = self.dispatchers[queue].room.workers if queue in self.dispatchers else ()
        here = [peer for peer in self.peers.intersection(workers) if peer.session.state is State.ATTACHED]
        return self.roster.places_elsewhere(queue) + sum(peer.account.credit / len(peer.queues) for peer in here)

    def count_workers(self, queue: str) -> int:
        """Count the workers of a queue that are attached to this server."""
        return len(self.dispatchers[queue].room.workers) if queue in self.dispatchers else 0

    async def serve(self, peer: Peer) -> None:
        """Converse with a client until it leaves; a worker's leases then go back at once.

        Not so when the connection broke: it may be back in a moment, here or at another server, and bring its leases
        along. They are kept for a while, and then those go back that were not taken over. Nor when it fell silent: it
        may live, and its leases run out.
        """
        self.peers.add(peer)
        self.revocations.join(peer)
        peer.freed = self.credit_changed
        peer.account.owner, peer.account.owners = peer, self.owners
        if self.is_draining:  # its handshake was under way when the others were told
            peer.session.drain()
            peer.leave()
        try:
            await peer.run()
        finally:
            self.peers.discard(peer)
            self.revocations.leave(peer)
            self.roster.leave(peer)
            for queue in peer.queues:
                self.dispatchers[queue].leave(peer)
            if peer.session.is_silent:
                peer.account.drop_all()
            if peer.is_broken:
                self.returns.take(1, trio.current_time())
            if peer.is_broken and peer.account.held and not self.is_draining and self.settings.reconnect_grace:
                self.kept.add(peer)
                self.nursery.start_soon(self._keep, peer)
            else:
                await self._end_leases(peer)
            self._note_left()

    async def _keep(self, peer: Peer) -> None:
        """Give back what the worker of a broken connection has not brought along to another one by then."""
        now = trio.current_time()
        until, most = now + self.settings.reconnect_grace, now + max(self.settings.reconnect_grace, MOST_GRACE_S)
        try:
            while trio.current_time() < until and not peer.is_over.is_set():
                with trio.move_on_at(until):
                    await peer.is_over.wait()
                until = max(until, min(self.returns.paid_at, most))  # many broke: not all can be back yet
        finally:
            await self._end_leases(peer)
            self.kept.discard(peer)
            self._note_left()

    async def _end_leases(self, peer: Peer) -> None:
        with trio.move_on_after(_GIVE_BACK_S, shield=True):
            await self._give_back(peer, "release" if self.is_draining else "reap")
        peer.unlink()

    def _note_left(self) -> None:
        self._peer_left.set()
        self._peer_left = trio.Event()

    async def _give_back(self, peer: Peer, action: Action) -> None:
        for queue, leases in peer.account.drop_all().items():
            log.info("worker left its leases", worker=peer.name, queue=queue, count=len(leases), action=action)
            await give_back(self.store, queue, leases, action)
            self.hint(queue)

    async def drain(self, grace: float) -> None:
        """Stop gracefully: returns when all peers have gone, at the latest soon after `grace` seconds."""
        self.is_draining = True
        for watchers in self.watchers.values():
            watchers.heard("")
        for dispatcher in self.dispatchers.values():
            dispatcher.stop_claiming()
        for peer in list(self.peers):
            peer.session.drain()
            peer.leave()
            peer.kick()
        for peer in self.kept:
            peer.is_over.set()
        log.info("draining", peers=len(self.peers), grace_s=grace)
        with trio.move_on_after(grace):
            while self.peers:
                await self._peer_left.wait()
        with trio.move_on_after(_ANSWER_S):
            while any(peer.owes_answers and not peer.account.held for peer in self.peers):
                await self._peer_left.wait()  # they leave by themselves when they are answered
        for peer in list(self.peers):
            peer.close(1001, "the server stops")
        with trio.move_on_after(_GIVE_BACK_S):
            while self.peers or self.kept:
                await self._peer_left.wait()
            for dispatcher in list(self.dispatchers.values()):
                await dispatcher.stopped.wait()
            await self.roster.tell_slots()
