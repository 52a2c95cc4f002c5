"""Delivering links: tasks that acknowledgements enqueue in other queues (lua/39_links.lua).

Any server does it, beside its ticks, which only say that links are due. It takes these, a few of each tenant, enqueues
each under its id, and tells the store what came of it. If it dies in between, the links are due again HOLD_MS later,
and the target knows those that have arrived by their ids.

A queue that does not answer holds up no other: CALLS_PER_TARGET calls wait for it, for DELIVER_S at most, and what
comes then is put off after WAIT_S. A server takes no more while it has MAX_BYTES of links in hand.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence

import structlog
import trio
from attrs import define, field

from fairq.errors import BadRequest, BatchClosed, FairqError, Forbidden, NotFound, TooLarge, Unavailable
from fairq.model.tasks import Fate, StoredLink
from fairq.store.store import Store

log = structlog.get_logger("fairq.server")

AT_ONCE = 100  # links that one call of the store takes, or closes
MAX_BYTES, LINK_BYTES = 1 << 25, 1 << 13  # that a server has in hand, and that a link counts beside its payload
TAKES_AT_ONCE = 16
CALLS_PER_TARGET = 8  # that are under way to one queue
HOLD_MS = 15_000  # a server's time to deliver what it has taken; under the minute for which targets remember ids
WAIT_S = 2.0  # for other calls to the same queue
DELIVER_S = 5.0
_BACKOFF_MS, _BACKOFF_CAP_MS = 1_000, 30_000  # under that minute too: an attempt that failed may have arrived
_NEVER = (BadRequest, TooLarge, BatchClosed, NotFound, Forbidden)  # no later attempt fares better
_LATE = "it would expire before it may start"
_BUSY = "it takes long to answer"

Told = tuple[str, Fate, int, str]


@define(eq=False)
class Deliverer:
    """Delivers the links of all queues. `tick_within(queue, ms)`: something is due there after so long."""

    store: Store
    nursery: trio.Nursery
    tick_within: Callable[[str, float], None]
    _has_more: dict[str, bool] = field(factory=dict, init=False)  # of queues whose links are being taken: see `notify`
    _takes: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(TAKES_AT_ONCE), init=False)
    _bytes: int = field(default=0, init=False)  # of the links in hand
    _some_ended: trio.Event = field(factory=trio.Event, init=False)
    _targets: dict[str, trio.CapacityLimiter] = field(factory=dict, init=False)
    _told: dict[str, list[Told]] = field(factory=dict, init=False)  # by queue: what a call is about to say

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing in hand."""
        return not (self._has_more or self._bytes or self._targets or self._told)

    def notify(self, queue: str) -> None:
        """Note that a queue has links that are due."""
        is_known = queue in self._has_more
        self._has_more[queue] = True
        if not is_known:
            self.nursery.start_soon(self._take_all, queue)

    async def _take_all(self, queue: str) -> None:
        """Take links of a queue, and have them delivered, until none is due."""
        try:
            while self._has_more[queue]:
                self._has_more[queue] = False
                while links := await self._take(queue):
                    self._start(queue, links)
            self.tick_within(queue, 0)  # it says when the next one is due
        except FairqError as error:  # a tick says again that they are due
            log.warning("cannot deliver links", queue=queue, error=error.message)
        finally:
            del self._has_more[queue]

    async def _take(self, queue: str) -> Sequence[StoredLink]:
        async with self._takes:
            while self._bytes >= MAX_BYTES:
                await self._some_ended.wait()
            return await self.store.take_links(queue, AT_ONCE, HOLD_MS)

    def _start(self, queue: str, links: Sequence[StoredLink]) -> None:
        groups: dict[tuple[str, str], list[StoredLink]] = defaultdict(list)
        for link in links:
            groups[link.queue, link.tenant].append(link)
        self._bytes += _size_of(links)
        for some in groups.values():
            self.nursery.start_soon(self._deliver_and_tell, queue, some)

    async def _deliver_and_tell(self, queue: str, links: Sequence[StoredLink]) -> None:
        """Deliver links of one tenant to one queue; what is late is due again by itself."""
        told: list[Told] = []
        try:
            with trio.move_on_after(DELIVER_S):
                await self._deliver(links, told)
            self._note(queue, links, told)
            if told:
                await self._tell(queue, told)
        except FairqError as error:
            log.warning("cannot deliver links", queue=queue, error=error.message)
        finally:
            self._bytes -= _size_of(links)
            self._some_ended.set()
            self._some_ended = trio.Event()

    async def _deliver(self, links: Sequence[StoredLink], told: list[Told]) -> None:
        target = links[0].queue
        calls = self._targets.setdefault(target, trio.CapacityLimiter(CALLS_PER_TARGET))
        try:
            with trio.move_on_after(WAIT_S) as waiting:
                await calls.acquire()
            if waiting.cancelled_caught:
                told += [_later(link, f"queue {target}: {_BUSY}") for link in links]
                return
            try:
                await _deliver(self.store, links, told)
            finally:
                calls.release()
        finally:
            if not (calls.borrowed_tokens or calls.statistics().tasks_waiting):
                self._targets.pop(target, None)

    def _note(self, queue: str, links: Sequence[StoredLink], told: Sequence[Told]) -> None:
        """Have the queues ticked in which something will be due, and log what cannot be delivered."""
        delays = {link.name: link.task.delay_ms for link in links}
        for name, fate, delay_ms, why in told:
            if fate == "delivered":
                self.tick_within(links[0].queue, delays[name])
            elif fate == "later":
                self.tick_within(queue, delay_ms)
            else:
                log.warning("a link cannot be delivered", queue=queue, dead_letter=name, error=why)

    async def _tell(self, queue: str, told: list[Told]) -> None:
        """Tell a queue what came of its links; what comes during one call of the store goes with the next."""
        if queue in self._told:
            self._told[queue] += told
            return
        self._told[queue] = told
        try:
            while told:
                some = told[:AT_ONCE]
                del told[:AT_ONCE]
                await self.store.close_links(queue, some)
        finally:
            del self._told[queue]


