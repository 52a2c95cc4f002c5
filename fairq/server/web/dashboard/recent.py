"""The shares of the last two minutes, second by second: what a page shows of a weight that was just changed.

While a page shows a queue, its tenants' accounts are read each second, of at most MAX_TENANTS tenants, once for
all who look; IDLE_S after the last look that ends. The minutes before the first look come from the queue's history, in
intervals of ten seconds. Servers add to it every ten seconds, so what they have not added yet is added first. A tenant
that was given anything in these two minutes is shown until they are over.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

import trio
from attrs import define, field, frozen

from fairq.errors import FairqError
from fairq.model.fairness import NOTHING, Service, Share, added, shares, split_service
from fairq.model.history import OTHERS, STEPS
from fairq.model.tenants import TenantState
from fairq.server.engine.app import App
from fairq.store.counts import MAX_ADDED, QueueCounts, TenantCounts
from fairq.store.overview import some_tenants
from fairq.store.queue_calls import HistoryPage

MAX_TENANTS, MAX_QUEUES, MAX_MARKS = 200, 20, 20
STEP_S, KEPT_S, IDLE_S = 1.0, 120, 5.0
PAST_STEP_S = STEPS["1h"][0]
COLORS = 8  # of tenants, in fairq.css
_WINDOW = 10  # samples in a share's average, so that it does not jump with each task
_SLACK = 0.05  # by which a share must be larger for its row to move up: rows stay where an operator is about to press


@frozen
class Interval:
    """The service of tenants until a time, since the previous interval."""

    end_s: float  # of the wall clock, for a chart's axis
    service: Mapping[str, Service]


@frozen
class Mark:
    """A weight that was changed."""

    at_s: float
    text: str


@define(eq=False)
class Watched:
    """The last KEPT_S of one queue: intervals of its history, then, while a page shows it, one for each second."""

    past: list[Interval] = field(factory=list)
    seconds: deque[Interval] = field(factory=lambda: deque(maxlen=KEPT_S))
    tenants: list[TenantState] = field(factory=list)  # as they were sampled last
    marks: deque[Mark] = field(factory=lambda: deque(maxlen=MAX_MARKS))
    total: int = 0  # of all tenants of the queue, also those not shown
    looked_at: float = field(factory=trio.current_time)
    sampled: trio.Event = field(factory=trio.Event)
    _colors: dict[str, int] = field(factory=dict)
    _order: list[str] = field(factory=list, init=False)  # of the rows that were shown last
    _sampled_s: float = field(default=0.0, init=False)  # when; 0: never

    def color(self, tenant: str) -> int:
        """Return the number of a tenant's color: the first ones that are shown have different ones."""
        if len(self._colors) > MAX_TENANTS:
            self._colors.clear()
        return self._colors.setdefault(tenant, len(self._colors)) % COLORS

    def in_calm_order(self, tenants: Iterable[str]) -> list[str]:
        """Return tenants in their last order; a tenant with a clearly larger share moves up."""
        given = {tenant: share.delivered or 0.0 for tenant, share in self.shares().items()}
        last = {tenant: at for at, tenant in enumerate(self._order)}
        order: list[str] = []
        for tenant in sorted(tenants, key=lambda each: last.get(each, len(last))):
            at, share = len(order), given.get(tenant, 0.0)
            while at and share > given.get(order[at - 1], 0.0) + _SLACK:
                at -= 1
            order.insert(at, tenant)
        self._order = order
        return order

    def sample(self, at_s: float, tenants: list[TenantState], total: int) -> None:
        """Add the service of tenants since the last sample.

        A tenant that is not known from then is new, and began at nothing; or, if not all were sampled, unknown.
        """
        known = {each.tenant: (each.delivered, each.entitled) for each in self.tenants}
        is_whole = self.total <= len(self.tenants) and total <= len(tenants)
        if self._sampled_s:
            gained = {}
            for each in tenants:
                now = each.delivered, each.entitled
                given, due = known.get(each.tenant, (0.0, 0.0) if is_whole else now)
                gained[each.tenant] = max(0.0, now[0] - given), max(0.0, now[1] - due)
            self.seconds.append(Interval(at_s, split_service(gained)))
        self.tenants, self.total, self._sampled_s = tenants, total, at_s

    def shares(self) -> dict[str, Share]:
        """Return the parts that tenants were given in the last seconds."""
        return shares(_sum(list(self.seconds)[-_WINDOW:]))

    def service(self) -> dict[str, Service]:
        """Return the service of tenants in the last KEPT_S."""
        return _sum(self._intervals())

    def series(self, tenants: Collection[str]) -> dict[str, list[Share]]:
        """Return the parts of some tenants, and of all others as one, at each of `times_s`."""
        past = [Interval(each.end_s, _with_others(each.service, tenants)) for each in self._intervals()]
        first = len(past) - len(self.seconds)
        rows = [shares(each.service) for each in past[:first]]
        rows += [shares(_sum(past[max(first, end - _WINDOW) : end])) for end in range(first + 1, len(past) + 1)]
        names = [*tenants, *([OTHERS] if any(OTHERS in row for row in rows) else [])]
        return {each: [row.get(each, NOTHING) for row in rows] for each in names}

    def times_s(self) -> list[float]:
        """Return when the intervals of `series` end."""
        return [each.end_s for each in self._intervals()]

    def _intervals(self) -> list[Interval]:
        since = self.seconds[-1].end_s - KEPT_S if self.seconds else 0.0
        return [*(each for each in self.past if each.end_s > since), *self.seconds]


