"""The shares of the last two minutes, second by second: what a page shows of a weight that was just changed.

While somebody looks at a queue, its tenants' accounts are read each second, of at most MAX_TENANTS tenants, once for
all who look; IDLE_S after the last look that ends. The minutes before the first look come from the queue's history, in
intervals of ten seconds.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress

import trio
from attrs import define, field, frozen

from fairq.errors import FairqError
from fairq.model.fairness import NOTHING, Share, shares
from fairq.model.history import STEPS
from fairq.model.tenants import TenantState
from fairq.server.app import App
from fairq.store.overview import some_tenants
from fairq.store.queue_calls import HistoryPage

MAX_TENANTS, MAX_QUEUES, MAX_MARKS = 200, 20, 20
STEP_S, KEPT_S, IDLE_S = 1.0, 120, 5.0
PAST_STEP_S = STEPS["1h"][0]
COLORS = 8  # of tenants, in fairq.css
_WINDOW = 10  # samples of which a share is told, so that it does not jump with each task
_SLACK = 0.05  # by which a share must be larger for its row to move up: rows stay where somebody is about to press


@frozen
class Sample:
    """The accounts of a moment: tenant -> service delivered and entitled so far."""

    at_s: float  # of the wall clock, for a chart's axis
    accounts: Mapping[str, tuple[float, float]]


@frozen
class Past:
    """An interval before the first sample: tenant -> service delivered and entitled in it."""

    end_s: float
    service: Mapping[str, tuple[float, float]]


@frozen
class Mark:
    """A weight that was changed."""

    at_s: float
    text: str


@define(eq=False)
class Watched:
    """The samples of one queue."""

    samples: deque[Sample] = field(factory=lambda: deque(maxlen=KEPT_S + _WINDOW))
    past: list[Past] = field(factory=list)
    tenants: list[TenantState] = field(factory=list)
    marks: deque[Mark] = field(factory=lambda: deque(maxlen=MAX_MARKS))
    total: int = 0  # of the queue's tenants, the ones that are not told too
    looked_at: float = field(factory=trio.current_time)
    sampled: trio.Event = field(factory=trio.Event)
    _colors: dict[str, int] = field(factory=dict)
    _order: list[str] = field(factory=list, init=False)  # of the rows that were shown last

    def color(self, tenant: str) -> int:
        """Return the number of a tenant's color: the first ones that are shown have different ones."""
        if len(self._colors) > MAX_TENANTS:
            self._colors.clear()
        return self._colors.setdefault(tenant, len(self._colors)) % COLORS

    def in_calm_order(self, tenants: Iterable[str]) -> list[str]:
        """Return tenants in their last order; a tenant whose share is clearly larger moves up."""
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

    def shares(self, now: int = -1) -> dict[str, Share]:
        """Return the parts that tenants were given and entitled to in the seconds up to a sample."""
        if len(self.samples) < 2:
            return {}
        end = now % len(self.samples)
        first, last = self.samples[max(0, end - _WINDOW)].accounts, self.samples[end].accounts
        gained = {
            tenant: (max(0.0, given - first[tenant][0]), max(0.0, due - first[tenant][1]))
            for tenant, (given, due) in last.items()
            if tenant in first
        }
        return shares(gained)

    def series(self, tenants: Iterable[str]) -> dict[str, tuple[list[float | None], list[float | None]]]:
        """Return the parts of some tenants at each of `times_s`."""
        rows = [shares(each.service) for each in self._shown_past()]
        rows += [self.shares(at) for at in range(1, len(self.samples))]
        found = {each: [row.get(each, NOTHING) for row in rows] for each in tenants}
        return {each: ([part.delivered for part in of], [part.entitled for part in of]) for each, of in found.items()}

    def times_s(self) -> list[float]:
        """Return when the intervals of `series` end."""
        return [each.end_s for each in self._shown_past()] + [each.at_s for each in self.samples][1:]

    def behind(self, state: TenantState) -> float:
        """Return the service that a tenant was entitled to and not given in the last KEPT_S."""
        then = self.samples[0].accounts.get(state.tenant) if self.samples else None
        given, due = then or (state.delivered, state.entitled)
        before = sum(
            due - given for given, due in (each.service.get(state.tenant, (0, 0)) for each in self._shown_past())
        )
        return (state.entitled - due) - (state.delivered - given) + before

    def _shown_past(self) -> list[Past]:
        since = self.samples[-1].at_s - KEPT_S if self.samples else 0.0
        return [each for each in self.past if each.end_s > since]


def past_of(told: HistoryPage, before_s: float) -> list[Past]:
    """Return the intervals of a history that ended before a time."""
    return [
        Past(end_s, {row.tenant: (row.delivered / told.unit, row.entitled / told.unit) for row in slot.rows})
        for slot in told.slots
        if (end_s := (slot.number + 1) * PAST_STEP_S) < before_s
    ]


@define(eq=False)
class Recent:
    """The queues that somebody is looking at."""

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
                if len(watched.samples) == 1:
                    told = await self.app.store.history(queue, PAST_STEP_S, -1, KEPT_S // PAST_STEP_S + 1)
                    watched.past = past_of(told, watched.samples[0].at_s)
            watched.sampled.set()
            await trio.sleep_until(until)
        if self._watched.get(queue) is watched:
            del self._watched[queue]

    async def _sample(self, queue: str, watched: Watched) -> None:
        watched.total, names = await some_tenants(self.app.store, queue, MAX_TENANTS)
        if watched.total > MAX_TENANTS:  # those that this server served last come first
            dispatcher = self.app.queues.dispatchers.get(queue)
            served = dispatcher.wait_times.tenants[::-1] if dispatcher else []
            names = list(dict.fromkeys([*served, *names]))[:MAX_TENANTS]
        tenants = await self.app.store.tenants(queue, names) if names else []
        weights = {row.tenant: row.weight for row in watched.tenants}
        for row in tenants:
            if (previous := weights.get(row.tenant, row.weight)) != row.weight:
                watched.marks.append(Mark(time.time(), f"{row.tenant} {previous:g} → {row.weight:g}"))
        watched.tenants = tenants
        accounts = {row.tenant: (row.delivered, row.entitled) for row in watched.tenants}
        watched.samples.append(Sample(time.time(), accounts))
