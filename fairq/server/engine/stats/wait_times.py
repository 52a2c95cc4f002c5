"""The causes of waiting of the tasks that this server started. No I/O.

While tasks are handed out, only the times when they became ready and started are recorded; causes are computed on
request. A task's waiting time is divided as follows. Time for which its tenant (or the queue) was kept out counts for
that cause. Of the rest, time before its tenant's previous start counts as the tenant's own backlog. The remaining time
counts as the share of other tenants.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

from attrs import define, field

from fairq.model.tasks import Lease
from fairq.model.waiting import WAIT_CAUSES, BlockedInterval, Part, Report, WaitCause

MAX_TENANTS, MAX_WAITS, MAX_INTERVALS = 500, 256, 128
PERIOD_MS = 300_000
_JOIN_MS = 100  # intervals of one cause with a shorter gap are joined: a tenant let in starts first
_RANK = {cause: rank for rank, cause in enumerate(WAIT_CAUSES)}


@define(eq=False)
class _Row:
    """A tenant: its last start, its last waiting times (start, ready, previous start), when it was blocked."""

    last: int = 0
    wait_times: deque[tuple[int, int, int]] = field(factory=lambda: deque(maxlen=MAX_WAITS))
    intervals: deque[BlockedInterval] = field(factory=lambda: deque(maxlen=MAX_INTERVALS))


@define(eq=False)
class WaitTimes:
    """The waiting times of one queue: the last starts of the tenants served last, by the store's clock."""

    starts: int = field(default=0, init=False)  # ever
    retries: int = field(default=0, init=False)  # of these, those that were not a task's first
    _rows: OrderedDict[str, _Row] = field(factory=OrderedDict, init=False)
    _intervals: deque[BlockedInterval] = field(factory=lambda: deque(maxlen=MAX_INTERVALS), init=False)
    _no_worker_since: int | None = field(default=0, init=False)
    _blocked: BlockedInterval | None = field(default=None, init=False)  # as the last claim saw it

    @property
    def tenants(self) -> list[str]:
        """Name the tenants that are known, the one that was served last at the end."""
        return list(self._rows)

    def left(self, now_ms: int) -> None:
        """Note that the last worker has left."""
        self._no_worker_since = now_ms

    def claimed(self, now_ms: int, leases: Sequence[Lease], intervals: Sequence[BlockedInterval]) -> None:
        """Record the tasks of a claim, and the times for which tenants were blocked; a worker is attached."""
        if self._no_worker_since is not None or self._blocked or intervals:
            self._add_intervals(now_ms, intervals)
        self.starts += len(leases)
        rows = self._rows
        for lease in leases:
            tenant = lease.tenant
            row = rows.get(tenant)
            if row is None:
                row = self._add(tenant)
            else:
                rows.move_to_end(tenant)
            if lease.attempt == 1:
                enqueued_at, start_at = lease.enqueued_at_ms, lease.start_at_ms
                row.wait_times.append((now_ms, start_at if start_at > enqueued_at else enqueued_at, row.last))
            else:
                self.retries += 1
            row.last = now_ms

    def _add(self, tenant: str) -> _Row:
        if len(self._rows) >= MAX_TENANTS:
            self._rows.popitem(last=False)
        row = self._rows[tenant] = _Row()
        return row

    def _add_intervals(self, now_ms: int, intervals: Sequence[BlockedInterval]) -> None:
        if self._no_worker_since is not None:
            self._intervals.append(BlockedInterval("", "no_worker", self._no_worker_since, now_ms))
            self._no_worker_since = None
        blocked = next((each for each in intervals if not each.tenant), None)
        if self._blocked and (blocked is None or blocked.cause != self._blocked.cause):
            self._intervals.append(self._blocked._replace(end=now_ms))
            self._blocked = None
        self._blocked = self._blocked or blocked
        for each in intervals:
            if each.tenant:
                _join((self._rows.get(each.tenant) or self._add(each.tenant)).intervals, each)

    def parts(self, tenant: str, now_ms: int) -> list[dict[WaitCause, int]]:
        """Return what each of a tenant's starts of the last PERIOD_MS had waited for, in ms, oldest first."""
        row = self._rows.get(tenant)
        if row is None:
            return []
        intervals = sorted([*self._intervals, *row.intervals], key=lambda span: _RANK[span.cause])
        return [split(ready, at, last, intervals) for at, ready, last in row.wait_times if at > now_ms - PERIOD_MS]


def _join(intervals: deque[BlockedInterval], new: BlockedInterval) -> None:
    """Add an interval; join it with the last one if that was reported before, or ends where this one begins."""
    if intervals and intervals[-1].cause == new.cause and new.begin - intervals[-1].end <= _JOIN_MS:
        new = new._replace(begin=min(new.begin, intervals.pop().begin))
    intervals.append(new)


def split(begin: int, end: int, last: int, intervals: Iterable[BlockedInterval]) -> dict[WaitCause, int]:
    """Divide a waiting time among its causes; where intervals overlap, the first one gets the time."""
    parts: dict[WaitCause, int] = dict.fromkeys(WAIT_CAUSES, 0)
    free = [(begin, end)] if begin < end else []
    for span in intervals:
        rest = []
        for one, other in free:
            low, high = max(one, span.begin), min(other, span.end)
            if low >= high:
                rest.append((one, other))
                continue
            parts[span.cause] += high - low
            rest += [(a, b) for a, b in ((one, low), (high, other)) if a < b]
        free = rest
    for one, other in free:
        own = max(0, min(other, last) - one)
        parts["backlog"] += own
        parts["share"] += other - one - own
    return parts


def report_of(tenant: str, wait_times: Sequence[dict[WaitCause, int]], unanswered: int) -> Report:
    """Report what a tenant's starts had waited for."""
    whole = [sum(parts.values()) for parts in wait_times]
    p50_ms, p99_ms = percentile(whole, 50), percentile(whole, 99)
    return Report(tenant, len(whole), p50_ms, p99_ms, summarize(wait_times), unanswered=unanswered)


def summarize(wait_times: Sequence[dict[WaitCause, int]]) -> list[Part]:
    """Return, for each cause with any time, its part of the whole, and its p50 and p99 per task."""
    whole = sum(sum(parts.values()) for parts in wait_times)
    columns = {cause: [parts[cause] for parts in wait_times] for cause in WAIT_CAUSES}
    return [
        Part(cause, sum(column) / whole, percentile(column, 50), percentile(column, 99))
        for cause, column in columns.items()
        if any(column)
    ]


def percentile(values: Sequence[int], percent: int) -> int:
    """Return the value that `percent` % of the values do not exceed; 0 without values."""
    return sorted(values)[-(-len(values) * percent // 100) - 1] if values else 0
