"""The queues that a server serves: a dispatcher for each that has workers here, long polls for each that is waited for.

A server listens to the channel of a queue as long as it has either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from itertools import chain

import structlog
import trio
from attrs import define, field

from fairq.io.turns import turn_time
from fairq.server.engine.dispatch.capacity import Pool
from fairq.server.engine.dispatch.dispatcher import Dispatcher
from fairq.server.engine.dispatch.queue_accounts import QueueAccounts
from fairq.server.engine.long_poll import LongPolls
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.net.server_slots import Group, Offer, ServerSlots, offers_of
from fairq.server.engine.timers.ticker import Ticker
from fairq.store import keys
from fairq.store.covered import Covered
from fairq.store.store import Store

log = structlog.get_logger("fairq.server")

MAX_UNMADE = 100  # queues of one tenant or token that it waits for before they exist
LATER_MS = 250  # after which servers that were not notified first look too
_FORGET_S = 30.0  # between checks for queues without workers and waiting requests


@define(eq=False)
class Queues:
    """The dispatchers and long polls of one server, by queue. `server`: its name."""

    server: str
    store: Store
    nursery: trio.Nursery
    elsewhere: ServerSlots
    ticker: Ticker = field(init=False)
    dispatchers: dict[str, Dispatcher] = field(factory=dict, init=False)
    long_polls: dict[str, LongPolls] = field(factory=dict, init=False)
    accounts: QueueAccounts = field(factory=QueueAccounts, init=False)
    _pools: dict[tuple[str, ...], Pool] = field(factory=dict, init=False)  # by their queues, in order of name
    _unmade: defaultdict[Hashable, set[str]] = field(factory=lambda: defaultdict(set), init=False)  # by tenant or token
    _channels: dict[str, str] = field(factory=dict, init=False)  # channels that this server listens to -> their queues

    def __attrs_post_init__(self) -> None:
        self.ticker = Ticker(self.store, self.notify, self.server)

    async def run(self) -> None:
        """Stop listening to queues without waiting requests and without workers, again and again."""
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

    def on_message(self, channel: str, message: str) -> None:
        """Handle a message of a queue's channel; an empty channel means that any message may have been missed."""
        queues = self._channels.values() if not channel else filter(None, [self._channels.get(channel)])
        for queue in list(queues):
            dispatcher = self.dispatchers.get(queue)
            if message.startswith(keys.STOP):
                id = message.removeprefix(keys.STOP)
                self.store.attempts.stopping(queue, id)
                if dispatcher:
                    dispatcher.stop_task(id)
            elif dispatcher and message in ("", keys.READY):
                dispatcher.notify()
            elif dispatcher and message.startswith(keys.READY):
                self._claim_first(queue, message.removeprefix(keys.READY).strip())
            if long_polls := self.long_polls.get(queue):
                long_polls.on_message(message)

    def _listen(self, queue: str) -> None:
        """Listen to a queue's channel from now on."""
        channel = keys.ready_channel(queue)
        if channel not in self._channels:
            self._channels[channel] = queue
            self.nursery.start_soon(self.store.subscription.add, channel)  # the caller may be cancelled

    async def long_polls_of(self, queue: str, whose: Hashable) -> LongPolls:
        """Return the long polls of a queue, listening to its channel from now on.

        Of queues that do not exist the server listens to MAX_UNMADE for each tenant or token, by their names; those
        who wait for others of them read every POLL_S.
        """
        if queue not in self.long_polls:
            if not await self.store.registry.exists(queue):
                unmade = self._unmade[whose]
                unmade.difference_update(self.store.registry.known)
                if len(unmade) >= MAX_UNMADE and queue not in unmade:
                    return LongPolls()
                unmade.add(queue)
            self.long_polls.setdefault(queue, LongPolls())
            self._listen(queue)
        return self.long_polls[queue]

    def forget(self, queue: str) -> None:
        """Forget a queue that is being deleted; its workers stay attached, and get no tasks."""
        self.ticker.forget(queue)
        if dispatcher := self.dispatchers.get(queue):
            dispatcher.forget()
            if not dispatcher.capacity.workers:
                dispatcher.stop_claiming()
                del self.dispatchers[queue]
        if long_polls := self.long_polls.get(queue):
            long_polls.on_message("")
            if long_polls.is_idle:
                del self.long_polls[queue]

    def notify(self, queue: str) -> None:
        """Wake a queue's dispatcher: there may be ready tasks."""
        if queue in self.dispatchers:
            self.dispatchers[queue].notify()

    def cover(self, queue: str, tasks: int) -> str | Covered:
        """Claim tasks that are about to be enqueued, if workers of this server have room for all of them.

        Returns which servers the store notifies: none (`Covered`: they leave with the claim), `wake <server>` or `all`.
        """
        dispatcher = self.dispatchers.get(queue)
        if dispatcher and (covered := dispatcher.cover(tasks)):
            return covered
        server = self.server if dispatcher and dispatcher.has_room else self.elsewhere.choose(queue, tasks)
        return f"wake {server}" if server else "all"

    def _claim_first(self, queue: str, server: str) -> None:
        """Claim if this server is the one to claim first; otherwise look a little later, in case it does not."""
        if server != self.server:
            self.ticker.tick_within(queue, LATER_MS)
        elif not self.dispatchers[queue].claim_first():
            self.nursery.start_soon(self.dispatchers[queue].pass_on)

    def join(self, connection: Connection) -> None:
        """Start to give tasks of its queues to a worker."""
        connection.on_sent = partial(self.credit_changed, connection)
        for queue in connection.queues:
            if queue not in self.dispatchers:
                dispatcher = self.dispatchers[queue] = Dispatcher(
                    queue, self.store, self.ticker, self.server, self.elsewhere.whole, self.accounts
                )
                self._listen(queue)
                self.nursery.start_soon(dispatcher.run)
        if len(connection.queues) == 1:
            self.dispatchers[connection.queues[0]].join(connection)
        else:
            self._share(connection)
        for queue in connection.queues:
            self.ticker.tick_within(queue, 0)

    def _share(self, connection: Connection) -> None:
        """Start to give tasks of several queues to a worker, and to charge the queues for them."""
        queues = tuple(sorted(connection.queues))
        pool = self._pools.get(queues)
        if pool is None:
            pool = self._pools[queues] = Pool(queues, self.accounts)
            self.accounts.join(queues)
            for queue in queues:
                self.dispatchers[queue].share(pool)
        connection.pool = pool
        pool.join(connection)
        connection.account.charge_to(self._charge)
        self._wake_waiting(pool, connection)
        for queue in queues:
            self.dispatchers[queue].notify()

    def _wake_waiting(self, pool: Pool, connection: Connection) -> None:
        """Offer a worker of several queues to tasks that wait to run alone."""
        if not connection.account.held:
            for queue in pool.queues:
                self.dispatchers[queue].wake_waiting(connection)

    def _charge(self, queue: str, leases: int, began_at: float) -> None:
        self.accounts.charge(queue, leases, began_at, turn_time())

    def leave(self, connection: Connection) -> None:
        """Give no more tasks to a worker."""
        pool = connection.pool
        if pool is None:
            for queue in connection.queues:
                self.dispatchers[queue].leave(connection)
            return
        connection.account.charge_to(None)
        pool.leave(connection)
        if not pool.workers:
            del self._pools[tuple(pool.queues)]
            self.accounts.leave(pool.queues)
        for queue in pool.queues:
            self.dispatchers[queue].left(pool)
        connection.pool = None

    def credit_changed(self, connection: Connection) -> None:
        """Note that a worker has more (or less) room."""
        if pool := connection.pool:
            pool.changed(connection)
            self._wake_waiting(pool, connection)
            pool.wake()
            return
        for queue in connection.queues:
            if dispatcher := self.dispatchers.get(queue):  # None if the queue was deleted, and its last worker has left
                dispatcher.credit_changed(connection)

    def count_slots(self, queue: str) -> int:
        """Count the slots that are attached to a queue, over all servers."""
        if queue in self.dispatchers:
            return self.dispatchers[queue].slots
        return self.elsewhere.whole(queue)

    def count_divided_slots(self, queue: str) -> float:
        """Count the tasks of a queue that can run at once, with each worker's slots divided among its queues."""
        return self.elsewhere.divided(queue) + sum(
            connection.account.credit / len(connection.queues) for connection in self._attached(queue)
        )

    def offers(self) -> dict[str, Offer]:
        """Return what the workers of all servers offer to each queue that has any."""
        own = ((queue, each.capacity.own) for queue, each in self.dispatchers.items() if each.capacity.own.workers)
        here = [((queue,), each) for queue, each in own] + list(self._pools.items())
        groups = (Group(queues, len(each.workers), each.offered) for queues, each in here)
        return offers_of(chain(groups, self.elsewhere.groups()))

    def served(self) -> set[str]:
        """Name the queues that workers take tasks of, over all servers."""
        return {queue for queue in self.dispatchers if self.is_taken_here(queue)} | self.elsewhere.queues()

    def is_taken_here(self, queue: str) -> bool:
        """True if a worker that is attached to this server takes tasks of a queue."""
        return any(self._attached(queue))

    def _attached(self, queue: str) -> Iterator[Connection]:
        """Yield the workers of this server that are attached to a queue."""
        workers = self.dispatchers[queue].capacity.workers if queue in self.dispatchers else ()
        yield from (each for each in workers if isinstance(each, Connection) and each.takes_tasks)

    def last_waits(self, queue: str, tenants: Sequence[str]) -> list[list[list[int]]]:
        """Return what each of the tenants' last starts at this server had waited for: ms by cause, in their order."""
        dispatcher = self.dispatchers.get(queue)
        if dispatcher is None:
            return [[] for _ in tenants]
        parts = (dispatcher.wait_times.parts(each, dispatcher.store_now_ms) for each in tenants)
        return [[list(each.values()) for each in of_tenant] for of_tenant in parts]

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
