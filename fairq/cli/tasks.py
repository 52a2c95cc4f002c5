"""`fairq tasks`: look at tasks, cancel them, move their starts."""

from __future__ import annotations

from typing import Any

from attrs import asdict
from cyclopts import App

from fairq.cli.options import Json, Server, run_with
from fairq.cli.output import print_json, print_table

tasks = App(name="tasks", help="Look at tasks, cancel them, move their starts.")

_STATES = {
    "id": "task", "state": "state", "tenant": "tenant", "attempt": "attempt", "at_ms": "at (ms)", "worker": "worker",
    "reason": "reason", "error": "error",
}  # fmt: skip
_WAITING = {"id": "task", "enqueued_at_ms": "enqueued (ms)", "payload": "payload"}


@tasks.command
def show(queue: str, *ids: str, json: Json = False, server: Server | None = None) -> None:
    """Show what is known of tasks. Operators name them as `<tenant>/<id>`."""
    states = run_with(server or Server(), lambda client: client.tasks(queue, ids))
    rows = [asdict(state) for state in states]
    if json:
        print_json(rows)
    else:
        shown = [{**row, "attempt": row["attempt"] or ""} for row in rows]  # none yet, or not known any more
        print_table(f"tasks of {queue}", _STATES, shown, empty="name at least one task")


@tasks.command
def peek(
    queue: str, *, count: int = 10, tenant: str | None = None, json: Json = False, server: Server | None = None
) -> None:
    """Show a tenant's next tasks in their order, without taking them.

    Parameters
    ----------
    queue
        The queue.
    count
        How many, 1 to 500.
    tenant
        Whose; a tenant sees its own, operators say it.
    """
    waiting = run_with(server or Server(), lambda client: client.peek(queue, count, tenant=tenant))
    rows = [asdict(task) for task in waiting]
    if json:
        print_json(rows)
    else:
        print_table(f"next tasks in {queue}", _WAITING, rows, empty="nothing is ready")


@tasks.command
def cancel(queue: str, *ids: str, json: Json = False, server: Server | None = None) -> int:
    """Cancel tasks: those that wait never run, the workers of those that run are told to stop. 1 if none was there."""
    return _print_outcomes(ids, run_with(server or Server(), lambda client: client.cancel(queue, ids)), json)


@tasks.command
def reschedule(
    queue: str, *ids: str, delay: float | None = None, json: Json = False, server: Server | None = None
) -> int:
    """Let waiting tasks start after so many seconds, or now. 1 if none of them waits.

    Parameters
    ----------
    queue
        The queue.
    delay
        Seconds from now; without it they are ready at once.
    """
    outcomes = run_with(server or Server(), lambda client: client.reschedule(queue, ids, delay=delay))
    return _print_outcomes(ids, outcomes, json)


def _print_outcomes(ids: tuple[str, ...], outcomes: list[str], json: bool) -> int:
    rows: list[dict[str, Any]] = [{"id": id, "outcome": outcome} for id, outcome in zip(ids, outcomes, strict=True)]
    if json:
        print_json(rows)
    else:
        for row in rows:
            print(f"{row['id']}: {row['outcome']}")
    return int(set(outcomes) <= {"gone", "expired"})
