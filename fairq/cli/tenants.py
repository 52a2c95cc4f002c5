"""`fairq tenants`: weights, pauses and shares."""

from __future__ import annotations

from cyclopts import App

from fairq.cli.options import Json, Server, run_with
from fairq.cli.output import print_json, print_table
from fairq.model import check_weight

tenants = App(name="tenants", help="List a queue's tenants, tune their weights, pause and resume them.")

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
    "cap": "cap",
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
def set_cap(queue: str, tenant: str, cap: int | None = None, *, server: Server | None = None) -> None:
    """Let at most so many tasks of a tenant run at once (0: any number; without a number: the queue's tenant_cap)."""
    body = {"queue": queue, "tenant": tenant, "cap": cap}
    before = run_with(server or Server(), lambda client: client.request("set_cap", body))["before"]
    print(f"{tenant} in {queue}: cap {_say_cap(before)} -> {_say_cap(cap)}")


def _say_cap(cap: int | None) -> str:
    return "of the queue" if cap is None else str(cap) if cap else "none"


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
