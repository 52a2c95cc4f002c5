"""`fairq simulate`: what tenants would get under other weights, limits and slots, of what came in the last hours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from attrs import asdict, frozen
from cyclopts import Parameter

from fairq.cli.limits import parse_limit
from fairq.cli.options import Json, Server, run_with
from fairq.cli.output import print_json, print_rows
from fairq.errors import BadRequest
from fairq.model.history import PERIOD, Period
from fairq.model.simulation.comparison import Comparison, TenantRow, compare
from fairq.model.simulation.gathering import gather
from fairq.model.simulation.setup import LIMITS, Proposal, check_proposal
from fairq.model.texts import say_ms

Of = Annotated[list[str] | None, Parameter(negative=())]


@Parameter(name="*")
@frozen
class Proposed:
    """The proposal, for tenants as TENANT=VALUE (again for another tenant), or for the queue."""

    weight: Annotated[Of, Parameter(help="A tenant's weight, as acme=4.")] = None
    max_running: Annotated[Of, Parameter(help="Tasks that run at once, as acme=10; 0 or none: any number.")] = None
    guaranteed: Annotated[Of, Parameter(help="Tasks that run before other tenants are served, as acme=2.")] = None
    rate: Annotated[Of, Parameter(help="Starts per second, as acme=5, acme=300/min.")] = None
    burst: Annotated[Of, Parameter(help="Starts at once under a rate, as acme=10.")] = None
    traffic: Annotated[Of, Parameter(help="Factor for the number of a tenant's tasks, as acme=2.")] = None
    slots: Annotated[int | None, Parameter(help="Slots of all workers together.")] = None
    share: Annotated[str | None, Parameter(help="What is shared: time or count.")] = None
    reserve: Annotated[int | None, Parameter(help="Percentage of slots to keep for tenants with nothing running.")] = (
        None
    )


def simulate(
    queue: str,
    *,
    period: Period = "1h",
    proposed: Proposed | None = None,
    run_time: Annotated[float | None, Parameter(help="Seconds that a task runs; needed if share is count.")] = None,
    json: Json = False,
    server: Server | None = None,
) -> None:
    """Predict shares and waiting times under other weights, limits or slots; nothing is changed.

    The period's tasks and run times go through a model of the fair pick twice: with the current settings, and as
    proposed. `measured` is the real history: where the current model differs from it, distrust the prediction.

    Example: `fairq simulate emails --weight acme=4 --max-running globex=10 --slots 40`

    Parameters
    ----------
    queue
        The queue.
    period
        How much history to use: 1h, 24h or 14d. Of busy queues only the last 20,000 tasks are simulated.
    """
    proposal = read_proposal(proposed or Proposed())
    wanted = PERIOD.check(period, "period")
    observed = run_with(server, lambda client: gather(client, queue, wanted, proposal, run_time))
    found = compare(observed, proposal)
    if json:
        print_json(asdict(found))
    else:
        show(found)


def read_proposal(given: Proposed) -> Proposal:
    """Read the options. Raises: BadRequest, naming the option's field."""
    limits: dict[str, dict[str, float]] = {}
    for name in LIMITS:
        for tenant, text in _pairs(name, getattr(given, name)):
            value = parse_limit(name, text)
            if value is None:
                raise BadRequest(f"{name} must be a number or none, not {text!r:.40}", field=name)
            limits.setdefault(tenant, {})[name] = value
    return check_proposal(
        Proposal(
            _numbers("weight", given.weight), limits, _numbers("traffic", given.traffic), given.slots, given.share,
            given.reserve,
        )
    )  # fmt: skip


def _pairs(name: str, texts: Sequence[str] | None) -> list[tuple[str, str]]:
    pairs = [text.rpartition("=") for text in texts or ()]
    for tenant, sign, value in pairs:
        if not tenant:
            raise BadRequest(f"{name} must be TENANT=VALUE, not {sign + value!r:.80}", field=name)
    return [(tenant, value) for tenant, _, value in pairs]


def _numbers(name: str, texts: Sequence[str] | None) -> Mapping[str, float]:
    found = {}
    for tenant, text in _pairs(name, texts):
        try:
            found[tenant] = float(text)
        except ValueError:
            raise BadRequest(f"{name} must be a number, not {text!r:.40}", field=name) from None
    return found


_COLUMNS = {
    "tenant": "tenant", "terms": "terms", "share": "share: measured", "share_today": "model",
    "share_proposed": "proposed", "p99": "wait p99: measured", "p99_today": "model", "p99_proposed": "proposed",
    "p50_proposed": "p50 proposed", "waiting": "left waiting",
}  # fmt: skip


def show(found: Comparison) -> None:
    """Print a comparison as a table, and its cautions."""
    span = say_ms(found.over_ms)
    title = f"{found.queue}: the last {span} again, on {_change(found.slots, found.proposed_slots)} slots"
    print_rows(title, _COLUMNS, [_row(each) for each in found.tenants], empty="")
    used = f"{100 * found.used:.0f} %"
    print(f"busy: {used} of the slots' time today, {100 * found.proposed_used:.0f} % as proposed")
    varied = "of very different lengths" if found.is_uneven else "of one length per tenant"
    batches = ", ".join(f"{name or 'others'} {size}" for name, size in found.batches.items())
    print(f"assumed: tasks {varied}; {'tasks that come at once: ' + batches if batches else 'they come one by one'}")
    for caution in found.cautions:
        print(f"note: {caution.text}")
    print("nothing was changed")


def _row(row: TenantRow) -> dict[str, Any]:
    cells: dict[str, Any] = {"tenant": row.tenant or "(others)", "terms": _terms(row)}
    for name, outcome in (("", row.measured), ("_today", row.today), ("_proposed", row.proposed)):
        cells[f"share{name}"] = None if outcome.share is None else f"{100 * outcome.share:.1f} %"
        cells[f"p99{name}"] = None if outcome.p99_ms is None else say_ms(outcome.p99_ms)
        cells[f"p50{name}"] = None if outcome.p50_ms is None else say_ms(outcome.p50_ms)
    return {**cells, "waiting": _change(row.today.waiting, row.proposed.waiting)}


def _terms(row: TenantRow) -> str:
    old, new = asdict(row.terms), asdict(row.proposed_terms)
    changed = [f"{name} {_change(old[name], new[name])}" for name in old if old[name] != new[name]]
    return ", ".join(changed) or f"weight {row.terms.weight:g}"


def _change(old: float, new: float) -> str:
    return f"{old:,g}" if old == new else f"{old:,g} -> {new:,g}"
