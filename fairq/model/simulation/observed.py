"""The input of a simulation from a queue's history and present state: its setup, arrivals and measured service."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from attrs import frozen

from fairq.errors import BadRequest, NotFound
from fairq.model.history import OTHERS, History, TenantSeries
from fairq.model.limits import Limits
from fairq.model.operator_views import QueueRow
from fairq.model.simulation.run import Outcome
from fairq.model.simulation.setup import LIMITS, MAX_SLOTS, MAX_TENANTS, Setup, Terms
from fairq.model.simulation.traffic import FLUSH_MS, Demand
from fairq.model.tenants import TenantState

MAX_TASKS = 20_000  # that come in one simulation: of a busier queue only the last part of the period is simulated
LITTLE_MS, LITTLE_STARTS = 300_000, 30
Code = Literal["little_history", "few_starts", "slots", "run_time", "not_served", "fit", "overload", "idle"]


@frozen
class Caution:
    """What a reader of a simulation should do, and why; `code` is stable."""

    code: Code
    text: str


@frozen
class Observed:
    """A queue over a period: its present setup, the arrivals, and each tenant's service (`measured`)."""

    queue: str
    setup: Setup
    step_ms: int
    over_ms: int
    demands: Sequence[Demand]
    measured: Mapping[str, Outcome]
    cautions: Sequence[Caution]


def cut(history: History, factor: float = 1.0) -> int:
    """Return since when the history has no more tasks than can be simulated, ms; 0: all of it."""
    tasks = 0.0
    for at, enqueued, started in zip(
        reversed(history.times_ms), reversed(history.queue.enqueued), reversed(history.queue.started), strict=True
    ):
        tasks += max(enqueued, started) * max(1.0, factor)
        if tasks > MAX_TASKS:
            return at + history.step_ms
    return 0


def observe(
    row: QueueRow, history: History, states: Mapping[str, TenantState], limits: Mapping[str, Limits], *,
    slots: int | None = None, run_s: float | None = None,
) -> Observed:  # fmt: skip
    """Combine what is known about a queue and the tenants in its history (and others that have a state).

    `slots`: in place of those that are attached now. `run_s`: how long tasks run, for a queue that shares tasks: its
    history has no worker time.

    Raises: NotFound without history; BadRequest.
    """
    series = {each.tenant: each for each in history.tenants}
    if not history.times_ms or not any(each.totals.started for each in series.values()):
        raise NotFound(f"queue {row.queue} has no history of this period: nothing was started", field="period")
    attached = slots if slots is not None else row.slots
    if not 0 < attached <= MAX_SLOTS:
        has = "no worker is attached" if not attached else f"more than {MAX_SLOTS:,} slots are attached"
        raise BadRequest(f"{has}: say for how many slots to simulate", field="slots")
    cautions: list[Caution] = []
    over_ms = history.step_ms * len(history.times_ms)
    usual_ms = _usual_run_ms(row, history, run_s, over_ms, cautions)
    demands, terms, measured = [], {}, {}
    for name in [*(name for name in series if name), *([OTHERS] if OTHERS in series else [])]:
        one, state = series[name], states.get(name)
        ready, leased = _present(name, row, states)
        demand = _demand(one, ready, leased, _run_ms(row, one, usual_ms, run_s), row.settings.max_attempts)
        measured[name] = Outcome(
            one.totals.delivered_part, one.totals.p50_ms, one.totals.p99_ms, one.totals.started, ready
        )
        for each in _split(demand, series) if name == OTHERS else [demand]:
            demands.append(each)
            terms[each.tenant] = _terms(state, limits.get(name) or limits.get(OTHERS))
    for name, state in states.items():
        if name not in series:
            demands.append(Demand(name, name, [0] * len(history.times_ms), usual_ms))
            terms[name] = _terms(state, limits.get(name))
            measured[name] = Outcome(None, None, None, 0, state.ready)
    cautions += _cautions(row, history, states, series, attached, over_ms)
    settings = row.settings
    setup = Setup(
        attached, terms, settings.share, settings.reserve, settings.max_attempts, settings.retry_base_ms,
        settings.retry_cap_ms,
    )  # fmt: skip
    return Observed(row.queue, setup, history.step_ms, over_ms, demands, measured, cautions)


def _usual_run_ms(row: QueueRow, history: History, run_s: float | None, over_ms: int, cautions: list[Caution]) -> float:
    """Return how long a task of the queue runs on average."""
    if run_s is not None:
        return max(1.0, run_s * 1000)
    started = sum(each.totals.started for each in history.tenants)
    if row.settings.share == "time":
        return max(1.0, sum(each.totals.delivered for each in history.tenants) * 1000 / started)
    if not row.leased:
        raise BadRequest(
            f"queue {row.queue} shares tasks, so its history has no worker time: say how long a task runs",
            field="run_time",
        )
    run_ms = max(1.0, row.leased * over_ms / started)
    text = (
        f"Use `fairq simulate --run-time` if tasks do not run {run_ms / 1000:.3g} s: that is computed from how many run"
        " now, since this history has no worker time."
    )
    cautions.append(Caution("run_time", text))
    return run_ms


