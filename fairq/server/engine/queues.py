"""The queues that a server serves: a dispatcher for each that has workers here, long polls for each that is waited for.

A queue with partitions has a dispatcher for each of its places, between which its workers are shared. A server listens
to the channels of a queue as long as it has either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain

import structlog
import trio
from attrs import define, field

from fairq.errors import FairqError
from fairq.io.scopes import run_all
from fairq.io.turns import turn_time
from fairq.model.checks import owner_of
from fairq.model.places import queue_of
from fairq.server.engine.dispatch.capacity import Pool
from fairq.server.engine.dispatch.dispatcher import Dispatcher
from fairq.server.engine.dispatch.queue_accounts import QueueAccounts
from fairq.server.engine.dispatch.worker_account import Terms
from fairq.server.engine.long_poll import LongPolls
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.net.server_slots import Offer, PoolSize, ServerSlots, offers_of
from fairq.server.engine.timers.ticker import Ticker
from fairq.store import keys
from fairq.store.covered import Covered
from fairq.store.partitions import Places, place_in
from fairq.store.store import Store

log = structlog.get_logger("fairq.server")

MAX_UNMADE = 100  # queues of one tenant or token that it waits for before they exist
LATER_MS = 250  # after which servers that were not notified first look too
_FORGET_S = 30.0  # between checks for queues without workers and waiting requests


@define(eq=False)
class Queues:
    """The dispatchers of one server, by place, and its long polls, by queue. `server`: its name."""

    server: str
    store: Store
    nursery: trio.Nursery
    elsewhere: ServerSlots
    ticker: Ticker = field(init=False)
    dispatchers: dict[str, Dispatcher] = field(factory=dict, init=False)
    long_polls: dict[str, LongPolls] = field(factory=dict, init=False)
    accounts: QueueAccounts = field(factory=QueueAccounts, init=False)
    _joined: dict[Connection, Places] = field(factory=dict, init=False)  # the workers, with the places that they serve
    _pools: dict[Places, Pool] = field(factory=dict, init=False)  # by their places, in order of name
    _unmade: defaultdict[Hashable, set[str]] = field(factory=lambda: defaultdict(set), init=False)  # by tenant or token
    _channels: dict[str, str] = field(factory=dict, init=False)  # channels that this server listens to -> their places

    def __attrs_post_init__(self) -> None:
        self.ticker = Ticker(self.store, self.notify, self.server)
        self.store.registry.on_places = self._on_places
        self.store.on_woken = self._on_woken

    async def run(self) -> None:
        """Stop listening to queues without waiting requests and without workers, again and again."""
        while True:
            await trio.sleep(_FORGET_S)
            for queue, long_polls in list(self.long_polls.items()):
                if long_polls.is_idle:
                    del self.long_polls[queue]
            for channel, place in list(self._channels.items()):
                if queue_of(place) not in self.long_polls and place not in self.dispatchers:
                    del self._channels[channel]
                    await self.store.subscription.remove(channel)
            for client, unmade in list(self._unmade.items()):
                unmade.intersection_update(self.long_polls)
                if not unmade:
                    del self._unmade[client]

    def on_message(self, channel: str, message: str) -> None:
        """Handle a message of a queue's channel; an empty channel means that any message may have been missed."""
        places = self._channels.values() if not channel else filter(None, [self._channels.get(channel)])
        for place in list(places):
            dispatcher, queue = self.dispatchers.get(place), queue_of(place)
            if message.startswith(keys.STOP):
                id = message.removeprefix(keys.STOP)
                self.store.attempts.stopping(queue, id)
                if dispatcher:
                    dispatcher.claims.stop_task(id)
            elif dispatcher and (not message or message.startswith(keys.READY)):
                ready, _, weight = message.partition("/")
                if weight:
                    dispatcher.weigh(int(weight))
                self._may_have_tasks(place, ready.removeprefix(keys.READY).strip())
            if long_polls := self.long_polls.get(queue):
                long_polls.on_message(message)

    def _listen(self, place: str) -> None:
        """Listen to the channel of a place from now on."""
        channel = keys.ready_channel(place)
        if channel not in self._channels:
            self._channels[channel] = place
            self.nursery.start_soon(self.store.subscription.add, channel)  # the caller may be cancelled

    async def long_polls_of(self, queue: str, client: Hashable) -> LongPolls:
        """Return the long polls of a queue, listening to its channel from now on.

        For each tenant or token the server listens to MAX_UNMADE queues that do not exist. Requests that wait for
        further ones read every POLL_S.
        """
        if queue not in self.long_polls:
            if not await self.store.registry.exists(queue):
                unmade = self._unmade[client]
                unmade.difference_update(self.store.registry.known)
                if len(unmade) >= MAX_UNMADE and queue not in unmade:
                    return LongPolls()
                unmade.add(queue)
            self.long_polls.setdefault(queue, LongPolls())
            for place in self.store.registry.places_known(queue):
                self._listen(place)
        return self.long_polls[queue]

    def forget(self, queue: str) -> None:
        """Forget a queue that is being deleted; its workers stay attached, and get no tasks."""
        places = [place for place in self.dispatchers if queue_of(place) == queue]
        for place in places or [queue]:
            self.ticker.forget(place)
            if place in self.dispatchers:
                self.dispatchers[place].forget()
        self._rejoin(queue, self.store.registry.places_known(queue))  # it may be made anew with one partition
        for place in places:
            if not (dispatcher := self.dispatchers[place]).capacity.workers:
                dispatcher.stop_claiming()
                del self.dispatchers[place]
        if long_polls := self.long_polls.get(queue):
            long_polls.on_message("")
            if long_polls.is_idle:
                del self.long_polls[queue]

    def dispatchers_of(self, queue: str) -> list[Dispatcher]:
        """Return the dispatchers of a queue's places."""
        places = self.store.registry.places_known(queue)
        return [self.dispatchers[place] for place in places if place in self.dispatchers]

    def notify(self, place: str) -> None:
        """Wake the dispatcher of a place: there may be ready tasks."""
        if place in self.dispatchers:
            self.dispatchers[place].notify()

    def promise_claim(self, queue: str, tenant: str, tasks: int) -> str | Covered:
        """Return which servers the store notifies of a tenant's tasks that are about to be enqueued.

        A `Covered` (store/covered.py) if a claim is promised to them: no server is. Else `wake <server>` or `all`.
        """
        registry = self.store.registry
        places = () if queue in registry.making else registry.known.get(queue, ())
        place = place_in(places, tenant) if len(places) > 1 else queue
        dispatcher = self.dispatchers.get(place)
        if dispatcher and places and (covered := dispatcher.promise_claim(tasks)):
            return covered
        server = self.server if dispatcher and dispatcher.has_room else self.elsewhere.choose(queue, tasks)
        return f"wake {server}" if server else "all"

    async def wait_empty(self, queue: str) -> bool:
        """Wait for a claim of each place that finds fewer tasks than there is room for; False if it takes too long."""
        found: list[bool] = []

        async def look(dispatcher: Dispatcher) -> None:
            found.append(await dispatcher.wait_empty())

        await run_all(*(partial(look, each) for each in self.dispatchers_of(queue)))
        return all(found)

    def _on_woken(self, place: str, weight: int) -> None:
        """Serve a partition out of turn: a call of this server's had a tenant begin to wait in it."""
        if dispatcher := self.dispatchers.get(place):
            dispatcher.weigh(weight)
            dispatcher.serve_soon()

    def _may_have_tasks(self, place: str, server: str) -> None:
        """Claim if this server is the one to claim first, or none is (empty); otherwise look a little later."""
        if not server:
            self.dispatchers[place].notify()
        elif server != self.server:
            self.ticker.tick_within(place, LATER_MS)
        elif not self.dispatchers[place].claim_first():
            self.nursery.start_soon(self.dispatchers[place].claims.pass_on)

    def join(self, connection: Connection) -> None:
        """Start to give tasks of its queues to a worker."""
        self._serve(connection)
        for queue in connection.queues:
            if queue not in self.store.registry.known:
                self.nursery.start_soon(self._learn, queue)

    def _serve(self, connection: Connection) -> None:
        """Give a worker tasks of the places of its queues, as far as this server knows."""
        places = tuple(sorted(chain(*map(self.store.registry.places_known, connection.queues))))
        self._joined[connection] = places
        for place in places:
            if place not in self.dispatchers:
                dispatcher = self.dispatchers[place] = Dispatcher(
                    place, self.store, self.ticker, self.server, self.elsewhere.whole, self.accounts
                )
                self._listen(place)
                self.nursery.start_soon(dispatcher.run)
        if len(places) == 1:
            self.dispatchers[places[0]].join(connection)
        else:
            self._share(connection, places)
        for place in places:
            self.ticker.tick_within(place, 0)

    def _share(self, connection: Connection, places: Places) -> None:
        """Start to give tasks of several places to a worker, and to charge the places for them."""
        pool = self._pools.get(places)
        if pool is None:
            pool = self._pools[places] = Pool(places, self.accounts)
            self.accounts.join(places)
            for place in places:
                self.dispatchers[place].share(pool)
        connection.pool = pool
        pool.join(connection)
        connection.account.charge_to(self._charge)
        self._wake_waiting(pool, connection)
        for place in places:
            self.dispatchers[place].notify()

    def _wake_waiting(self, pool: Pool, connection: Connection) -> None:
        """Offer a worker of several places to tasks that wait to run alone."""
        if not connection.account.held:
            for place in pool.places:
                self.dispatchers[place].alone.offer(connection)

    def _charge(self, terms: Terms, leases: int) -> None:
        is_guaranteed = terms.is_guaranteed
        self.accounts.charge(terms.place, leases, terms.began_at, turn_time(), is_guaranteed=is_guaranteed)

    def place_of(self, queue: str, id: str) -> str:
        """Return where a task is, as far as this server knows."""
        return place_in(self.store.registry.places_known(queue), owner_of(id))

    def by_place(self, queue: str, ids: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Group tasks by where they are, as far as this server knows."""
        places, found = self.store.registry.places_known(queue), defaultdict[str, list[str]](list)
        if len(places) == 1:
            return {queue: ids}
        for id in ids:
            found[place_in(places, owner_of(id))].append(id)
        return found

    async def _learn(self, queue: str) -> None:
        """Learn the places of a queue that this server does not know; the ticker does so as well, later."""
        with suppress(FairqError):
            await self.store.registry.places(queue)

    def _on_places(self, queue: str, places: Places) -> None:
        """Have the workers of a queue, and the requests that wait for it, hear of its places."""
        self._rejoin(queue, places)
        if queue in self.long_polls:
            for place in places:
                self._listen(place)

    def _rejoin(self, queue: str, places: Places) -> None:
        """Have the workers of a queue serve its places, which are others than were known before."""
        for connection, served in list(self._joined.items()):
            if queue in connection.queues and not set(places) <= set(served):
                self.leave(connection)
                self._serve(connection)

    def leave(self, connection: Connection) -> None:
        """Give no more tasks to a worker."""
        places, pool = self._joined.pop(connection, ()), connection.pool
        for place in places:
            self.dispatchers[place].capacity.unreserve(connection)
        if pool is None:
            for place in places:
                self.dispatchers[place].leave(connection)
            return
        connection.account.charge_to(None)
        pool.leave(connection)
        if not pool.workers:
            del self._pools[places]
            self.accounts.leave(places)
        for place in places:
            self.dispatchers[place].left(pool)
        connection.pool = None

    def credit_changed(self, connection: Connection) -> None:
        """Note that a worker has more (or less) room."""
        if pool := connection.pool:
            pool.changed(connection)
            self._wake_waiting(pool, connection)
            pool.wake()
            return
        for place in self._joined.get(connection, ()):
            if dispatcher := self.dispatchers.get(place):  # None if the queue was deleted, and its last worker has left
                dispatcher.credit_changed(connection)

    def count_slots(self, queue: str) -> int:
        """Count the slots that are attached to a queue, over all servers."""
        here = self.dispatchers_of(queue)
        return here[0].slots if here else self.elsewhere.whole(queue)

    def count_divided_slots(self, queue: str) -> float:
        """Count the tasks of a queue that can run at once, with each worker's slots divided among its queues."""
        return self.elsewhere.divided(queue) + sum(
            connection.account.credit / len(connection.queues) for connection in self._attached(queue)
        )

    def offers(self) -> dict[str, Offer]:
        """Return what the workers of all servers offer to each queue that has any."""
        own = ((place, each.capacity.own) for place, each in self.dispatchers.items() if each.capacity.own.workers)
        here = [((place,), each) for place, each in own] + list(self._pools.items())
        pools = (
            PoolSize(tuple(dict.fromkeys(map(queue_of, places))), len(each.workers), each.offered)
            for places, each in here
        )
        return offers_of(chain(pools, self.elsewhere.pools()))

    def served(self) -> set[str]:
        """Name the queues that workers take tasks of, over all servers."""
        queues = set(map(queue_of, self.dispatchers))
        return {queue for queue in queues if self.is_taken_here(queue)} | self.elsewhere.queues()

    def is_taken_here(self, queue: str) -> bool:
        """True if a worker that is attached to this server takes tasks of a queue."""
        return any(self._attached(queue))

    def _attached(self, queue: str) -> Iterator[Connection]:
        """Yield the workers of this server that are attached to a queue."""
        # All its places have the same ones.
        workers = next((each.capacity.workers for each in self.dispatchers_of(queue)), ())
        yield from (each for each in workers if isinstance(each, Connection) and each.takes_tasks)

    def last_waits(self, queue: str, tenants: Sequence[str]) -> list[list[list[int]]]:
        """Return what each of the tenants' last starts at this server had waited for: ms by cause, in their order."""
        places = self.store.registry.places_known(queue)
        return [self._last_waits(self.dispatchers.get(place_in(places, each)), each) for each in tenants]

    def _last_waits(self, dispatcher: Dispatcher | None, tenant: str) -> list[list[int]]:
        if dispatcher is None:
            return []
        return [list(each.values()) for each in dispatcher.claims.wait_times.parts(tenant, dispatcher.clock.now_ms)]

    def served_last(self, queue: str) -> list[str]:
        """Name tenants of a queue that this server has served, the last one of each place first."""
        return [tenant for each in self.dispatchers_of(queue) for tenant in reversed(each.claims.wait_times.tenants)]

    def stop_claiming(self) -> None:
        """Answer all requests that wait, and claim nothing more."""
        for long_polls in self.long_polls.values():
            long_polls.on_message("")
        for dispatcher in self.dispatchers.values():
            dispatcher.stop_claiming()

    async def stopped(self) -> None:
        """Wait until no dispatcher runs any more."""
        for dispatcher in list(self.dispatchers.values()):
            await dispatcher.stopped.wait()
