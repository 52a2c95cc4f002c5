"""`fairq tasks`: list, show, cancel and reschedule tasks."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from attrs import asdict, frozen
from cyclopts import App, Parameter

from fairq.cli.confirm import Yes, check_choice
from fairq.cli.options import Json, Server, Span, run_with
from fairq.cli.output import columns_of, print_json, print_rows
from fairq.cli.purges import DryRun, purge
from fairq.model.attempts import AttemptState
from fairq.model.texts import say_moment

tasks = App(name="tasks", help="List, show, cancel and reschedule tasks.")

All = Annotated[bool, Parameter(name="--all", negative=(), help="Cancel all waiting tasks that match the filters.")]


@Parameter(name="*")
@frozen
class Filter:
    """Select the waiting tasks that match all of these."""

    tenant: Annotated[
        str | None, Parameter(help="Tenant of the tasks; operators must name it (default: the token's tenant).")
    ] = None
    older_than: Annotated[
        timedelta | None, Parameter(help="Only tasks enqueued longer ago than this: 90s, 30m, 12h, 7d.")
    ] = None
    error: Annotated[str | None, Parameter(help="Only tasks with a last error that contains this text.")] = None


_STATES = columns_of("id", "state", "tenant", "attempt", "lost_leases", "when", "worker", "reason", "error", id="task")
_WHEN = {"ready": "ready since ", "delayed": "starts at ", "leased": "leased until ", "dead": "died at "}
_WAITING = {"id": "task", "enqueued_at_ms": "enqueued", "payload": "payload"}


@Parameter(name="*")
@frozen
class AttemptFilter:
    """Select the attempts that match all of these."""

    state: Annotated[AttemptState | None, Parameter(help="Only attempts in this state.")] = None
    tenant: Annotated[str | None, Parameter(help="Only attempts at tasks of this tenant.")] = None
    name: Annotated[str | None, Parameter(help="Only attempts at tasks of this name.")] = None
    error: Annotated[str | None, Parameter(help="Only attempts with an error that contains this text.")] = None


_ATTEMPTS = columns_of("id", "state", "name", "attempt", "leased_at_ms", "ran_ms", "worker", "error", id="task")


@tasks.command(name="list")
def list_(
    queue: str,
    *,
    which: AttemptFilter | None = None,
    count: int = 100,
    json: Json = False,
    server: Server | None = None,
) -> None:
    """List the running attempts, the oldest first, and the last ended ones; operators only.

    Each server keeps the last 500 ended attempts of a queue in memory, until it stops.

    Example: `fairq tasks list emails --state failed --tenant acme --error 503`

    Parameters
    ----------
    queue
        Queue of the tasks.
    count
        Running attempts to list, and ended attempts to list, 1 to 500.
    """
    words = asdict(which or AttemptFilter())
    found = run_with(server, lambda client: client.attempts(queue, **words, count=count))
    if json:
        print_json(asdict(found))
        return
    rows = [{**asdict(each), "attempt": each.attempt or ""} for each in (*found.running, *found.ended)]
    print_rows(f"attempts in {queue}", _ATTEMPTS, rows, empty="no attempt matches", rare=("name", "worker", "error"))
    if found.unanswered:
        print(f"unknown: the attempts at {', '.join(found.unanswered)}, which did not answer")


@tasks.command
def show(queue: str, *ids: str, json: Json = False, server: Server | None = None) -> None:
    """Show the states of tasks. Operators name them as `<tenant>/<id>`.

    Example: `fairq tasks show emails acme/a1`
    """
    states = run_with(server, lambda client: client.tasks(queue, ids))
    rows = [asdict(state) for state in states]
    if json:
        unknown = {"tenant": "", "at_ms": 0}  # of a task that is done, for instance
        rows = [{name: value for name, value in row.items() if unknown.get(name) != value} for row in rows]
    else:  # attempt 0: no attempt yet, or no longer known
        rows = [
            {**row, "attempt": row["attempt"] or "", "when": at and _WHEN[row["state"]] + at}
            for row in rows
            for at in [say_moment(row["at_ms"])]
        ]
    print_rows(f"tasks of {queue}", _STATES, rows, empty="name at least one task", rare=("lost_leases",), json=json)


@tasks.command
def peek(
    queue: str, *, count: int = 10, tenant: str | None = None, json: Json = False, server: Server | None = None
) -> None:
    """Show a tenant's next tasks in order, without taking them.

    Example: `fairq tasks peek emails --tenant acme --count 3`

    Parameters
    ----------
    queue
        Queue of the tasks.
    count
        Tasks to show, 1 to 500.
    tenant
        Tenant of the tasks; operators must name it (default: the token's tenant).
    """
    waiting = run_with(server, lambda client: client.peek(queue, count, tenant=tenant))
    rows = [asdict(task) for task in waiting]
    print_rows(f"next tasks in {queue}", _WAITING, rows, empty="nothing is ready", json=json)


@tasks.command
def cancel(
    queue: str,
    *ids: str,
    everything: All = False,
    which: Filter | None = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    server: Server | None = None,
) -> int:
    """Cancel tasks: waiting ones never run, running ones are stopped. Exits with 1 if no task was found.

    With --all: every matching waiting task of a tenant, but no running one. If interrupted, run it again.

    Example: `fairq tasks cancel emails --all --tenant acme --older-than 7d`
    """
    check_choice(ids, everything, "filters, --dry-run and --yes", which is not None or dry_run or yes)
    if everything:
        words = asdict(which or Filter())
        title = f"{words['tenant']} in {queue}" if words["tenant"] else queue
        return purge(
            title, lambda client, dry_run: client.cancelling_all(queue, dry_run=dry_run, **words),
            dry_run=dry_run, yes=yes, json=json, server=server,
        )  # fmt: skip
    return _print_outcomes(ids, run_with(server, lambda client: client.cancel(queue, ids)), json)


@tasks.command
def reschedule(
    queue: str, *ids: str, delay: Span | None = None, json: Json = False, server: Server | None = None
) -> int:
    """Change when waiting tasks start. Exits with 1 if none of them could be changed.

    Example: `fairq tasks reschedule emails acme/a1 --delay 1h`

    Parameters
    ----------
    queue
        Queue of the tasks.
    delay
        Time from now, as 90, 5m or 7d (default: 0).
    """
    outcomes = run_with(server, lambda client: client.reschedule(queue, ids, delay=delay))
    return _print_outcomes(ids, outcomes, json)


def _print_outcomes(ids: tuple[str, ...], outcomes: list[str], json: bool) -> int:
    rows: list[dict[str, Any]] = [{"id": id, "outcome": outcome} for id, outcome in zip(ids, outcomes, strict=True)]
    if json:
        print_json(rows)
    else:
        for row in rows:
            print(f"{row['id']}: {row['outcome']}")
    return int(set(outcomes) <= {"gone", "expired"})
