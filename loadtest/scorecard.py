"""The scorecard of a fairness case, computed from what an operator saw of it and what the worker noted.

The ideal is fluid: at every moment the backlogged tenants divide by weight what they get together; a tenant that wants
less than its share is served as it comes, and counts on neither side. So all sums run over *contests*: the time between
two looks at the queue, and the tenants that had ready tasks at both, two or more.

What a tenant was due in a contest is its part of the contest's service, in the proportion of the `entitled` that fairq
booked; how far these proportions are from those of the weights is a figure of its own.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from attrs import frozen

from loadtest.figures import Record, percentile


class Account(NamedTuple):
    """What an operator sees of a tenant: `delivered` and `entitled` in seconds of worker time, both cumulative."""

    weight: float
    ready: int
    leased: int
    done: int
    delivered: float
    entitled: float


class Sample(NamedTuple):
    """One look at the tenants of a queue, so many seconds after the beginning."""

    at: float
    tenants: Mapping[str, Account]


class Contest(NamedTuple):
    """What backlogged tenants got and were due between two looks, in seconds of worker time."""

    began: float
    ended: float
    got: Mapping[str, float]
    due: Mapping[str, float]
    weights: Mapping[str, float]


def _between(one: Sample, other: Sample, tenants: Collection[str]) -> Contest | None:
    there = [
        name for name in tenants
        if name in one.tenants and one.tenants[name].ready > 0 and other.tenants[name].ready > 0
    ]  # fmt: skip
    got = {name: other.tenants[name].delivered - one.tenants[name].delivered for name in there}
    entitled = {name: other.tenants[name].entitled - one.tenants[name].entitled for name in there}
    total, entitlement = sum(got.values()), sum(entitled.values())
    if len(there) < 2 or entitlement <= 0:
        return None
    due = {name: total * part / entitlement for name, part in entitled.items()}
    return Contest(one.at, other.at, got, due, {name: one.tenants[name].weight for name in there})


def contests(samples: Sequence[Sample], tenants: Collection[str]) -> list[Contest]:
    """Return the contests of these tenants, in order."""
    pairs = (_between(one, other, tenants) for one, other in itertools.pairwise(samples))
    return [contest for contest in pairs if contest]


def _sums(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    sums = defaultdict[str, float](float)
    for part in parts:
        for name, value in part.items():
            sums[name] += value
    return dict(sums)


def _by_weight(contest: Contest, total: float) -> dict[str, float]:
    weight_sum = sum(contest.weights.values())
    return {name: total * weight / weight_sum for name, weight in contest.weights.items()}


def largest_error(got: Mapping[str, float], due: Mapping[str, float]) -> float:
    """Return the largest deviation from the due parts, relative to them; nan if no tenant was due anything."""
    return max((abs(got.get(name, 0.0) / part - 1) for name, part in due.items() if part > 0), default=math.nan)


def jain(received: Sequence[float]) -> float:
    """Return Jain's index of what each received for each unit that it was due: 1 is fair, 1/n the worst."""
    squares = sum(part * part for part in received)
    return sum(received) ** 2 / (len(received) * squares) if squares else math.nan


def max_lag(contests: Sequence[Contest]) -> float:
    """Return how far a tenant was at most behind or ahead of the fluid ideal since a contest of its own began.

    That is over all pairs of moments in a row of contests: the widest span of (due - got) on the way.
    """
    lag, low, high, last, widest = dict[str, float](), dict[str, float](), dict[str, float](), dict[str, float](), 0.0
    for contest in contests:
        for name, due in contest.due.items():
            if last.get(name) != contest.began:
                lag[name] = low[name] = high[name] = 0.0
            last[name] = contest.ended
            lag[name] += due - contest.got[name]
            low[name], high[name] = min(low[name], lag[name]), max(high[name], lag[name])
            widest = max(widest, high[name] - low[name])
    return widest


def mean_lease_s(final: Sample, tenants: Collection[str]) -> float:
    """Return the mean worker time of a task of the tenant with the longest: the unit of a case's lag."""
    accounts = [final.tenants[name] for name in tenants if name in final.tenants]
    return max((account.delivered / account.done for account in accounts if account.done), default=math.nan)


def counts(contests: Sequence[Contest], starts: Sequence[tuple[float, str]]) -> tuple[dict[str, float], ...]:
    """Return what tenants got and were due by weight, in starts of tasks: `starts` are (seconds, tenant), in order."""
    got, due, at = Counter[str](), list[dict[str, float]](), 0
    for contest in contests:
        served = Counter[str]()
        while at < len(starts) and starts[at][0] < contest.ended:
            if starts[at][0] >= contest.began:
                served[starts[at][1]] += 1
            at += 1
        served = Counter({name: served[name] for name in contest.weights})
        got.update(served)
        due.append(_by_weight(contest, served.total()))
    return dict(got), _sums(due)


