"""The Simulate page: what tenants would get under other weights, limits and slots; nothing is changed.

A simulation is a process of its own (simulation_process.py). A page waits PATIENCE_S for it, then says that it runs and
loads itself again; what a simulation found is kept for KEPT_S, of the MAX_KEPT that were begun last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import trio
from attrs import define, field, frozen

from fairq.errors import BadRequest, NotFound, TooMany
from fairq.model.history import PERIOD, History, Period
from fairq.model.limits import Limits
from fairq.model.operating import HeldLimits, QueueRow
from fairq.model.simulation.comparison import Comparison
from fairq.model.simulation.gathering import gather
from fairq.model.simulation.observed import Observed
from fairq.model.simulation.setup import Proposal, check_proposal
from fairq.model.tenants import TenantState
from fairq.server.web.dashboard.shares import choose_queue
from fairq.server.web.dashboard.simulation_process import compare_apart
from fairq.server.web.dashboard.view import Context, View, rows_of
from fairq.wire import messages as wire

PATIENCE_S = 0.1
KEPT_S, MAX_KEPT = 10.0, 16
PERIODS = {"1h": "hour", "24h": "day", "14d": "two weeks"}


@frozen
class _ViewReader:
    """Answers as this operator is told."""

    view: View
    queue: str

    async def row(self) -> QueueRow | None:
        return next(iter(rows_of(QueueRow, (await self.view.ask(wire.Queues(0, self.queue)))["queues"])), None)

    async def history(self, period: Period, tenants: Sequence[str] | None, since_ms: int) -> History:
        named = None if tenants is None else list(tenants)
        return rows_of(History, [await self.view.ask(wire.History(0, self.queue, period, named, since_ms))])[0]

    async def tenant(self, name: str) -> TenantState | None:
        return next(
            iter(rows_of(TenantState, (await self.view.ask(wire.Tenants(0, self.queue, name)))["tenants"])), None
        )

    async def limits(self, tenant: str | None) -> Limits:
        return rows_of(HeldLimits, [await self.view.ask(wire.Limits(0, self.queue, tenant))])[0].holds


Key = tuple[str, str, tuple[tuple[str, str], ...]]  # queue, period, the query


@define(eq=False)
class Run:
    """A simulation that is under way, or what came of it."""

    over: trio.Event = field(factory=trio.Event, init=False)
    until: float = field(default=float("inf"), init=False)
    found: Comparison | Exception | None = field(default=None, init=False)

    async def outcome(self) -> Comparison | None:
        """Return the comparison; None if that takes longer than PATIENCE_S. Raises what the simulation raised."""
        with trio.move_on_after(PATIENCE_S):
            await self.over.wait()
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


@define(eq=False)
class Simulations:
    """The simulations of one server."""

    nursery: trio.Nursery
    _runs: OrderedDict[Key, Run] = field(factory=OrderedDict, init=False)

    def known(self, key: Key) -> Run | None:
        """Return a simulation that runs or has just ended."""
        run = self._runs.get(key)
        return run if run is not None and run.until > trio.current_time() else None

    def begin(self, key: Key, observed: Observed, proposal: Proposal) -> Run:
        """Begin a simulation, unless another page has begun it meanwhile. Raises: TooMany if too many are under way."""
        if known := self.known(key):
            return known
        if len(self._runs) >= MAX_KEPT:
            oldest = next((each for each, run in self._runs.items() if run.over.is_set()), None)
            if oldest is None:
                raise TooMany("too many simulations are under way", retry_in_ms=1_000)
            del self._runs[oldest]
        run = self._runs[key] = Run()
        self.nursery.start_soon(self._work, run, observed, proposal)
        return run

    async def _work(self, run: Run, observed: Observed, proposal: Proposal) -> None:
        try:
            run.found = await compare_apart(observed, proposal)
        except Exception as error:  # told on the page, which logs what is no refusal
            run.found = error
        run.until = trio.current_time() + KEPT_S
        run.over.set()


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


async def simulation(view: View) -> Context:
    """What came in the last hours, under today's setup and under what is proposed."""
    row, queues = await choose_queue(view)
    context: Context = {"row": row, "queues": queues, "periods": PERIODS, "period": "1h", "found": None, "lack": ""}
    context["is_running"] = False
    if row is None:
        return context
    queue, period = row["queue"], PERIOD.check(view.query.get("period", "1h"), "period")
    proposal = read_query(view.query)
    key = queue, period, tuple(sorted(view.query.items()))
    run = view.site.simulations.known(key)
    try:
        if run is None:
            observed = await gather(_ViewReader(view, queue), queue, period, proposal)
            run = view.site.simulations.begin(key, observed, proposal)
    except NotFound as error:
        if error.field != "period":
            raise
        return context | {"queue": queue, "period": period, "lack": "history"}
    except BadRequest as error:
        if proposal.is_empty and error.field in ("slots", "run_time"):
            return context | {"queue": queue, "period": period, "lack": error.field}
        raise
    found = await run.outcome()
    told = {"found": found, "is_running": found is None, "is_empty": proposal.is_empty}
    return context | {"queue": queue, "period": period, **told}
