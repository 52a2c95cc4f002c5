"""`fairq schedules`: recurring tasks."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from attrs import asdict
from cyclopts import App, Parameter

from fairq.cli.options import Json, Server, Span, run_with
from fairq.cli.output import columns_of, local_time, print_json, print_rows
from fairq.cli.payloads import read_payload
from fairq.cli.task_flags import TaskFlags
from fairq.client.requests import check_whole
from fairq.client.schedules import read_schedules
from fairq.errors import BadRequest, NotFound
from fairq.model.schedules import ScheduleState
from fairq.model.tasks import SCHEDULED
from fairq.model.texts import moment_of, say_away

if TYPE_CHECKING:
    from fairq.client.client import Client

schedules = App(name="schedules", help="Create, list, pause, resume and remove recurring tasks.")

_COLUMNS = columns_of("tenant", "name", "fires", "zone", "misfire", "next", "last", "is_paused", "app")
_NOT_LISTED = (*SCHEDULED, "task_name", "payload")
Tenant = Annotated[str | None, Parameter(help="Tenant of the schedule; for tokens of operators and producers only.")]


def _at(ms: int, zone: str) -> str:
    return local_time(moment_of(ms), zone) if ms else ""


@schedules.command
def create(
    queue: str,
    name: str,
    payload: Annotated[str, Parameter(allow_leading_hyphen=True)],
    *,
    cron: str | None = None,
    zone: str | None = None,
    every: Span | None = None,
    misfire: Literal["skip", "once"] = "skip",
    task_name: str | None = None,
    flags: TaskFlags | None = None,
    tenant: Tenant = None,
    json: Json = False,
    server: Server | None = None,
) -> None:
    """Create or change a schedule, and print its next three fires.

    Example: `fairq schedules create emails nightly '{"report": 1}' --cron "0 3 * * *" --zone Europe/Copenhagen`

    Parameters
    ----------
    queue
        Queue of its tasks.
    name
        Name of the schedule: 1 to 40 characters of a-z, 0-9, '-', '_'.
    payload
        Payload of every task, any JSON value; `-` reads it from standard input.
    cron
        Minute, hour, day of the month, month and day of the week: `--cron "0 3 * * *"`, or @daily
        and the like.
    zone
        Time zone of --cron, such as Europe/Copenhagen (default: UTC).
    every
        Time between two fires, as 90, 5m or 1d, instead of --cron.
    misfire
        Fires missed while the service was down: skip them all, or fire once for all of them.
    task_name
        Name of its tasks, for the handler of this name (default: the schedule's).
    """
    value = read_payload(payload)
    if cron is None and every is None:
        raise BadRequest("missing timing: give --cron or --every", field="cron")
    if cron is not None and every is not None:
        raise BadRequest("give --cron or --every, not both", field="cron")

    async def work(client: Client) -> list[datetime]:
        options = asdict(flags or TaskFlags()) | {"name": task_name}
        return await client.schedule(
            queue, name, value, cron=cron, zone=zone, every=every, misfire=misfire, tenant=tenant, **options
        )

    fires = run_with(server, work)
    if json:
        print_json({"queue": queue, "name": name, "fires_at": fires})
        return
    print(f"{name} in {queue} fires next at")
    for moment in fires:
        print(f"  {local_time(moment, zone)}")


@schedules.command(name="list")
def list_(queue: str, *, tenant: Tenant = None, json: Json = False, server: Server | None = None) -> None:
    """List the schedules of a queue, in the order of their next fires. Operators see all tenants', or --tenant's.

    Partitions that do not answer are named; --json fails then.

    Example: `fairq schedules list emails`
    """
    states, away = run_with(server, lambda client: read_schedules(client, queue, tenant))
    if json:
        check_whole(queue, away)
    rows = [{name: it for name, it in asdict(state).items() if name not in _NOT_LISTED} for state in states]
    if not json:
        rows = [row | _cells(state) for row, state in zip(rows, states, strict=True)]
    print_rows(f"schedules of {queue}", _COLUMNS, rows, empty=f"queue {queue} has no schedules", json=json)
    if away:
        print(say_away(queue, away))


def _cells(state: ScheduleState) -> dict[str, Any]:
    return {
        "fires": state.cron or f"every {state.every_ms / 1000:g} s",
        "next": "" if state.is_paused else _at(state.next_at_ms, state.zone),
        "last": _at(state.last_fired_at_ms, state.zone),
    }


@schedules.command
def pause(queue: str, name: str, *, tenant: Tenant = None, server: Server | None = None) -> None:
    """Stop a schedule from firing until it is resumed.

    Example: `fairq schedules pause emails nightly`
    """
    run_with(server, lambda client: client.pause_schedule(queue, name, tenant=tenant))
    print(f"{name} in {queue}: paused")


@schedules.command
def resume(queue: str, name: str, *, tenant: Tenant = None, server: Server | None = None) -> None:
    """Undo pause. Fires missed during the pause are not made up for.

    Example: `fairq schedules resume emails nightly`
    """
    run_with(server, lambda client: client.resume_schedule(queue, name, tenant=tenant))
    print(f"{name} in {queue}: resumed")


@schedules.command
def remove(queue: str, name: str, *, tenant: Tenant = None, server: Server | None = None) -> None:
    """Delete a schedule; tasks it has already enqueued stay.

    Example: `fairq schedules remove emails nightly`
    """
    if not run_with(server, lambda client: client.unschedule(queue, name, tenant=tenant)):
        raise NotFound(f"there is no schedule {name} in queue {queue}", field="name")
    print(f"{name} in {queue}: removed")