def makespan(starts: Sequence[Record]) -> float:
    """Return the seconds from the first start to the last end."""
    if not starts:
        return math.nan
    return (max(s.started_ms + s.worked_ms for s in starts) - min(s.started_ms for s in starts)) / 1000


def follows_after(order: Sequence[str], weights: Mapping[str, float], *, period: int = 48, slack: int = 4) -> int:
    """Return after how many dispatches shares follow the weights; -1 if they never do.

    They do when of the next `period` dispatches no tenant has more than `slack` more or fewer than its due. `order` is
    the tenants in the order of dispatch; those without a weight are passed over.
    """
    order, weight_sum = [name for name in order if name in weights], sum(weights.values())
    for n in range(len(order) - period + 1):
        served = Counter(order[n : n + period])
        if all(abs(served[name] - period * weight / weight_sum) <= slack for name, weight in weights.items()):
            return n
    return -1


def series(samples: Sequence[Sample], tenants: Sequence[str], seconds: float) -> dict[str, Any]:
    """Return parts of all worker time over a sliding period, for a picture: delivered and entitled.

    Both are parts of what these tenants got and were entitled to together, nan where that is nothing.
    One list per tenant; times are `at`.
    """
    out: dict[str, Any] = {"at": [], "delivered": {t: [] for t in tenants}, "entitled": {t: [] for t in tenants}}
    first = 0
    for last, sample in enumerate(samples):
        while first < last and samples[first + 1].at <= sample.at - seconds:
            first += 1
        if first == last:
            continue
        out["at"].append(round(sample.at, 3))
        for what in ("delivered", "entitled"):
            parts = [_moved(samples[first], sample, tenant, what) for tenant in tenants]
            total = sum(parts)
            for tenant, part in zip(tenants, parts, strict=True):
                out[what][tenant].append(round(part / total, 4) if total > 0 else math.nan)
    return out


def _moved(one: Sample, other: Sample, tenant: str, what: str) -> float:
    after, before = other.tenants.get(tenant), one.tenants.get(tenant)
    return max(0.0, (getattr(after, what) if after else 0.0) - (getattr(before, what) if before else 0.0))


@frozen
class Score:
    """A case's figures; nan where a case has none of the kind (no contest, no quiet tenant)."""

    contested_s: float
    time_error: float  # the largest, of worker time, relative to what a tenant was due
    count_error: float  # the same of starts of tasks
    entitled_error: float  # of what fairq booked as entitled, against the weights
    max_lag: float  # in tasks
    lag_unit_ms: float  # what such a task took
    jain: float
    quiet_p99_ms: float
    makespan_s: float
    busy: float  # the mean part of the slots that were leased while something was ready
    of_due: Mapping[str, float]  # by tenant: worker time got in contests, as a part of its due
    longest_gap_s: float  # between two looks at the queue: how long the machine stood still

    @classmethod
    def of(
        cls, samples: Sequence[Sample], backlogged: Collection[str], starts: Sequence[Record], began_ms: float,
        quiet: Collection[str], slots: int,
    ) -> Score:  # fmt: skip
        """Work them out; `began_ms` is the wall clock's time at the samples' zero."""
        met = contests(samples, backlogged)
        got, due = _sums([c.got for c in met]), _sums([c.due for c in met])
        order = sorted(((s.started_ms - began_ms) / 1000, s.tenant) for s in starts)
        by_weight = _sums([_by_weight(c, sum(c.due.values())) for c in met])
        unit = mean_lease_s(samples[-1], backlogged)
        waiting = [s.tenants.values() for s in samples if any(a.ready > 0 for a in s.tenants.values())]
        leased = [sum(account.leased for account in accounts) for accounts in waiting[1:]]
        return cls(
            contested_s=round(sum(c.ended - c.began for c in met), 2),
            time_error=round(largest_error(got, due), 4),
            count_error=round(largest_error(*counts(met, order)), 4),
            entitled_error=round(largest_error(due, by_weight), 4),
            max_lag=round(max_lag(met) / unit, 2) if met else math.nan,
            lag_unit_ms=round(unit * 1000, 1),
            jain=round(jain([got[name] / due[name] for name in due if due[name] > 0]), 5),
            quiet_p99_ms=round(percentile([s.dwell_ms for s in starts if s.tenant in quiet], 99), 1),
            makespan_s=round(makespan(starts), 3),
            busy=round(sum(leased) / len(leased) / slots, 3) if leased else math.nan,
            of_due={name: round(got[name] / due[name], 4) for name in due if due[name] > 0},
            longest_gap_s=round(max((b.at - a.at for a, b in itertools.pairwise(samples)), default=math.nan), 2),
        )
