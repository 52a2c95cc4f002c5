"""A plain model of the history: sums of all that was added, by interval; nothing packed, no rings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from fairq.model.history import OTHERS, STEPS

from .calls import Queue, Share

TENANTS, EARLIER = 20, 3  # rows of an interval beside that of the others; intervals in which tenants are looked for
SERVICE, SMALLEST = ("delivered", "entitled", "done"), 0.001
TOTALS = {"enqueued": "enqueued", "done": "done", "dead": "buried", "expired": "expired", "cancelled": "cancelled"}


@dataclass
class Counted:
    """A row: counts and service by name, waiting times by bucket."""

    sums: Counter[str] = field(default_factory=Counter)
    service: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    waits: Counter[int] = field(default_factory=Counter)

    def add(self, more: Counted) -> None:
        """Add a row."""
        self.sums.update(more.sums)
        self.waits.update(more.waits)
        for name, value in more.service.items():
            self.service[name] += value


@dataclass
class Interval:
    """What happened in an interval."""

    totals: Counter[str] = field(default_factory=Counter)
    rows: dict[str, Counted] = field(default_factory=dict)

    def fold(self, one: float) -> bool:
        """Keep the tenants with the most traffic; return whether there were others."""
        named = [name for name in self.rows if name != OTHERS]
        named.sort(key=lambda name: (-self._traffic(name, one), name))
        for name in named[TENANTS:]:
            self.rows.setdefault(OTHERS, Counted()).add(self.rows.pop(name))
        return len(named) > TENANTS

    def _traffic(self, name: str, one: float) -> float:
        return max(self.rows[name].sums["started"], self.rows[name].service["delivered"] / one)


@dataclass
class HistoryModel:
    """What a queue's history must say: `intervals[step][number]`."""

    queue: Queue
    intervals: dict[int, dict[int, Interval]] = field(default_factory=lambda: {step: {} for step, _ in STEPS.values()})
    totals: Counter[str] = field(default_factory=Counter)
    books: dict[str, tuple[int, Share]] = field(default_factory=dict)  # and the call that looked at them
    known: set[str] = field(default_factory=set)  # tenants at the last call
    calls: int = 0
    blurred: int = 0  # the last call in which somebody had no row
    told: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # service, by all rows

    def add(self, rows: Mapping[str, Counted], lost: int) -> None:
        """Add what a server has counted, and what the queue itself says."""
        state, tenants = self.queue.queue_state(), self.queue.tenants()
        one = 1.0 if state["share"] else max(state["estimate"], 1.0)
        new = Counter({name: int(state[told]) for name, told in TOTALS.items()})
        growth = new - self.totals + Counter(lost=lost)
        added = {name: Counted(row.sums.copy(), defaultdict(float), row.waits.copy()) for name, row in rows.items()}
        self.calls += 1
        for name in self._looked_at(added) & tenants.keys():
            self._grow(added, name, tenants[name])
        whole = {what: sum(getattr(share, what) for share in tenants.values()) for what in SERVICE}
        self._tell(added, OTHERS, {what: whole[what] - self.told[what] for what in SERVICE})
        is_blurred = OTHERS in added
        self.totals, self.known = new, set(tenants)
        for step, intervals in self.intervals.items():
            interval = intervals.setdefault(self.queue.now // 1000 // step, Interval())
            interval.totals.update(growth)
            for name, row in added.items():
                interval.rows.setdefault(name, Counted()).add(row)
            is_blurred |= interval.fold(one) and step == 10
        if is_blurred:
            self.blurred = self.calls

    def _looked_at(self, added: Mapping[str, Counted]) -> set[str]:
        newest = self.queue.now // 1000 // 10
        last = [self.intervals[10][newest - n].rows for n in range(EARLIER + 1) if newest - n in self.intervals[10]]
        return {name for rows in (added, *last) for name in rows} - {OTHERS}

    def _grow(self, added: dict[str, Counted], name: str, share: Share) -> None:
        call, last = self.books.get(name, (0 if name in self.known else self.calls, None))
        self.books[name] = (self.calls, share)
        if call >= max(self.blurred, 1):
            before = {what: getattr(last, what) if last else 0 for what in SERVICE}
            self._tell(added, name, {what: getattr(share, what) - before[what] for what in SERVICE})

    def _tell(self, added: dict[str, Counted], name: str, growth: Mapping[str, float]) -> None:
        growth = {what: more if more >= SMALLEST else 0 for what, more in growth.items()}
        if any(growth.values()):
            row = added.setdefault(name, Counted())
            row.sums["done"] += int(growth["done"])
            for what in ("delivered", "entitled"):
                row.service[what] += growth[what]
            for what, more in growth.items():
                self.told[what] += more
