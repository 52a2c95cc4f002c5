"""Side by side: the measurements, what the model says of today's setup, and what it predicts for a proposed one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from attrs import frozen

from fairq.errors import NotFound
from fairq.model.history import OTHERS
from fairq.model.simulation.observed import LITTLE_STARTS, Caution, Observed
from fairq.model.simulation.run import Outcome, Played, play
from fairq.model.simulation.setup import Proposal, Setup, Terms, check_proposal
from fairq.model.simulation.traffic import Pattern, batch_size

_UNFIT = math.log(2.0)
_FLOOR_MS = 20.0  # differences below are of no interest


@frozen
class TenantRow:
    """A tenant (empty: all others): its terms; what it got, and would get under today's and the proposed ones."""

    tenant: str
    terms: Terms
    proposed_terms: Terms
    measured: Outcome
    today: Outcome
    proposed: Outcome


@frozen
class Comparison:
    """A simulation: its period, the slots and how busy they are, its tenants, and cautions.

    Facts that the history lacks are assumed so that the model comes nearest to the measurements: `is_uneven` run times,
    and how many tasks come at once (`batches`, of tenants where it is more than one).
    """

    queue: str
    over_ms: int
    slots: int
    proposed_slots: int
    used: float
    proposed_used: float
    is_uneven: bool
    batches: Mapping[str, int]
    tenants: Sequence[TenantRow]
    cautions: Sequence[Caution]


def compare(observed: Observed, proposal: Proposal) -> Comparison:
    """Simulate a queue as it is and as it would be: at most four simulations. Raises: BadRequest, NotFound."""
    check_proposal(proposal)
    if unknown := proposal.tenants - observed.measured.keys():
        raise NotFound(f"queue {observed.queue} has no tenant {min(unknown)!r:.80}", field="tenant")
    pattern, today = _fit(observed)
    setup = proposal.apply(observed.setup)

    def factor(tenant: str) -> float:
        return proposal.traffic.get(tenant, 1.0)

    proposed = play(setup, observed.demands, observed.step_ms, pattern, factors=factor)
    rows = [
        TenantRow(
            name, _terms_of(observed.setup, name), _terms_of(setup, name), measured, today.outcomes[name],
            proposed.outcomes[name],
        )
        for name, measured in observed.measured.items()
    ]  # fmt: skip
    rows.sort(key=lambda row: (row.tenant == OTHERS, -(row.today.share or 0.0), row.tenant))
    cautions = [*observed.cautions, *_cautions(observed, proposal, today, proposed)]
    return Comparison(
        observed.queue, round(today.over_ms), observed.setup.slots, setup.slots, today.used, proposed.used,
        pattern.is_uneven, dict(pattern.batches), rows, cautions,
    )  # fmt: skip


def _terms_of(setup: Setup, name: str) -> Terms:
    return setup.tenants.get(name) or next(terms for key, terms in setup.tenants.items() if key.startswith(" "))


def _fit(observed: Observed) -> tuple[Pattern, Played]:
    """Return the pattern of arrivals and run times under which the model comes closest to the measurements."""
    arrivals: dict[str, list[Sequence[int]]] = {}
    for demand in observed.demands:
        arrivals.setdefault(demand.group, []).append(demand.arrivals)
    sizes = {name: batch_size([sum(column) for column in zip(*some, strict=True)]) for name, some in arrivals.items()}
    batches = {name: size for name, size in sizes.items() if size > 1}
    best: tuple[float, Pattern, Played] | None = None
    for pattern in (Pattern(batches), Pattern(batches, is_uneven=False), *([Pattern()] if batches else [])):
        played = play(observed.setup, observed.demands, observed.step_ms, pattern)
        misfit = _misfit(observed.measured, played.outcomes)
        if best is None or misfit < best[0]:
            best = misfit, pattern, played
    assert best is not None
    return best[1:]


def _misfit(measured: Mapping[str, Outcome], outcomes: Mapping[str, Outcome]) -> float:
    """Return how far waiting times are off, on average over what started: logarithms of factors."""
    started = sum(each.started for each in measured.values())
    return sum(
        (_apart(each.p50_ms, outcomes[name].p50_ms) + _apart(each.p99_ms, outcomes[name].p99_ms)) / 2 * each.started
        for name, each in measured.items()
    ) / (started or 1)


def _apart(one: int | None, other: int | None) -> float:
    return abs(math.log(((one or 0) + _FLOOR_MS) / ((other or 0) + _FLOOR_MS)))


def _cautions(observed: Observed, proposal: Proposal, today: Played, proposed: Played) -> list[Caution]:
    found = []
    unfit = [
        name or "the others"
        for name, measured in observed.measured.items()
        if measured.started >= LITTLE_STARTS and _apart(measured.p99_ms, today.outcomes[name].p99_ms) > _UNFIT
    ]
    if unfit:
        who = ", ".join(unfit)
        text = f"Ignore the waits of {who}: the model's are off by more than a factor of two today."
        found.append(Caution("fit", text))
    for played, when in ((today, "today"), (proposed, "as proposed")):
        behind = [name or "the others" for name in played.outcomes if _grows(observed, name, played.outcomes[name])]
        if behind:
            who = ", ".join(behind)
            text = f"Compare how many tasks of {who} are left waiting, not the waits: {when} more comes than is served."
            found.append(Caution("overload", text))
    idle = [name for name in sorted(proposal.tenants) if not observed.measured[name].started]
    if idle:
        who = ", ".join(idle)
        text = f"Choose a period in which tasks of {who} started: in this one your change shows nothing."
        found.append(Caution("idle", text))
    return found


def _grows(observed: Observed, name: str, outcome: Outcome) -> bool:
    """True if a tenant's backlog is larger in the end, by a tenth of what it started at least."""
    began = sum(each.waiting for each in observed.demands if each.group == name)
    return outcome.waiting - began > max(10, outcome.started / 10)
