"""`fairq workers`: list attached workers, and drain them by name."""

from __future__ import annotations

from datetime import UTC, datetime

from attrs import asdict
from cyclopts import App

from fairq.cli.options import Json, Server, run_with
from fairq.cli.output import print_json, print_table

workers = App(name="workers", help="List attached workers, and drain them by name.")

_COLUMNS = {
    "worker": "worker",
    "queues": "queues",
    "credit": "slots",
    "held": "tasks",
    "server": "server",
    "since": "attached",
    "is_draining": "draining",
}


@workers.command(name="list")
def list_(*, json: Json = False, server: Server | None = None) -> None:
    """List the workers attached to any server; rows of other servers are some seconds old."""
    rows = [asdict(row) for row in run_with(server or Server(), lambda client: client.workers())]
    if json:
        print_json(rows)
        return
    for row in rows:
        row["since"] = datetime.fromtimestamp(row["attached_at_ms"] / 1000, UTC).isoformat(" ", "seconds")
        row["queues"] = ", ".join(row["queues"])
    print_table("workers", _COLUMNS, rows, empty="no worker is attached")


@workers.command
def drain(worker: str, *, server: Server | None = None) -> None:
    """Let the workers of a name finish their tasks and end, on every server."""
    known = run_with(server or Server(), lambda client: client.drain_worker(worker))
    print(f"{worker}: {f'draining ({known} attached)' if known else 'no such worker is attached'}")
