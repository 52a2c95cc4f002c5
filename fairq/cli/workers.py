"""`fairq workers`: list attached workers, show what they hold, and drain them by name."""

from __future__ import annotations

from attrs import asdict
from cyclopts import App

from fairq.cli.options import Json, Server, run_with
from fairq.cli.output import columns_of, print_json, print_rows
from fairq.client.bodies import rows as rows_of
from fairq.errors import NotFound
from fairq.model.texts import say_unlisted
from fairq.model.why_text import say_silent
from fairq.model.workers import WorkerState

workers = App(name="workers", help="List attached workers, show their tasks, and drain them by name.")

_COLUMNS = columns_of("worker", "queues", "credit", "held", "server", "attached_at_ms", "is_draining", "silent")
_TASKS = columns_of("id", "queue", "tenant", "attempt", "leased_at_ms", "server", id="task")


@workers.command(name="list")
def list_(*, json: Json = False, server: Server | None = None) -> None:
    """List the workers attached to any server; rows from other servers are some seconds old.

    Servers whose workers cannot be read are named; --json fails then.

    Example: `fairq workers list`
    """
    if json:
        _print_workers(run_with(server, lambda client: client.workers()), json=True)
        return
    found = run_with(server, lambda client: client.request("workers"))
    _print_workers(rows_of(WorkerState, found["workers"]))
    if servers := found.get("unanswered"):
        print(say_unlisted(servers))


def _print_workers(found: list[WorkerState], *, json: bool = False) -> None:
    rows = [asdict(each) for each in found]
    if not json:
        rows = [
            {**row, "silent": say_silent(each) if each.silent_ms else ""} for row, each in zip(rows, found, strict=True)
        ]
    print_rows("workers", _COLUMNS, rows, empty="no worker is attached", json=json, rare=("silent",))


@workers.command
def show(worker: str, *, count: int = 100, json: Json = False, server: Server | None = None) -> None:
    """Show the workers of a name and the tasks that they hold, on every server.

    Example: `fairq workers show mailer-1`

    Parameters
    ----------
    worker
        Name of the workers.
    count
        Workers and tasks to show, 1 to 500 of each; the tasks held longest come first.
    """
    found = run_with(server, lambda client: client.worker_tasks(worker, count))
    if json:
        print_json(asdict(found))
        return
    _print_workers(found.workers)
    print_rows(f"tasks of {worker}", _TASKS, [asdict(task) for task in found.tasks], empty="it holds no task")
    if found.unanswered:
        print(f"unknown: the tasks at {', '.join(found.unanswered)}, which did not answer")


@workers.command
def drain(worker: str, *, server: Server | None = None) -> None:
    """Let the workers of a name finish their tasks and exit, on every server. Exits with 1 if none is attached.

    Example: `fairq workers drain mailer-1`
    """
    known = run_with(server, lambda client: client.drain_worker(worker))
    if not known:
        raise NotFound(f"no worker {worker} is attached", field="worker")
    print(f"{worker}: draining ({known} attached)")
