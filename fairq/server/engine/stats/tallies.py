"""The counts of this server for each queue since it started: sums that only grow, for /metrics. No I/O.

At most NAMED tenants of a queue have a tally of their own; all others share one. A tenant whose traffic grows replaces
the one with the least. What the shared tally has counted of it stays there, and its own tally begins at 0. The tally of
the replaced tenant ends, and begins at 0 again if the tenant comes back. So each tally only grows, nothing is counted
twice, and the sum of their rates is the queue's.
"""

from __future__ import annotations

from collections import OrderedDict

from attrs import define, field

from fairq.model.history import OTHERS
from fairq.store.counts import QueueCounts, TenantCounts

NAMED, QUEUES = 20, 400  # tenants of a queue; queues: the one without traffic for longest is forgotten
_KEEPS = 0.9  # of a tenant's traffic at each addition: it is that of the last ten
_TIMES = 2.0  # times the traffic of the tenant that it replaces, so that two alike do not take turns


@define(eq=False)
class Tally:
    """The counts of one tenant; `traffic`: recent, per addition."""

    counts: TenantCounts = field(factory=TenantCounts)
    traffic: float = 0.0


@define(eq=False)
class QueueTally:
    """The counts of one queue, by tenant; and its starts, by buckets of waiting time."""

    named: dict[str, Tally] = field(factory=dict)
    others: TenantCounts = field(factory=TenantCounts)
    waits: dict[int, int] = field(factory=dict)

    def add(self, counts: QueueCounts) -> None:
        """Add what happened in a short time."""
        for name, tally in self.named.items():
            now = counts.tenants.get(name)
            tally.traffic = _KEEPS * tally.traffic + (1 - _KEEPS) * (now.traffic if now else 0)
        new = {name: more.traffic for name, more in counts.tenants.items() if name not in self.named and name != OTHERS}
        for name in sorted(new, key=lambda each: -new[each]):
            self._give_place(name, new[name])
        for name, more in counts.tenants.items():
            for bucket, count in more.waits.items():
                self.waits[bucket] = self.waits.get(bucket, 0) + count
            (self.named[name].counts if name in self.named else self.others).add(more)

    def _give_place(self, name: str, traffic: float) -> None:
        if len(self.named) >= NAMED:
            least = min(self.named, key=lambda each: self.named[each].traffic)
            if traffic <= _TIMES * self.named[least].traffic:
                return
            del self.named[least]
        self.named[name] = Tally(traffic=traffic)


@define(eq=False)
class Tallies:
    """The counts of all queues."""

    queues: OrderedDict[str, QueueTally] = field(factory=OrderedDict, init=False)

    def add(self, queue: str, counts: QueueCounts) -> None:
        """Add what happened in a queue in a short time."""
        if queue not in self.queues and len(self.queues) >= QUEUES:
            self.queues.popitem(last=False)
        self.queues.setdefault(queue, QueueTally()).add(counts)
        self.queues.move_to_end(queue)

    def forget(self, queue: str) -> None:
        """Forget a queue that was deleted."""
        self.queues.pop(queue, None)
