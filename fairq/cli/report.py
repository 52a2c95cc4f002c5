"""`fairq tenants report`: what a tenant's tasks have waited for."""

from __future__ import annotations

from typing import Any

from fairq.cli.options import Server, run_with
from fairq.cli.output import print_json, print_table

_TOLD = {
    "paused": "an operator held the tenant, or the queue, back",
    "closed": "outside the opening hours of the tenant, or of the queue",
    "no_worker": "no worker was attached to that server",
    "rate": "the tenant had started as many as its rate allows",
    "max_running": "the tenant had as many running as its cap allows",
    "backlog": "the tenant's own tasks came first",
    "share": "the slots were others'",
}
_COLUMNS = {"reason": "waited for", "part": "% of all", "p50_ms": "p50 (ms)", "p99_ms": "p99 (ms)", "told": "that is"}


def show_report(server: Server | None, queue: str, tenant: str, json: bool) -> None:
    """Print what the tasks waited for, as a table, and the tenant's share."""
    body = {"queue": queue, "tenant": tenant}
    found: dict[str, Any] = run_with(server or Server(), lambda client: client.request("report", body))["report"]
    if json:
        print_json(found)
        return
    rows = [{**part, "part": round(100 * part["part"], 1), "told": _TOLD[part["reason"]]} for part in found["parts"]]
    whole = {"reason": "in all", "part": 100, "p50_ms": found["p50_ms"], "p99_ms": found["p99_ms"]}
    title = f"what {found['starts']} tasks of {tenant} in {queue} waited for"
    print_table(title, _COLUMNS, [*rows, whole] if found["starts"] else [], empty="this server has started none")
    if found["share_over_ms"]:
        over = f"in the last {found['share_over_ms'] / 1000:.0f} s"
        print(f"share: {found['delivered']:.6g} delivered, {found['entitled']:.6g} entitled, {over}")
