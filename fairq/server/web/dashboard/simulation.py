"""The Simulate page: what tenants would get under other weights, limits and slots; nothing is changed.

A simulation is a process of its own (simulation_process.py). Pages that ask for the same one within KEPT_S share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trio
from attrs import frozen

from fairq.errors import BadRequest, NotFound, TooMany
from fairq.model.history import PERIOD, History, Period
from fairq.model.operator_views import HeldLimits, QueueRow
from fairq.model.simulation.comparison import Comparison
from fairq.model.simulation.gathering import gather
from fairq.model.simulation.setup import Proposal, check_proposal
from fairq.model.tenants import TenantState
from fairq.server.web.dashboard.shares import choose_queue
from fairq.server.web.dashboard.simulation_process import compare_apart
from fairq.server.web.dashboard.view import Context, View, rows_of
from fairq.wire import messages as wire

KEPT_S, DEADLINE_S = 10.0, 20.0
PERIODS = {"1h": "hour", "24h": "day", "14d": "two weeks"}


@frozen
class _ViewReader:
    """Answers as this operator may see them."""

    view: View

    async def queues(self, queue: str) -> list[QueueRow]:
        return rows_of(QueueRow, (await self.view.ask(wire.Queues(0, queue)))["queues"])

    async def history(self, queue: str, period: Period, *, tenants: Sequence[str] | None, since_ms: int = 0) -> History:
        named = None if tenants is None else list(tenants)
        return rows_of(History, [await self.view.ask(wire.History(0, queue, period, named, since_ms))])[0]

    async def tenants(self, queue: str, *, tenant: str) -> list[TenantState]:
        return rows_of(TenantState, (await self.view.ask(wire.Tenants(0, queue, tenant)))["tenants"])

    async def limits(self, queue: str, tenant: str | None) -> HeldLimits:
        return rows_of(HeldLimits, [await self.view.ask(wire.Limits(0, queue, tenant))])[0]


def read_query(query: Mapping[str, str]) -> Proposal:
    """Read what is proposed: `weight:acme=4`, `max_running:acme=10`, `traffic:acme=2`, `slots`. Raises: BadRequest."""
    weights, limits, traffic = dict[str, float](), dict[str, dict[str, float]](), dict[str, float]()
    for key, text in query.items():
        name, _, tenant = key.partition(":")
        if tenant and text.strip():
            value = _number(name, text)
            if name == "weight":
                weights[tenant] = value
            elif name == "traffic":
                traffic[tenant] = value
            elif name == "max_running":
                limits[tenant] = {name: _whole(name, value)}
            else:
                raise BadRequest(f"{name!r:.40} cannot be simulated here", field=name[:80])
    slots = query.get("slots", "").strip()
    return check_proposal(
        Proposal(weights, limits, traffic, _whole("slots", _number("slots", slots)) if slots else None)
    )


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadRequest(f"{name} must be a number, not {text!r:.40}", field=name[:80]) from None


def _whole(name: str, value: float) -> int:
    if not value.is_integer():
        raise BadRequest(f"{name} must be a whole number, not {value!r:.40}", field=name)
    return int(value)


async def form(view: View) -> Context:
    """The form of a simulation. Raises: BadRequest, NotFound."""
    row, queues = await choose_queue(view)
    found: Context = {"row": row, "queues": queues, "periods": PERIODS, "found": None, "lack": ""}
    found["period"] = PERIOD.check(view.query.get("period", "1h"), "period")
    read_query(view.query)
    return found | {"queue": row["queue"]} if row else found


async def simulation(view: View) -> Context:
    """The traffic of the last hours, under today's setup and under a proposal."""
    context = await form(view)
    if context["row"] is None:
        return context
    queue, period, proposal = context["queue"], context["period"], read_query(view.query)

    async def simulate() -> Comparison:
        return await compare_apart(await gather(_ViewReader(view), queue, period, proposal), proposal)

    try:
        with trio.move_on_after(DEADLINE_S):
            found = await view.site.simulations.get(f"{queue} {period} {sorted(view.query.items())}", simulate)
            return context | {"found": found}
    except NotFound as error:
        if error.field != "period":
            raise
        return context | {"lack": "history"}
    except BadRequest as error:
        if proposal.is_empty and error.field in ("slots", "run_time"):
            return context | {"lack": error.field}
        raise
    raise TooMany("the server is too busy to simulate; `fairq simulate` does it elsewhere")
