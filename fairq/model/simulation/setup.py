"""The setup of a simulation: a queue's slots and its share, its tenants' weights and limits; and a proposal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from attrs import evolve, field, frozen

from fairq.errors import BadRequest
from fairq.model.checks import check_int, check_weight
from fairq.model.limits import LIMIT_RULES
from fairq.model.queues import SETTING_RULES

MAX_TENANTS = 20  # of their own; more take part as others
MAX_SLOTS = 10_000
MAX_TRAFFIC = 100.0
LIMITS = ("max_running", "guaranteed", "rate", "burst")  # that matter to a simulation


@frozen
class Terms:
    """A tenant's weight and limits (0: none)."""

    weight: float = 1.0
    max_running: int = 0
    guaranteed: int = 0
    rate: float = 0.0
    burst: int = 0


@frozen
class Setup:
    """A queue as it is simulated: its slots, its settings, its tenants by name."""

    slots: int
    tenants: Mapping[str, Terms]
    share: str = "time"
    reserve: int = 0
    max_attempts: int = 25
    retry_base_ms: int = 1_000
    retry_cap_ms: int = 3_600_000


@frozen
class Proposal:
    """The changes to try: weights, limits and traffic (a factor of the enqueued tasks) of tenants; None: unchanged."""

    weights: Mapping[str, float] = field(factory=dict)
    limits: Mapping[str, Mapping[str, float]] = field(factory=dict)
    traffic: Mapping[str, float] = field(factory=dict)
    slots: int | None = None
    share: str | None = None
    reserve: int | None = None

    @property
    def tenants(self) -> set[str]:
        """The tenants that it names."""
        return {*self.weights, *self.limits, *self.traffic}

    @property
    def is_empty(self) -> bool:
        """True if nothing is to change."""
        return not self.tenants and self.slots is None and self.share is None and self.reserve is None

    def apply(self, setup: Setup) -> Setup:
        """Return a queue as it would be."""
        tenants = dict(setup.tenants)
        for name in self.tenants & tenants.keys():
            limits: dict[str, Any] = dict(self.limits.get(name, {}))
            tenants[name] = evolve(tenants[name], weight=self.weights.get(name, tenants[name].weight), **limits)
        changes: dict[str, Any] = {"slots": self.slots, "share": self.share, "reserve": self.reserve}
        return evolve(setup, tenants=tenants, **{name: value for name, value in changes.items() if value is not None})


def check_proposal(proposal: Proposal) -> Proposal:
    """Return a proposal after checking the ranges of its values. Raises: BadRequest, naming the field."""
    for weight in proposal.weights.values():
        check_weight(weight)
    for factor in proposal.traffic.values():
        if not math.isfinite(factor) or not 0 <= factor <= MAX_TRAFFIC:
            raise BadRequest(f"traffic must be a factor from 0 to {MAX_TRAFFIC:g}, not {factor!r:.40}", field="traffic")
    for limits in proposal.limits.values():
        for name, value in limits.items():
            if name not in LIMITS:
                raise BadRequest(f"unknown limit {name!r:.40}", field=name[:80])
            LIMIT_RULES[name].check(value, name)
    if len(proposal.tenants) > MAX_TENANTS:
        raise BadRequest(f"a proposal may name at most {MAX_TENANTS} tenants", field="tenants")
    if proposal.slots is not None:
        check_int(proposal.slots, "slots", 1, MAX_SLOTS)
    for name in ("reserve", "share"):
        if (value := getattr(proposal, name)) is not None:
            SETTING_RULES[name].check(value, name)
    return proposal
