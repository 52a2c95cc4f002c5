"""The Fairness page: what each tenant is given and entitled to, and how long its tasks wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import asdict, frozen

from fairq.errors import NotFound
from fairq.model.audit import Change
from fairq.model.fairness import NOTHING, Share, noisy_ones
from fairq.model.history import History
from fairq.model.tenants import TenantState
from fairq.server.stats.wait_times import percentile, summarize
from fairq.server.web.dashboard.recent import MAX_MARKS, Mark, Watched
from fairq.server.web.dashboard.view import Context, View, rows_of
from fairq.server.web.dashboard.writing import briefly
from fairq.wire import messages as wire

CHARTED, SHOWN = 6, 20
PERIODS = {"live": "2 minutes", "1h": "hour", "24h": "day", "14d": "two weeks"}


@frozen
class Row:
    """A tenant: its account of the last seconds, its waiting times of the last minutes at this server."""

    state: TenantState
    share: Share
    lag_s: float
    is_noisy: bool
    waits: dict[str, Any]
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


def _waits(view: View, queue: str, tenant: str) -> dict[str, Any]:
    dispatcher = view.app.queues.dispatchers.get(queue)
    found = dispatcher.wait_times.parts(tenant, dispatcher.store_now_ms) if dispatcher else []
    whole = [sum(parts.values()) for parts in found]
    return {
        "starts": len(whole),
        "p50_ms": percentile(whole, 50) if whole else None,
        "p99_ms": percentile(whole, 99) if whole else None,
        "parts": summarize(found),
    }


def _rows(view: View, queue: str, watched: Watched) -> list[Row]:
    shares = watched.shares()
    given = {tenant: share.delivered or 0.0 for tenant, share in shares.items()}
    states = sorted(
        watched.tenants, key=lambda each: (-given.get(each.tenant, 0.0), -each.ready - each.leased, each.tenant)
    )
    noisy = noisy_ones(watched.tenants)
    busy = [each for each in states if each.ready or each.leased or given.get(each.tenant)]
    rows = []
    shown = {state.tenant: state for state in (busy or states)[:SHOWN]}
    for state in map(shown.__getitem__, watched.in_calm_order(shown)):
        waits = _waits(view, queue, state.tenant)
        share = shares.get(state.tenant, NOTHING)
        rows.append(Row(state, share, watched.behind(state), state.tenant in noisy, waits, watched.color(state.tenant)))
    return rows


def _chart(watched: Watched, times_s: Sequence[float], series: Iterable[Any], marks: Iterable[Mark]) -> dict[str, Any]:
    """Make a chart; a series is a tenant's name, and the parts that it was given and was entitled to."""
    rows = [
        {"tenant": name, "color": watched.color(name), "delivered": delivered, "entitled": entitled}
        for name, delivered, entitled in series
    ]
    return {"times_s": times_s, "series": rows, "marks": [asdict(mark) for mark in marks]}


def _live_chart(watched: Watched, rows: Sequence[Row]) -> dict[str, Any]:
    series = watched.series([row.state.tenant for row in rows[:CHARTED]])
    return _chart(watched, watched.times_s(), ((name, *parts) for name, parts in series.items()), watched.marks)


async def _past_chart(view: View, queue: str, period: str, watched: Watched) -> dict[str, Any]:
    """Return the shares of the tenants with the most service, from the history; weights' changes from the audit."""
    past = rows_of(History, [await view.ask(wire.History(0, queue, period))])[0]
    named = [each for each in past.tenants if each.tenant][:CHARTED]
    begin_ms = past.times_ms[0] if past.times_ms else past.now_ms
    changes = await view.ask(wire.Audit(0, verb="set_weight", queue=queue, since_ms=begin_ms))
    marks = [_mark(change) for change in rows_of(Change, changes["changes"]) if change.outcome == "ok"]
    series = ((each.tenant, each.delivered, each.entitled) for each in named)
    return _chart(watched, [at / 1000 for at in past.times_ms], series, marks[:MAX_MARKS])


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
    rows = _rows(view, row["queue"], watched)
    if period == "live":
        chart = _live_chart(watched, rows)
    else:
        chart = await _past_chart(view, row["queue"], period, watched)
    return context | {"queue": row["queue"], "rows": rows, "chart": chart, "total": watched.total}
