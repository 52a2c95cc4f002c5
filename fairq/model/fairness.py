"""Whether tenants are served fairly, and which ones ask for far more: pure functions of their states and service.

A tenant's service in an interval has two parts. *Contested* service was given while other tenants waited. It is
compared with the tenant's *due*, its entitlement by weight at that time. *Free* service is the rest: no tenant waited
for it. A tenant that is served at once, or waits at a limit of its own, has no due, and all its service is free.

The store books each tenant's service and due (lua/pick/seats.lua). The sum of all dues is the contested service. Each
tenant's part of it is computed here: its due, or all its service if that is less. The rest was given beyond dues: it is
divided in proportion to dues, up to each tenant's service.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fairq.model.history import OTHERS
from fairq.model.tenants import TenantState

_NOISY_TASKS, _NOISY_TIMES = 30, 2.0
_ALONE = 0.999  # with this part of all dues, a tenant counts as the only one that has a due


class Service(NamedTuple):
    """A tenant's service, its due while service was contested, and the free part of its service."""

    delivered: float = 0.0
    due: float = 0.0
    free: float = 0.0

    @property
    def contested(self) -> float:
        """Its service while tenants waited."""
        return self.delivered - self.free


class Share(NamedTuple):
    """The same as parts of all service, None without any; `due` and `contested` are None without a contest.

    There is no contest if only one tenant has a due: no other one had tasks that could start.
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


def split_service(booked: Mapping[str, tuple[float, float]]) -> dict[str, Service]:
    """Divide service into contested and free, from each tenant's service in an interval and its due."""
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
    """Return each tenant's service as parts of all service."""
    # A lost lease may have made a part negative.
    positive = {name: Service(*(max(0.0, part) for part in each)) for name, each in services.items()}
    given, due, _ = added(positive.values())
    if given <= 0:
        return dict.fromkeys(positive, NOTHING)
    return {
        name: Share(each.delivered / given, each.due / given if due > 0 else None, each.free / given)
        for name, each in positive.items()
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
    """Return the fairness index (Jain, Chiu, Hawe) of the ratios of service to due.

    1: all tenants alike; 1/n: one of n has all. Also 1 if no tenant was entitled to anything, or given anything.
    """
    known = list(ratios)
    squares = sum(each * each for each in known)
    return sum(known) ** 2 / (len(known) * squares) if squares else 1.0