def _sum(intervals: Iterable[Interval]) -> dict[str, Service]:
    """Add up the service of tenants."""
    found: dict[str, list[Service]] = {}
    for interval in intervals:
        for tenant, each in interval.service.items():
            found.setdefault(tenant, []).append(each)
    return {tenant: added(of) for tenant, of in found.items()}


def _with_others(service: Mapping[str, Service], named: Collection[str]) -> dict[str, Service]:
    """Return the service of the named tenants, and of all others as one, if there are any."""
    found = {name: service.get(name, Service()) for name in named}
    rest = [each for name, each in service.items() if name not in found]
    return {**found, OTHERS: added(rest)} if rest else found


def past_of(page: HistoryPage, until_s: float) -> list[Interval]:
    """Return the intervals of a history; the last one ends now."""
    return [
        Interval(
            min((slot.number + 1) * PAST_STEP_S, until_s),
            split_service({row.tenant: (row.delivered / page.unit, row.entitled / page.unit) for row in slot.rows}),
        )
        for slot in page.slots
    ]


@define(eq=False)
class Recent:
    """The queues that pages show now."""

    app: App
    nursery: trio.Nursery
    _watched: dict[str, Watched] = field(factory=dict, init=False)
    _colors: dict[str, dict[str, int]] = field(factory=dict, init=False)  # of queues' tenants; they outlast a look

    async def look(self, queue: str) -> Watched:
        """Return the samples of a queue, at least the first one, and keep taking them for a while."""
        watched = self._watched.get(queue)
        if watched is None:
            if len(self._watched) >= MAX_QUEUES:
                del self._watched[min(self._watched, key=lambda name: self._watched[name].looked_at)]
            if queue not in self._colors and len(self._colors) >= MAX_QUEUES:
                del self._colors[next(iter(self._colors))]
            watched = self._watched[queue] = Watched(colors=self._colors.setdefault(queue, {}))
            self.nursery.start_soon(self._follow, queue, watched)
        watched.looked_at = trio.current_time()
        with trio.move_on_after(STEP_S):
            await watched.sampled.wait()
        return watched

    async def _follow(self, queue: str, watched: Watched) -> None:
        while self._watched.get(queue) is watched and trio.current_time() - watched.looked_at < IDLE_S:
            until = trio.current_time() + STEP_S
            with suppress(FairqError):  # the page says itself that the store does not answer
                await self._sample(queue, watched)
                if not watched.seconds:
                    watched.past = await self._past(queue, watched)
            watched.sampled.set()
            await trio.sleep_until(until)
        if self._watched.get(queue) is watched:
            del self._watched[queue]

    async def _past(self, queue: str, watched: Watched) -> list[Interval]:
        """Read the history before the first sample."""
        busiest = sorted(watched.tenants, key=lambda each: (-each.ready - each.leased, -each.delivered))[:MAX_ADDED]
        with suppress(FairqError):  # the store is full
            await self.app.store.add_history(queue, QueueCounts(0, {each.tenant: TenantCounts() for each in busiest}))
        return past_of(await self._history(queue), time.time())

    async def _history(self, queue: str) -> HistoryPage:
        return await self.app.store.history(queue, PAST_STEP_S, -1, KEPT_S // PAST_STEP_S + 1, away={})

    async def _served_last(self, queue: str) -> list[str]:
        """Name tenants by when they were served last: at any server, by the history, and at this one."""
        slots = reversed((await self._history(queue)).slots)
        names = [row.tenant for slot in slots for row in slot.rows if row.tenant != OTHERS]
        return names + self.app.queues.served_last(queue)

    async def _sample(self, queue: str, watched: Watched) -> None:
        total, names = await some_tenants(self.app.store, queue, MAX_TENANTS, {})
        if total > MAX_TENANTS:
            names = list(dict.fromkeys([*await self._served_last(queue), *names]))[:MAX_TENANTS]
        tenants = await self.app.store.tenants(queue, names, away={}) if names else []
        weights = {row.tenant: row.weight for row in watched.tenants}
        for row in tenants:
            if (previous := weights.get(row.tenant, row.weight)) != row.weight:
                watched.marks.append(Mark(time.time(), f"{row.tenant} {previous:g} → {row.weight:g}"))
        watched.sample(time.time(), tenants, total)
