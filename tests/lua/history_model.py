"""A plain model of the history: sums of all that was added, by interval; nothing packed, no rings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from fairq.model.history import OTHERS, STEPS

from .calls import Queue

TENANTS, EARLIER = 20, 3  # rows of an interval beside that of the others; intervals in which tenants are looked for
SERVICE, SMALLEST = ("done", "delivered", "entitled"), 0.001
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

    def fold(self) -> None:
        """Keep the tenants that got the most."""
        named = [name for name in self.rows if name != OTHERS]
        named.sort(key=lambda name: (-self.rows[name].service["delivered"], -self.rows[name].sums["started"], name))
        for name in named[TENANTS:]:
            self.rows.setdefault(OTHERS, Counted()).add(self.rows.pop(name))


@dataclass
class HistoryModel:
    """What a queue's history must say: `intervals[step][number]`."""

    queue: Queue
    intervals: dict[int, dict[int, Interval]] = field(default_factory=lambda: {step: {} for step, _ in STEPS.values()})
    totals: Counter[str] = field(default_factory=Counter)
    whole: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SERVICE, 0.0))
    seen: dict[str, dict[str, float]] = field(default_factory=dict)  # what tenants had when they were looked at
    known: set[str] = field(default_factory=set)  # tenants at the last call

    def add(self, rows: Mapping[str, Counted], lost: int) -> None:
        """Add what a server has counted, and what the queue itself says."""
        state, tenants = self.queue.queue_state(), self.queue.tenants()
        had = {name: {what: float(getattr(share, what)) for what in SERVICE} for name, share in tenants.items()}
        new = Counter({name: int(state[told]) for name, told in TOTALS.items()})
        growth = new - self.totals + Counter(lost=lost)
        added = {name: Counted(row.sums.copy(), defaultdict(float), row.waits.copy()) for name, row in rows.items()}
        whole = {what: sum(each[what] for each in had.values()) for what in SERVICE}
        left = _grown(self.whole, whole)
        looked_at = self._looked_at(added) & tenants.keys()
        grown = {name: _grown(self._last(name, had[name]), had[name]) for name in looked_at}
        for name in sorted(grown, key=lambda each: (grown[each]["delivered"], each)):
            _tell(added, name, grown[name], left)
        _tell(added, OTHERS, dict(left), left)
        self.totals, self.whole, self.known = new, whole, set(tenants)
        self.seen.update((name, had[name]) for name in looked_at)
        for step, intervals in self.intervals.items():
            interval = intervals.setdefault(self.queue.now // 1000 // step, Interval())
            interval.totals.update(growth)
            for name, row in added.items():
                interval.rows.setdefault(name, Counted()).add(row)
            interval.fold()

    def _looked_at(self, added: Mapping[str, Counted]) -> set[str]:
        newest = self.queue.now // 1000 // 10
        last = [self.intervals[10][newest - n].rows for n in range(EARLIER + 1) if newest - n in self.intervals[10]]
        return {name for rows in (added, *last) for name in rows} - {OTHERS}

    def _last(self, name: str, now: dict[str, float]) -> dict[str, float]:
        return self.seen.get(name) or (now if name in self.known else dict.fromkeys(SERVICE, 0.0))


def _grown(last: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    return {what: max(now[what] - last[what], 0.0) for what in SERVICE}


def _tell(added: dict[str, Counted], name: str, growth: Mapping[str, float], left: dict[str, float]) -> None:
    if growth["done"] == 0 and max(growth.values()) < SMALLEST:
        return
    row = added.setdefault(name, Counted())
    for what in SERVICE:
        told = min(growth[what], left[what])
        left[what] -= told
        row.service[what] += told
    row.sums["done"] += round(row.service.pop("done"))
