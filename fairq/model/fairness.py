"""Who is served fairly, and who asks for far more: pure functions of tenants' states and service.

What a tenant was given in an interval has two parts. *Contested* is what it was given while tenants waited: it is held
against the tenant's *due*, which is what its weight was worth then. *Free* is the rest: nobody waited for it. A tenant
that is served at once, or waits at a limit of its own, is due nothing, and what it is given is free.

The store books what each tenant was given in all, and its due (lua/pick/seats.lua). All dues together are the
contested service. How much of it one tenant had is worked out: its due, or all that it was given if that is less. What
then lacks was given beyond dues, to each in proportion to its due, and to none more than it was given in all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fairq.model.history import OTHERS
from fairq.model.tenants import TenantState

_NOISY_TASKS, _NOISY_TIMES = 30, 2.0
_ALONE = 0.999  # of all that tenants were entitled to: no other one had a claim worth the name


class Service(NamedTuple):
    """What a tenant was given, its due while that was contested, and what of it was free."""

    delivered: float = 0.0
    due: float = 0.0
    free: float = 0.0

    @property
    def contested(self) -> float:
        """What it was given while tenants waited."""
        return self.delivered - self.free


class Share(NamedTuple):
    """The same as parts of all that was given, None if nothing was; `due` and `contested` are None without a contest.

    There is no contest when only one tenant was due anything, as when no other had tasks that could start.
    """

    delivered: float | None = None
    due: float | None = None
    free: float | None = None

    @property
    def fair(self) -> float | None:
        """The part of a tenant that got its due while tenants waited, and the same for free."""
        return None if self.free is None else (self.due or 0.0) + self.free

    @property
    def contested(self) -> float | None:
        """The part that it was given while tenants waited."""
        return None if self.due is None or self.delivered is None else self.delivered - (self.free or 0.0)


NOTHING = Share()


def told_apart(booked: Mapping[str, tuple[float, float]]) -> dict[str, Service]:
    """Tell contested from free service, by what each tenant was given in an interval, and its due."""
    due = sum(claim for _, claim in booked.values())
    if max((claim for name, (_, claim) in booked.items() if name != OTHERS), default=0.0) >= _ALONE * due:
        return {name: Service(given, 0.0, given) for name, (given, _) in booked.items()}
    times = _times_due([each for each in booked.values() if each[1] > 0])
    return {name: Service(given, claim, max(0.0, given - times * claim) if claim > 0 else given)
            for name, (given, claim) in booked.items()}  # fmt: skip


def _times_due(booked: Sequence[tuple[float, float]]) -> float:
    """Return how many times its due a tenant was given at most while tenants waited."""
    left = due = sum(claim for _, claim in booked)
    for given, claim in sorted(booked, key=lambda each: each[0] / each[1]):
        if given * due >= left * claim:
            return left / due
        left, due = left - given, due - claim
    return math.inf


def added(services: Iterable[Service]) -> Service:
    """Add services up."""
    return Service(*map(sum, zip(*services, strict=True)))


def shares(services: Mapping[str, Service]) -> dict[str, Share]:
    """Return what parts of all that was given tenants were given."""
    told = {name: Service(*(max(0.0, part) for part in each)) for name, each in services.items()}  # less: a lost lease
    given, due, _ = added(told.values())
    if given <= 0:
        return dict.fromkeys(told, NOTHING)
    return {
        name: Share(each.delivered / given, each.due / given if due > 0 else None, each.free / given)
        for name, each in told.items()
    }


def noisy_ones(states: Sequence[TenantState]) -> set[str]:
    """Return the tenants that ask for far more than their share: a backlog, and twice what their weight is worth."""
    demand = {each.tenant: each.ready + each.leased for each in states if each.ready + each.leased}
    weights = {each.tenant: each.weight for each in states if each.tenant in demand}
    whole, weight = sum(demand.values()), sum(weights.values())
    return {
        each.tenant
        for each in states
        if each.ready
        and demand[each.tenant] >= _NOISY_TASKS
        and demand[each.tenant] > _NOISY_TIMES * whole * weights[each.tenant] / weight
    }


def jain_index(ratios: Iterable[float]) -> float:
    """Return the fairness index (Jain, Chiu, Hawe) of what each tenant was given of what it was entitled to.

    1: all alike; 1/n: one of n has all. 1 if nobody was entitled to anything, or given any.
    """
    known = list(ratios)
    squares = sum(each * each for each in known)
    return sum(known) ** 2 / (len(known) * squares) if squares else 1.0