def _size_of(links: Sequence[StoredLink]) -> int:
    return sum(LINK_BYTES + len(link.task.payload) for link in links)


async def _deliver(store: Store, links: Sequence[StoredLink], told: list[Told]) -> None:
    """Enqueue links of one tenant to one queue; those that are refused together are tried one by one."""
    fates = await _enqueue(store, links)
    if fates is None:
        for n, link in enumerate(links):
            alone = await _enqueue(store, [link], is_last=True)
            told += alone or ()
            if alone and alone[0][1] == "later":  # there is no room: the others need not ask
                told += [_later(each, alone[0][3]) for each in links[n + 1 :]]
                return
        return
    told += fates


async def _enqueue(store: Store, links: Sequence[StoredLink], *, is_last: bool = False) -> list[Told] | None:
    """Enqueue links; None: some of several are refused."""
    queue, tenant = links[0].queue, links[0].tenant
    try:
        outcomes = await store.enqueue(queue, tenant, [link.task for link in links])
    except FairqError as error:
        if len(links) > 1 and not is_last and not isinstance(error, Unavailable):
            return None
        if isinstance(error, _NEVER):
            return [(link.name, "never", 0, f"queue {queue}: {error.message}") for link in links]
        return [_later(link, f"queue {queue}: {error.message}") for link in links]
    return [_fate(link, outcome) for link, outcome in zip(links, outcomes, strict=True)]


def _fate(link: StoredLink, outcome: str) -> Told:
    if outcome == "expired":
        return link.name, "never", 0, f"queue {link.queue}: {_LATE}"
    return link.name, "delivered", 0, ""


def _later(link: StoredLink, why: str) -> Told:
    longest = min(_BACKOFF_CAP_MS, _BACKOFF_MS * 2 ** min(link.attempts, 10))
    return link.name, "later", round(longest * random.uniform(0.5, 1.0)), why
