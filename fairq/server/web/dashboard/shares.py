"""The Fairness page: what each tenant is given, contested and free, its due, and how long its tasks wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import asdict, frozen

from fairq.errors import NotFound
from fairq.model.audit import Change
from fairq.model.fairness import NOTHING, Service, Share, noisy_ones, shares
from fairq.model.history import OTHERS, History, TenantSeries
from fairq.model.tenants import TenantState
from fairq.model.waiting import Report
from fairq.server.web.dashboard.recent import MAX_MARKS, Mark, Watched
from fairq.server.web.dashboard.view import Context, View, rows_of
from fairq.server.web.dashboard.writing import briefly
from fairq.wire import messages as wire

CHARTED, SHOWN = 6, 20
WAITS_S = 5.0  # how long the servers' answers about waiting times are shown
PERIODS = {"live": "2 minutes", "1h": "hour", "24h": "day", "14d": "two weeks"}


@frozen
class Row:
    """A tenant: its shares of the last seconds and of two minutes, and the waiting times of its last starts."""

    state: TenantState
    now: Share
    share: Share
    lag_s: float
    is_noisy: bool
    waits: Report
    color: int


async def choose_queue(view: View) -> tuple[dict[str, Any] | None, Sequence[str]]:
    """Return the queue that the page is about, by default the busiest one, and the names of all."""
    rows = await view.queues()
    names = [row["queue"] for row in rows]
    if name := view.query.get("queue"):
        found = next((row for row in rows if row["queue"] == name), None)
        if found is None:
            raise NotFound(f"there is no queue {name!r:.80}", field="queue")
        return found, names
    return max(rows, key=lambda row: (row["ready"] + row["leased"], row["enqueued"]), default=None), names


async def _rows(view: View, queue: str, watched: Watched, service: Mapping[str, Service]) -> list[Row]:
    now, of_all = watched.shares(), shares(service)
    states = sorted(
        watched.tenants,
        key=lambda each: (-_given(service, each.tenant), -each.ready - each.leased, each.tenant),
    )
    noisy = noisy_ones(watched.tenants)
    busy = [each for each in states if each.ready or each.leased or _given(service, each.tenant)]
    rows = []
    shown = {state.tenant: state for state in (busy or states)[:SHOWN]}
    waits = await view.site.waits.get(queue, partial(view.app.wait_reports, queue, list(shown)))
    for state in map(shown.__getitem__, watched.in_calm_order(shown)):
        name, got = state.tenant, service.get(state.tenant, Service())
        parts = now.get(name, NOTHING), of_all.get(name, NOTHING)
        lag_s, waited = got.due - got.contested, waits.get(name) or Report(name)
        rows.append(Row(state, *parts, lag_s, name in noisy, waited, watched.color(name)))
    return rows


def _given(service: Mapping[str, Service], tenant: str) -> float:
    return service.get(tenant, Service()).delivered


def _chart(watched: Watched, times_s: Sequence[float], series: Iterable[Any], marks: Iterable[Mark]) -> dict[str, Any]:
    """Make a chart; a series is a tenant's name, and the parts that it was given, and would have been given by dues."""
    rows = [
        {"tenant": name, "color": watched.color(name) if name else None, "delivered": delivered, "fair": fair}
        for name, delivered, fair in series
    ]
    return {"times_s": times_s, "series": rows, "marks": [asdict(mark) for mark in marks]}


def _live_chart(watched: Watched, rows: Sequence[Row], service: Mapping[str, Service]) -> dict[str, Any]:
    """Return the shares of the shown tenants with the most service, and of all others as one."""
    most = {row.state.tenant for row in sorted(rows, key=lambda row: -_given(service, row.state.tenant))[:CHARTED]}
    series = watched.series([row.state.tenant for row in rows if row.state.tenant in most])
    drawn = (
        (name, [part.delivered for part in parts], [part.fair for part in parts]) for name, parts in series.items()
    )
    return _chart(watched, watched.times_s(), drawn, watched.marks)


async def _past_chart(view: View, queue: str, period: str, watched: Watched) -> dict[str, Any]:
    """Return the same from the history; weights' changes are from the audit."""
    past = rows_of(History, [await view.ask(wire.History(0, queue, period))])[0]
    begin_ms = past.times_ms[0] if past.times_ms else past.now_ms
    changes = await view.ask(wire.Audit(0, verb="set_weight", queue=queue, since_ms=begin_ms))
    marks = [_mark(change) for change in rows_of(Change, changes["changes"]) if change.outcome == "ok"]
    named, rest = past.tenants[:CHARTED], past.tenants[CHARTED:]
    series = [(each.tenant, each.delivered, _fair_series(each)) for each in named]
    if rest:
        series.append((OTHERS, _added(each.delivered for each in rest), _added(map(_fair_series, rest))))
    return _chart(watched, [at / 1000 for at in past.times_ms], series, marks[:MAX_MARKS])


def _fair_series(of: TenantSeries) -> list[float | None]:
    return [Share(*parts).fair for parts in zip(of.delivered, of.entitled, of.free, strict=True)]


def _added(series: Iterable[Sequence[float | None]]) -> list[float | None]:
    """Add parts up, interval by interval."""
    columns = ([part for part in column if part is not None] for column in zip(*series, strict=True))
    return [sum(column) if column else None for column in columns]


def _mark(change: Change) -> Mark:
    new = change.new.get("weight") if isinstance(change.new, dict) else change.new
    return Mark(change.at_ms / 1000, f"{change.tenant} {briefly(change.previous)} → {briefly(new)}")


async def fairness(view: View) -> Context:
    """The shares of a queue's tenants now and over time."""
    row, queues = await choose_queue(view)
    period = view.query.get("period", "live")
    context: Context = {"row": row, "queues": queues, "period": period, "periods": PERIODS, "rows": [], "chart": None}
    if row is None:
        return context
    watched = await view.site.recent.look(row["queue"])
    service = watched.service()
    rows = await _rows(view, row["queue"], watched, service)
    if period == "live":
        chart = _live_chart(watched, rows, service)
    else:
        chart = await _past_chart(view, row["queue"], period, watched)
    return context | {
        "queue": row["queue"], "rows": rows, "chart": chart, "total": watched.total, "sampled": len(watched.tenants),
        "unanswered": max((each.waits.unanswered for each in rows), default=0),
    }  # fmt: skip
