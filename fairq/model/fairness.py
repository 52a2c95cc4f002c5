"""Who is served fairly, and who asks for far more: pure functions of tenants' states and service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from fairq.model.history import OTHERS
from fairq.model.tenants import TenantState

_NOISY_TASKS, _NOISY_TIMES = 30, 2.0
_ALONE = 0.999  # of all that tenants were entitled to: no other one had a claim worth the name


class Share(NamedTuple):
    """What parts of all that was given a tenant was given, and was entitled to.

    Both are None if nothing was given. `entitled` is None without a contest: when only one tenant was entitled to
    anything, as when no other had tasks that could start.
    """

    delivered: float | None = None
    entitled: float | None = None


NOTHING = Share()


def shares(service: Mapping[str, tuple[float, float]]) -> dict[str, Share]:
    """Return the shares of tenants by the service that each was given, and was entitled to."""
    given = sum(got for got, _ in service.values())
    if given <= 0:
        return dict.fromkeys(service, NOTHING)
    due = sum(claim for _, claim in service.values())
    is_contest = max((claim for name, (_, claim) in service.items() if name != OTHERS), default=0.0) < _ALONE * due
    return {name: Share(got / given, claim / given if is_contest else None) for name, (got, claim) in service.items()}


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
