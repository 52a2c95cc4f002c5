"""`fairq tenants report`: what a tenant's tasks waited for."""

from __future__ import annotations

from attrs import asdict

from fairq.cli.options import Server, run_with
from fairq.cli.output import print_json, print_table

_TOLD = {
    "paused": "an operator paused the tenant or the queue",
    "closed": "outside the opening hours of the tenant or the queue",
    "no_worker": "no worker was attached to that server",
    "rate": "the tenant had reached its rate",
    "max_running": "the tenant had reached its max_running",
    "backlog": "the tenant's own tasks came first",
    "share": "other tenants used the slots",
}
_COLUMNS = {"cause": "waited for", "part": "% of all", "p50_ms": "p50 (ms)", "p99_ms": "p99 (ms)", "told": "meaning"}


def show_report(server: Server | None, queue: str, tenant: str, json: bool) -> None:
    """Print what the tasks waited for, as a table, and the tenant's share."""
    found = asdict(run_with(server or Server(), lambda client: client.report(queue, tenant)))
    if json:
        print_json(found)
        return
    rows = [{**part, "part": round(100 * part["part"], 1), "told": _TOLD[part["cause"]]} for part in found["parts"]]
    whole = {"cause": "total", "part": 100, "p50_ms": found["p50_ms"], "p99_ms": found["p99_ms"]}
    title = f"what {found['starts']} tasks of {tenant} in {queue} waited for"
    empty = (
        f"the server that was asked has started no task of {tenant} in {queue} in the last 5 minutes; others may have"
    )
    print_table(title, _COLUMNS, [*rows, whole] if found["starts"] else [], empty=empty)
    if found["share_over_ms"]:
        over = f"in the last {found['share_over_ms'] / 1000:.0f} s"
        print(f"share: {found['delivered']:.6g} delivered, {found['entitled']:.6g} entitled, {over}")