def _run_ms(row: QueueRow, one: TenantSeries, usual_ms: float, run_s: float | None) -> float:
    if run_s is not None or row.settings.share != "time" or not one.totals.started or not one.totals.delivered:
        return usual_ms
    return max(1.0, one.totals.delivered * 1000 / one.totals.started)


def _present(name: str, row: QueueRow, states: Mapping[str, TenantState]) -> tuple[int, int]:
    """Return how many tasks of a tenant are ready now, and how many run."""
    if name != OTHERS:
        state = states.get(name)
        return (state.ready + state.pending, state.leased) if state else (0, 0)
    ready = row.ready + row.pending - sum(each.ready + each.pending for each in states.values())
    return max(0, ready), max(0, row.leased - sum(each.leased for each in states.values()))


def _demand(one: TenantSeries, ready: int, leased: int, run_ms: float, max_attempts: int) -> Demand:
    """Compute when tasks became ready, so that the tasks that started and those that are ready now add up.

    More were enqueued than that: the rest still waits for its start time. Fewer: the rest waited already, or (where
    what started first had not waited for long) it was enqueued earlier with a start time in this period.
    """
    totals, arrivals = one.totals, list(one.enqueued)
    fails = min(1.0, totals.failed / totals.started) if totals.started else 0.0
    least = max(totals.done + leased, _first_attempts(totals.started, fails, max_attempts)) + ready
    became = max(least, min(totals.enqueued, totals.started + ready))
    if became > least:  # not all that failed was tried again
        fails = min(fails, max(0.0, 1 - (became - ready) / totals.started))
    waited_ms = next((wait for wait in one.p50_ms if wait is not None), 0)
    waiting = 0
    if totals.enqueued > became:
        arrivals = _scaled(arrivals, became)
    elif waited_ms > FLUSH_MS or not totals.started:
        waiting = became - totals.enqueued
    else:
        more = _scaled(one.started, became - totals.enqueued)
        arrivals = [one + other for one, other in zip(arrivals, more, strict=True)]
    return Demand(one.tenant, one.tenant, arrivals, run_ms, fails, min(waiting, MAX_TASKS), float(waited_ms))


def _first_attempts(started: int, fails: float, max_attempts: int) -> int:
    """Return how many of the attempts were a task's first, if all that fail are tried again."""
    if fails == 1.0:
        return started // (max_attempts or started or 1)
    most = 1 - fails**max_attempts if max_attempts else 1.0
    return round(started * (1 - fails) / most)


def _scaled(counts: Sequence[int], whole: int) -> list[int]:
    """Return counts in the same proportions with another sum."""
    of, owed, scaled = sum(counts), 0, []
    for count in counts:
        owed += count * whole
        scaled.append(owed // of if of else 0)
        owed -= scaled[-1] * of
    return scaled


def _split(demand: Demand, series: Mapping[str, TenantSeries]) -> list[Demand]:
    """Divide the demand of all others among the least possible number of tenants: none is as busy as the named ones."""
    least = min((each.totals.started for each in series.values() if each.tenant and each.totals.started), default=1)
    count = min(MAX_TENANTS, max(1, -(-series[OTHERS].totals.started // least)))
    parts = [_scaled([1] * count, each) for each in demand.arrivals]
    waiting = _scaled([1] * count, demand.waiting)
    return [
        Demand(f" {n}", OTHERS, [part[n] for part in parts], demand.run_ms, demand.fails, waiting[n], demand.waited_ms)
        for n in range(count)
    ]


def _terms(state: TenantState | None, limits: Limits | None) -> Terms:
    held = {name: getattr(limits, name) or 0 for name in LIMITS} if limits else {}
    return Terms(state.weight if state else 1.0, **held)


def _cautions(
    row: QueueRow, history: History, states: Mapping[str, TenantState], series: Mapping[str, TenantSeries], slots: int,
    over_ms: int,
) -> list[Caution]:  # fmt: skip
    found = []
    if over_ms < LITTLE_MS:
        text = f"Simulate again later: there are only {over_ms / 1000:.0f} s of history."
        found.append(Caution("little_history", text))
    few = [name for name, each in series.items() if name and each.totals.started < LITTLE_STARTS]
    if few:
        text = f"Choose a longer period to compare waits of {_names(few)}: each had fewer than {LITTLE_STARTS} starts."
        found.append(Caution("few_starts", text))
    served_s = sum(each.totals.delivered for each in series.values())
    if row.settings.share == "time" and served_s * 1000 > 1.05 * over_ms * slots:
        used = served_s * 1000 / over_ms
        text = f"Simulate {math.ceil(used)} slots or more: tasks used {used:.1f} on average, and {slots} are simulated."
        found.append(Caution("slots", text))
    kept = [name for name, each in states.items() if each.is_paused or each.is_closed]
    if row.is_paused or row.is_closed or kept:
        what = "the queue" if row.is_paused or row.is_closed else _names(kept)
        text = f"Resume {what} before you rely on this: paused or closed tenants are simulated as if served."
        found.append(Caution("not_served", text))
    return found


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
