"""`fairq tenants`: weights, limits, opening hours, pauses and shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from attrs import asdict
from cyclopts import App, Parameter

from fairq.cli.changes import change
from fairq.cli.confirm import Yes, agrees
from fairq.cli.limits import GivenLimits, change_limits, show_limits
from fairq.cli.opening_hours import Always, Windows, show_opening_hours
from fairq.cli.options import IfVersion, Json, Server, run_with
from fairq.cli.output import columns_of, make_table, print_json
from fairq.cli.purges import DryRun, purge
from fairq.cli.report import show_report
from fairq.cli.watch import Watch
from fairq.cli.watch import watch as draw
from fairq.client.operator import read_tenants
from fairq.model.checks import check_weight
from fairq.model.fairness import split_service
from fairq.model.tenants import TenantState
from fairq.model.texts import say_away

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fairq.client.operator import OperatorClient

tenants = App(
    name="tenants", help="List a queue's tenants, set weights, limits and hours, pause, resume, purge and delete."
)

_COLUMNS = columns_of(
    "tenant", "weight", "ready", "pending", "delayed", "leased", "dead", "done", "delivered", "contested", "entitled",
    "free", "is_limited", "is_paused", "is_closed", "version", entitled="due", version="weight's version",
)  # fmt: skip

_UNITS = (
    "delivered since the tenant came, in seconds of worker time, or tasks where the queue's share is count; what it "
    "got while tenants waited is contested: compare it with its due; what nobody waited for is free"
)
_RARE = ("pending", "delayed", "dead", "is_limited", "is_paused", "is_closed")


@tenants.command(name="list")
def list_(queue: str, *, watch: Watch = False, json: Json = False, server: Server | None = None) -> None:
    """List the tenants of a queue: counts, and the service of each since it came, contested and free, with its due.

    Example: `fairq tenants list emails`
    """

    async def picture(client: OperatorClient, lines: int) -> RenderableType:
        from rich.console import Group

        states, away = await read_tenants(client, queue)
        rows = _rows(states)
        empty = f"queue {queue} has no tenants yet"
        table = make_table(f"tenants of {queue}", _COLUMNS, rows, empty=empty, rare=_RARE, lines=lines)
        return Group(table, *([_UNITS] if rows else []), *([say_away(queue, away)] if away else []))

    if json:
        print_json(_rows(run_with(server, lambda client: client.tenants(queue))))
    else:
        draw(server, picture, once=not watch)


def _rows(states: Sequence[TenantState]) -> list[dict[str, Any]]:
    services = split_service({each.tenant: (each.delivered, each.entitled) for each in states})
    return [
        asdict(each) | {"entitled": got.due, "contested": got.contested, "free": got.free}
        for each in states
        for got in (services[each.tenant],)
    ]


@tenants.command
def set_weight(
    queue: str, tenant: str, weight: float, *, if_version: IfVersion = None, server: Server | None = None
) -> None:
    """Set a tenant's weight, 0.001 to 10000 (initially 1). It applies to the backlog at once.

    Example: `fairq tenants set-weight emails acme 2.5`
    """
    check_weight(weight)
    previous = change(
        server, queue, tenant, lambda client: client.set_weight(queue, tenant, weight, if_version=if_version)
    )
    print(f"{tenant} in {queue}: weight {previous:g} -> {weight:g}")


@tenants.command
def limits(queue: str, tenant: str, *, json: Json = False, server: Server | None = None) -> None:
    """Show the limits of a tenant: those set for it, and those in force.

    Example: `fairq tenants limits emails acme`
    """
    show_limits(server, queue, tenant, json)


@tenants.command
def set_limits(
    queue: str,
    tenant: str,
    *,
    limits: GivenLimits | None = None,  # type: ignore[valid-type]
    if_version: IfVersion = None,
    server: Server | None = None,
) -> None:
    """Set limits of a tenant: each a number, `none`, or `default` (as set by fairq queues set-limits).

    Example: `fairq tenants set-limits emails acme --max-running 10 --rate 300/min`
    """
    change_limits(server, queue, tenant, limits, if_version)


@tenants.command
def hours(
    queue: str,
    tenant: str,
    text: Windows = None,
    *,
    always: Always = False,
    if_version: IfVersion = None,
    json: Json = False,
    server: Server | None = None,
) -> None:
    """Show or set the opening hours of a tenant. While it is closed its tasks wait; running ones continue.

    Example: `fairq tenants hours emails acme "mon-fri 8:00-17:00 Europe/Copenhagen"`
    """
    show_opening_hours(server, queue, tenant, text, always, if_version, json)


@tenants.command
def report(queue: str, tenant: str, *, json: Json = False, server: Server | None = None) -> None:
    """Show what a tenant's tasks waited for in the last minutes, and what it did in the last hours, at all servers.

    Example: `fairq tenants report emails acme`
    """
    show_report(server, queue, tenant, json)


@tenants.command(name="purge")
def purge_(
    queue: str,
    tenant: str,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    server: Server | None = None,
) -> int:
    """Cancel all waiting tasks of a tenant; running tasks, dead letters and schedules stay.

    If interrupted, it says how many it has cancelled; run it again to continue.

    Example: `fairq tenants purge emails acme --dry-run`
    """

    return purge(
        f"{tenant} in {queue}", lambda client, dry_run: client.cancelling_all(queue, tenant=tenant, dry_run=dry_run),
        dry_run=dry_run, yes=yes, json=json, server=server,
    )  # fmt: skip


@tenants.command
def delete(
    queue: str,
    tenant: str,
    *,
    purge: Annotated[
        bool,
        Parameter(
            negative=(), help="Also delete its schedules, waiting tasks and dead letters, and close its batches."
        ),
    ] = False,
    yes: Yes = False,
    server: Server | None = None,
) -> int:
    """Delete an empty tenant, with its weight, limits, opening hours, pause and feed; a task makes it again.

    Results, dedupe keys and complete batches are kept for their time; until then the tenant cannot be deleted, and the
    error says when that is over at the latest.

    Example: `fairq tenants delete emails acme --purge --yes`
    """

    async def work(client: OperatorClient) -> None:
        if purge:
            await client.empty_tenant(queue, tenant)
        await client.delete_tenant(queue, tenant)

    question = f"Delete {tenant} in {queue} with its schedules, waiting tasks and dead letters?"
    if not agrees(yes or not purge, "--purge", lambda: question, "nothing was deleted"):
        return 1
    run_with(server, work)
    print(f"{tenant} in {queue}: deleted")
    return 0


@tenants.command
def pause(queue: str, tenant: str, *, server: Server | None = None) -> None:
    """Stop starting a tenant's tasks; running tasks continue, and new tasks are still accepted.

    Example: `fairq tenants pause emails acme`
    """
    change(server, queue, tenant, lambda client: client.pause(queue, tenant))
    print(f"{tenant} in {queue}: paused")


@tenants.command
def resume(queue: str, tenant: str, *, server: Server | None = None) -> None:
    """Undo pause.

    Example: `fairq tenants resume emails acme`
    """
    was_paused = change(server, queue, tenant, lambda client: client.resume(queue, tenant))
    print(f"{tenant} in {queue}: resumed" if was_paused else f"{tenant} in {queue}: it was not paused")
