"""Counts a server's traffic in each queue, until it adds the counts to the history in the store. No I/O.

Counting costs a task no object of its own: an addition or two when it is enqueued and started, or has failed. A queue
counts at most MAX_TENANTS tenants separately; if there are more, the half with less traffic is added to the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

from attrs import define, field

from fairq.model.checks import owner_of
from fairq.model.history import LAST_BUCKET, OTHERS
from fairq.model.tasks import Lease, Settlement

MAX_TENANTS, MAX_ADDED = 200, 30  # of a queue: counted apart, and added to the history in one call
_FAILURES = frozenset({"nack", "reject"})
_action_of = attrgetter("action")


@define(eq=False)
class TenantCounts:
    """The counts of one tenant: tasks enqueued, attempts started and failed, starts by buckets of waiting time."""

    enqueued: int = 0
    started: int = 0
    failed: int = 0
    waits: dict[int, int] = field(factory=dict)

    @property
    def traffic(self) -> int:
        """How many tasks it has enqueued and attempts were started for it."""
        return self.enqueued + self.started

    def add(self, more: TenantCounts) -> None:
        """Add the counts of another tenant."""
        self.enqueued += more.enqueued
        self.started += more.started
        self.failed += more.failed
        for bucket, count in more.waits.items():
            self.waits[bucket] = self.waits.get(bucket, 0) + count


@define(eq=False)
class QueueCounts:
    """The counts of one queue; `lost`: leases that ran out."""

    lost: int = 0
    tenants: dict[str, TenantCounts] = field(factory=dict)

    def of(self, tenant: str) -> TenantCounts:
        """Return the counts of a tenant."""
        found = self.tenants.get(tenant)
        if found is None:
            if len(self.tenants) >= MAX_TENANTS:
                self.keep(MAX_TENANTS // 2)
            found = self.tenants[tenant] = TenantCounts()
        return found

    def keep(self, most: int) -> None:
        """Count all but the tenants with the most traffic as one."""
        others = self.tenants.pop(OTHERS, TenantCounts())
        named = sorted(self.tenants.items(), key=lambda each: each[1].traffic, reverse=True)
        for _, counts in named[most:]:
            others.add(counts)
        self.tenants = dict(named[:most])
        if others.enqueued or others.started or others.failed:
            self.tenants[OTHERS] = others


def joined(places: Iterable[QueueCounts]) -> QueueCounts:
    """Join the counts of the places of a queue."""
    found = QueueCounts()
    for counts in places:
        found.lost += counts.lost
        for tenant, count in counts.tenants.items():
            found.of(tenant).add(count)
    return found


@define(eq=False)
class Counts:
    """The counts of all queues, by place, each since it was last taken."""

    queues: dict[str, QueueCounts] = field(factory=dict, init=False)

    def of(self, queue: str) -> QueueCounts:
        """Return the counts of a queue; it is added to the history even if they stay empty."""
        found = self.queues.get(queue)
        if found is None:
            found = self.queues[queue] = QueueCounts()
        return found

    def enqueued(self, queue: str, tenant: str, tasks: int) -> None:
        """Count tasks that a tenant has enqueued."""
        if tasks:
            self.of(queue).of(tenant).enqueued += tasks

    def claimed(self, queue: str, now_ms: int, leases: Sequence[Lease]) -> None:
        """Count tasks that start, and how long tasks waited for their first start."""
        of = self.of(queue)
        tenants = of.tenants
        for lease in leases:
            counts = tenants.get(lease.tenant)
            if counts is None:
                counts = of.of(lease.tenant)
                tenants = of.tenants
            counts.started += 1
            if lease.attempt == 1:
                enqueued_at, start_at = lease.enqueued_at_ms, lease.start_at_ms
                wait = now_ms - (start_at if start_at > enqueued_at else enqueued_at)
                bucket = (wait * wait).bit_length() if wait > 0 else 0  # see LAST_BUCKET
                if bucket > LAST_BUCKET:
                    bucket = LAST_BUCKET
                waits = counts.waits
                waits[bucket] = waits.get(bucket, 0) + 1

    def settled(self, queue: str, settlements: Sequence[Settlement], outcomes: Sequence[str]) -> None:
        """Count attempts that failed."""
        of = self.of(queue)
        if _FAILURES.isdisjoint(map(_action_of, settlements)):
            return
        for settlement, outcome in zip(settlements, outcomes, strict=True):
            if settlement.action in _FAILURES and outcome == "ok":
                of.of(owner_of(settlement.id)).failed += 1

    def take(self, queue: str) -> QueueCounts | None:
        """Return the counts of a queue, which begins anew; None if nothing happened."""
        counts = self.queues.pop(queue, None)
        if counts is not None and len(counts.tenants) > MAX_ADDED:
            counts.keep(MAX_ADDED)
        return counts
