"""Reads a queue's history in the store (lua/features/history.lua), as columns for charts and sums for tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import trio
from attrs import evolve, fields

from fairq.model.fairness import Service, Share, shares, split_service
from fairq.model.history import (
    NAMED,
    OTHERS,
    STEPS,
    History,
    QueueSeries,
    QueueTotals,
    Row,
    Slot,
    TenantSeries,
    TenantTotals,
    percentile_of,
)
from fairq.model.places import AwayPartition
from fairq.store.routes import Away, error_of
from fairq.store.store import Store

PAGE_SLOTS = 120  # that one call of the store reads: about 250 KB at most
RECENT_MS = 300_000
_NOTHING = Row(OTHERS, 0, 0, 0, 0, 0.0, 0.0, {})
_COUNTED = ("enqueued", "done", "lost", "dead", "expired", "cancelled")  # of slots
_SUMMED = ("enqueued", "started", "done", "failed", "delivered", "entitled", "free")  # of rows
_SHOWN = (  # in series
    "enqueued", "started", "done", "failed", "delivered_part", "entitled_part", "free_part", "p50_ms", "p99_ms",
)  # fmt: skip


class RecentShare(NamedTuple):
    """The service that a tenant got in the last `share_over_ms`, its due, and the free part; 0: nothing is known."""

    delivered: float = 0.0
    entitled: float = 0.0
    free: float = 0.0
    share_over_ms: int = 0


async def recent_share(store: Store, queue: str, tenant: str) -> RecentShare:
    """Read the service of a tenant that the history has for the last RECENT_MS.

    Raises: Unavailable, OutcomeUnknown if the tenant's partition does not answer.
    """
    step_ms, away = STEPS["1h"][0] * 1000, Away()
    recent = await store.history(queue, STEPS["1h"][0], -1, RECENT_MS // step_ms, away=away)
    if (place := await store.place_of(queue, tenant)) in away:
        raise error_of({place: away[place]})
    rows = [(slot.number, row) for slot in recent.slots for row in _with_free(slot.rows) if row.tenant == tenant]
    if not rows:
        return RecentShare()
    whole = _merged(row for _, row in rows)
    over_ms = recent.now_ms - min(number for number, _ in rows) * step_ms
    delivered, entitled, free = (round(each / recent.unit, 3) for each in (whole.delivered, whole.entitled, whole.free))
    return RecentShare(delivered, entitled, free, over_ms)


async def read_history(
    store: Store, queue: str, period: str = "1h", tenants: Sequence[str] | None = None, since_ms: int = 0
) -> History:
    """Read a queue's history since a time, of these tenants or of the tenants with the most service."""
    step_s, left = STEPS[period]
    first = -(-since_ms // (1000 * step_s))  # the first interval that begins at that time or later
    slots: dict[int, Slot] = {}
    away: Away = {}
    now_ms, last, unit = -1, -1, 1.0
    while left > 0:
        count = min(left, PAGE_SLOTS)
        page = await store.history(queue, step_s, last, count, away=away)
        if now_ms < 0:
            now_ms, unit, last = page.now_ms, page.unit, page.now_ms // 1000 // step_s
            left = min(left, last + 1 - first)
        slots.update((slot.number, slot) for slot in page.slots)
        last, left = last - count, left - count
    known = [slots[number] for number in sorted(slots) if number >= first]
    found = await trio.to_thread.run_sync(summed, known, step_s * 1000, now_ms, tenants, unit)
    return evolve(found, away=[AwayPartition(**row) for row in store.away_rows(away)])


def summed(
    slots: Sequence[Slot], step_ms: int, now_ms: int, tenants: Sequence[str] | None = None, unit: float = 1.0
) -> History:
    """Put slots, which are in order, in columns, one per interval, from the first slot's up to now.

    `unit`: what the service of tenants is divided by.
    """
    grid = range(slots[0].number, now_ms // step_ms + 1) if slots else range(0)
    cells: dict[str, dict[int, Row]] = {}
    for slot in slots:
        for row in _with_free(slot.rows):
            cells.setdefault(row.tenant, {})[slot.number] = row
    sums = {name: _merged(of.values()) for name, of in cells.items()}
    names = _most_served(sums) if tenants is None else list(tenants)
    rest = [name for name in cells if name not in names]
    shown = {name: [cells.get(name, {}).get(number, _NOTHING) for number in grid] for name in names}
    sums.update({name: _NOTHING for name in names if name not in sums})
    if rest:
        shown[OTHERS] = [_merged(cells[name][n] for name in rest if n in cells[name]) for n in grid]
        sums[OTHERS] = _merged(sums[name] for name in rest)
    wholes = [_merged(column) for column in zip(*shown.values(), strict=True)] if shown else [_NOTHING] * len(grid)
    whole = _merged(sums[name] for name in shown)
    parts = _shares({name: sums[name] for name in shown})
    parts_then = [_shares(dict(zip(shown, column, strict=True))) for column in zip(*shown.values(), strict=True)]
    by_number = {slot.number: slot for slot in slots}
    return History(
        now_ms,
        step_ms,
        [number * step_ms for number in grid],
        _queue_series([by_number.get(number) for number in grid], wholes),
        _queue_totals(slots, whole),
        [
            _series(name, column, [then[name] for then in parts_then], _totals(sums[name], parts[name], unit))
            for name, column in shown.items()
        ],
    )


def _with_free(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of an interval with their dues while there was a contest, and their free service."""
    services = split_service({row.tenant: (row.delivered, row.entitled) for row in rows})
    return [row._replace(entitled=services[row.tenant].due, free=services[row.tenant].free) for row in rows]


def _merged(rows: Iterable[Row]) -> Row:
    """Add rows up."""
    found, waits = list(rows), Counter[int]()
    for row in found:
        waits.update(row.waits)
    sums = {name: sum(getattr(row, name) for row in found) for name in _SUMMED}
    return Row(OTHERS, waits=waits, **sums)


def _most_served(sums: dict[str, Row]) -> list[str]:
    named = [name for name in sums if name != OTHERS]
    return sorted(named, key=lambda name: (-sums[name].delivered, -sums[name].started, name))[:NAMED]


def _shares(rows: Mapping[str, Row]) -> dict[str, Share]:
    return shares({name: Service(row.delivered, row.entitled, row.free) for name, row in rows.items()})


def _rounded(part: float | None) -> float | None:
    return None if part is None else round(part, 4)


def _series(name: str, column: Sequence[Row], parts: Sequence[Share], totals: TenantTotals) -> TenantSeries:
    each = [_totals(row, part) for row, part in zip(column, parts, strict=True)]
    columns = {shown.removesuffix("_part"): [getattr(one, shown) for one in each] for shown in _SHOWN}
    return TenantSeries(tenant=name, totals=totals, **columns)


def _totals(row: Row, part: Share, unit: float = 1.0) -> TenantTotals:
    return TenantTotals(
        row.enqueued,
        row.started,
        row.done,
        row.failed,
        round(row.delivered / unit, 3),
        round(row.entitled / unit, 3),
        round(row.free / unit, 3),
        _rounded(part.delivered),
        _rounded(part.due),
        _rounded(part.free),
        percentile_of(row.waits, 50),
        percentile_of(row.waits, 99),
    )


def _queue_series(slots: Sequence[Slot | None], wholes: Sequence[Row]) -> QueueSeries:
    each = [_queue_totals([slot] if slot else [], whole) for slot, whole in zip(slots, wholes, strict=True)]
    return QueueSeries(*([getattr(one, shown.name) for one in each] for shown in fields(QueueTotals)))


def _queue_totals(slots: Sequence[Slot], whole: Row) -> QueueTotals:
    p50_ms, p99_ms = percentile_of(whole.waits, 50), percentile_of(whole.waits, 99)
    sums = {name: sum(getattr(slot, name) for slot in slots) for name in _COUNTED}
    return QueueTotals(started=whole.started, failed=whole.failed, p50_ms=p50_ms, p99_ms=p99_ms, **sums)
