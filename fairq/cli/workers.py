"""`fairq workers`: list attached workers, show what they hold, and drain them by name."""

from __future__ import annotations

from attrs import asdict
from cyclopts import App

from fairq.cli.options import Json, Server, run_with
from fairq.cli.output import print_json, print_table
from fairq.errors import NotFound
from fairq.model.texts import say_moment
from fairq.model.workers import WorkerState

workers = App(name="workers", help="List attached workers, show their tasks, and drain them by name.")

_COLUMNS = {
    "worker": "worker",
    "queues": "queues",
    "credit": "slots",
    "held": "tasks",
    "server": "server",
    "since": "attached",
    "is_draining": "draining",
}
_TASKS = {
    "id": "task", "queue": "queue", "tenant": "tenant", "attempt": "attempt", "since": "since", "server": "server",
}  # fmt: skip


@workers.command(name="list")
def list_(*, json: Json = False, server: Server | None = None) -> None:
    """List the workers attached to any server; rows of other servers are some seconds old.

    Example: `fairq workers list`
    """
    found = run_with(server or Server(), lambda client: client.workers())
    if json:
        print_json([asdict(each) for each in found])
    else:
        _print_workers(found)


def _print_workers(found: list[WorkerState]) -> None:
    rows = [
        {**asdict(each), "since": say_moment(each.attached_at_ms), "queues": ", ".join(each.queues)} for each in found
    ]
    print_table("workers", _COLUMNS, rows, empty="no worker is attached")


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
    found = run_with(server or Server(), lambda client: client.worker_tasks(worker, count))
    if json:
        print_json(asdict(found))
        return
    _print_workers(found.workers)
    rows = [{**asdict(task), "since": say_moment(task.leased_at_ms)} for task in found.tasks]
    print_table(f"tasks of {worker}", _TASKS, rows, empty="it holds no task")
    if found.unanswered:
        print(f"unknown: the tasks at {', '.join(found.unanswered)}, which did not answer")


@workers.command
def drain(worker: str, *, server: Server | None = None) -> None:
    """Let the workers of a name finish their tasks and end, on every server. Exits with 1 if none is attached.

    Example: `fairq workers drain mailer-1`
    """
    known = run_with(server or Server(), lambda client: client.drain_worker(worker))
    if not known:
        raise NotFound(f"no worker {worker} is attached", field="worker")
    print(f"{worker}: draining ({known} attached)")
