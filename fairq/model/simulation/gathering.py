"""The questions that a simulation asks, of a client or of the server itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fairq.errors import NotFound
from fairq.model.history import MAX_NAMED, OTHERS, History, Period
from fairq.model.limits import Limits
from fairq.model.operating import QueueRow
from fairq.model.simulation.observed import Observed, cut, observe
from fairq.model.simulation.setup import Proposal
from fairq.model.tenants import TenantState


class Reader(Protocol):
    """Answers what operators and viewers may ask of one queue."""

    async def row(self) -> QueueRow | None:
        """Read the queue; None if there is none."""

    async def history(self, period: Period, tenants: Sequence[str] | None, since_ms: int) -> History:
        """Read its history."""

    async def tenant(self, name: str) -> TenantState | None:
        """Read a tenant; None if there is none."""

    async def limits(self, tenant: str | None) -> Limits:
        """Read the limits that hold for a tenant, or (None) for all."""


async def gather(
    reader: Reader, queue: str, period: Period, proposal: Proposal, run_s: float | None = None
) -> Observed:
    """Read all that a simulation of a checked proposal needs: the tenants with the most service, and those it names.

    Raises: NotFound; BadRequest, see `observe`.
    """
    row = await reader.row()
    if row is None:
        raise NotFound(f"there is no queue {queue}", field="queue")
    history = await reader.history(period, None, 0)
    since_ms = cut(history, max(proposal.traffic.values(), default=1.0))
    names = [each.tenant for each in history.tenants if each.tenant]
    named = sorted(proposal.tenants)
    names = [*named, *(name for name in names if name not in named)][:MAX_NAMED]
    if since_ms or named:
        history = await reader.history(period, names or None, since_ms)
    states, limits = {}, {OTHERS: await reader.limits(None)}
    for name in names:
        state = await reader.tenant(name)
        if state is not None:
            states[name], limits[name] = state, await reader.limits(name)
        elif name in named:
            raise NotFound(f"queue {queue} has no tenant {name}", field="tenant")
    slots = None if row.slots else proposal.slots
    return observe(row, history, states, limits, slots=slots, run_s=run_s, is_cut=since_ms > 0)
