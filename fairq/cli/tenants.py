"""`fairq tenants`: weights, limits, pauses and shares."""

from __future__ import annotations

from cyclopts import App

from fairq.cli.limits import Limit, change_limits, show_limits
from fairq.cli.options import Json, Server, run_with
from fairq.cli.output import print_json, print_table
from fairq.cli.report import show_report
from fairq.model import check_weight

tenants = App(name="tenants", help="List a queue's tenants, tune their weights and limits, pause and resume them.")

_COLUMNS = {
    "tenant": "tenant",
    "weight": "weight",
    "ready": "ready",
    "delayed": "delayed",
    "leased": "leased",
    "dead": "dead",
    "done": "done",
    "delivered": "delivered",
    "entitled": "entitled",
    "is_limited": "limited",
    "is_paused": "paused",
}


@tenants.command(name="list")
def list_(queue: str, *, json: Json = False, server: Server | None = None) -> None:
    """List the tenants of a queue: counts, and the share delivered beside the share they were entitled to."""
    rows = run_with(server or Server(), lambda client: client.request("tenants", {"queue": queue}))["tenants"]
    if json:
        print_json(rows)
    else:
        print_table(f"tenants of {queue}", _COLUMNS, rows, empty=f"queue {queue} has no tenants yet")


@tenants.command
def set_weight(queue: str, tenant: str, weight: float, *, server: Server | None = None) -> None:
    """Give a tenant a weight (0.001 to 10000; all begin at 1). It acts on the backlog at once."""
    check_weight(weight)
    body = {"queue": queue, "tenant": tenant, "weight": weight}
    before = run_with(server or Server(), lambda client: client.request("set_weight", body))["before"]
    print(f"{tenant} in {queue}: weight {before:g} -> {weight:g}")


@tenants.command
def limits(queue: str, tenant: str, *, json: Json = False, server: Server | None = None) -> None:
    """Show what bounds a tenant: what is set for it, and what holds."""
    show_limits(server, queue, tenant, json)


@tenants.command
def set_limits(
    queue: str,
    tenant: str,
    *,
    cap: Limit = None,
    guaranteed: Limit = None,
    rate: Limit = None,
    burst: Limit = None,
    queued: Limit = None,
    queued_bytes: Limit = None,
    delayed: Limit = None,
    dead: Limit = None,
    server: Server | None = None,
) -> None:
    """Bound a tenant. Each limit is a number, `none`, or `default`: the one for all (fairq queues set-limits).

    Parameters
    ----------
    cap
        Tasks that run at once.
    guaranteed
        Tasks that run at once before others' are served; slots that it does not use are everybody's.
    rate
        Starts a second, or `300/min`, `1000/h`, `5/d`.
    burst
        Starts at once (none: as many as the rate gives in a second).
    queued
        Tasks that wait: more are refused with `quota_exceeded`, and when to try again.
    queued_bytes
        Bytes of their payloads.
    delayed
        Tasks that wait for their start.
    dead
        Dead letters: of more, the oldest go.
    """
    given = {
        "cap": cap, "guaranteed": guaranteed, "rate": rate, "burst": burst, "queued": queued,
        "queued_bytes": queued_bytes, "delayed": delayed, "dead": dead,
    }  # fmt: skip
    change_limits(server, queue, tenant, given)


@tenants.command
def report(queue: str, tenant: str, *, json: Json = False, server: Server | None = None) -> None:
    """Show what a tenant's tasks waited for in the last minutes, as one server saw it, and the share it had."""
    show_report(server, queue, tenant, json)


@tenants.command
def pause(queue: str, tenant: str, *, server: Server | None = None) -> None:
    """Hold back a tenant's tasks; those that run go on, and new ones are still taken."""
    run_with(server or Server(), lambda client: client.request("pause", {"queue": queue, "tenant": tenant}))
    print(f"{tenant} in {queue}: paused")


@tenants.command
def resume(queue: str, tenant: str, *, server: Server | None = None) -> None:
    """Undo pause."""
    run_with(server or Server(), lambda client: client.request("resume", {"queue": queue, "tenant": tenant}))
    print(f"{tenant} in {queue}: resumed")
