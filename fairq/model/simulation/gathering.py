"""The questions that a simulation asks, of a client or of the server itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fairq.errors import NotFound, Unavailable
from fairq.model.history import MAX_NAMED, OTHERS, History, Period
from fairq.model.operator_views import HeldLimits, QueueRow
from fairq.model.simulation.observed import Observed, cut, observe
from fairq.model.simulation.setup import Proposal
from fairq.model.tenants import TenantState
from fairq.model.texts import say_away


class Reader(Protocol):
    """Answers what operators and viewers may ask, as an operator's client does."""

    async def queues(self, queue: str, /) -> Sequence[QueueRow]:
        """Read a queue, if there is one."""

    async def history(
        self, queue: str, period: Period, /, *, tenants: Sequence[str] | None, since_ms: int = 0
    ) -> History:
        """Read its history."""

    async def tenants(self, queue: str, /, *, tenant: str) -> Sequence[TenantState]:
        """Read a tenant, if there is one."""

    async def limits(self, queue: str, tenant: str | None, /) -> HeldLimits:
        """Read the limits that hold for a tenant, or (None) for all."""


async def gather(
    reader: Reader, queue: str, period: Period, proposal: Proposal, run_s: float | None = None
) -> Observed:
    """Read all that a simulation of a checked proposal needs: the tenants with the most service, and those it names.

    Raises: NotFound; BadRequest, see `observe`; Unavailable if a partition does not answer.
    """
    rows = await reader.queues(queue)
    if not rows:
        raise NotFound(f"there is no queue {queue}", field="queue")
    history = await _whole(reader, queue, period, None)
    since_ms = cut(history, max(proposal.traffic.values(), default=1.0))
    names = [each.tenant for each in history.tenants if each.tenant]
    named = sorted(proposal.tenants)
    names = [*named, *(name for name in names if name not in named)][:MAX_NAMED]
    if since_ms or named:
        history = await _whole(reader, queue, period, names or None, since_ms)
    states, limits = {}, {OTHERS: (await reader.limits(queue, None)).holds}
    for name in names:
        if found := await reader.tenants(queue, tenant=name):
            states[name], limits[name] = found[0], (await reader.limits(queue, name)).holds
        elif name in named:
            raise NotFound(f"queue {queue} has no tenant {name}", field="tenant")
    slots = None if rows[0].slots else proposal.slots
    return observe(rows[0], history, states, limits, slots=slots, run_s=run_s)


async def _whole(
    reader: Reader, queue: str, period: Period, tenants: Sequence[str] | None, since_ms: int = 0
) -> History:
    """Read a history of which no partition is missing: a part of it would predict too little. Raises: Unavailable."""
    found = await reader.history(queue, period, tenants=tenants, since_ms=since_ms)
    if found.away:
        raise Unavailable(say_away(queue, found.away))
    return found
