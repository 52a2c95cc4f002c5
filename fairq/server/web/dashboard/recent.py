"""The shares of the last two minutes, second by second: what a page shows of a weight that was just changed.

History in the store has intervals of ten seconds. While somebody looks at a queue, its tenants' accounts are read each
second, of at most MAX_TENANTS tenants, once for all who look; IDLE_S after the last look that ends.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress

import trio
from attrs import define, field, frozen

from fairq.errors import FairqError
from fairq.model.tenants import TenantState
from fairq.server.app import App
from fairq.store.overview import some_tenants

MAX_TENANTS, MAX_QUEUES, MAX_MARKS = 200, 20, 20
STEP_S, KEPT_S, IDLE_S = 1.0, 120, 5.0
COLORS = 8  # of tenants, in fairq.css
_WINDOW = 10  # samples of which a share is told, so that it does not jump with each task
_SLACK = 0.05  # by which a share must be larger for its row to move up: rows stay where somebody is about to press


@frozen
class Sample:
    """The accounts of a moment: tenant -> service delivered and entitled so far."""

    at_s: float  # of the wall clock, for a chart's axis
    accounts: Mapping[str, tuple[float, float]]


@frozen
class Mark:
    """A weight that was changed."""

    at_s: float
    text: str


@define(eq=False)
class Watched:
    """The samples of one queue."""

    samples: deque[Sample] = field(factory=lambda: deque(maxlen=KEPT_S + _WINDOW))
    tenants: list[TenantState] = field(factory=list)
    marks: deque[Mark] = field(factory=lambda: deque(maxlen=MAX_MARKS))
    total: int = 0  # of the queue's tenants, the ones that are not told too
    looked_at: float = field(factory=trio.current_time)
    sampled: trio.Event = field(factory=trio.Event)
    _colors: dict[str, int] = field(factory=dict, init=False)
    _order: list[str] = field(factory=list, init=False)  # of the rows that were shown last

    def color(self, tenant: str) -> int:
        """Return the number of a tenant's color: the first ones that are shown have different ones."""
        if len(self._colors) > MAX_TENANTS:
            self._colors.clear()
        return self._colors.setdefault(tenant, len(self._colors)) % COLORS

    def in_calm_order(self, tenants: Iterable[str]) -> list[str]:
        """Return tenants in their last order; a tenant whose share is clearly larger moves up."""
        shares, last = self.shares(), {tenant: at for at, tenant in enumerate(self._order)}
        order: list[str] = []
        for tenant in sorted(tenants, key=lambda each: last.get(each, len(last))):
            at, share = len(order), shares.get(tenant, (0.0, 0.0))[0]
            while at and share > shares.get(order[at - 1], (0.0, 0.0))[0] + _SLACK:
                at -= 1
            order.insert(at, tenant)
        self._order = order
        return order

    def shares(self, now: int = -1) -> dict[str, tuple[float, float]]:
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
        given, due = (sum(column) for column in zip(*gained.values(), strict=True)) if gained else (0.0, 0.0)
        return {tenant: (a / given if given else 0.0, b / due if due else 0.0) for tenant, (a, b) in gained.items()}

    def series(self, tenants: Iterable[str]) -> dict[str, tuple[list[float | None], list[float | None]]]:
        """Return the parts of some tenants at each sample but the first."""
        rows = [self.shares(at) for at in range(1, len(self.samples))]
        none = (None, None)
        return {
            each: ([row.get(each, none)[0] for row in rows], [row.get(each, none)[1] for row in rows])
            for each in tenants
        }

    def times_s(self) -> list[float]:
        """Return the times of the samples of `series`."""
        return [each.at_s for each in self.samples][1:]


@define(eq=False)
class Recent:
    """The queues that somebody is looking at."""

    app: App
    nursery: trio.Nursery
    _watched: dict[str, Watched] = field(factory=dict, init=False)

    async def look(self, queue: str) -> Watched:
        """Return the samples of a queue, at least the first one, and keep taking them for a while."""
        watched = self._watched.get(queue)
        if watched is None:
            if len(self._watched) >= MAX_QUEUES:
                del self._watched[min(self._watched, key=lambda name: self._watched[name].looked_at)]
            watched = self._watched[queue] = Watched()
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
