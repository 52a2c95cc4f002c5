"""Who is served fairly, and who asks for far more: pure functions of tenants' states and service."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fairq.model.tenants import TenantState

_NOISY_TASKS, _NOISY_TIMES = 30, 2.0


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
