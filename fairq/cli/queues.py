"""`fairq queues`: counts, settings, limits for all tenants, opening hours, pauses."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import trio
from attrs import asdict
from cyclopts import App, Parameter

from fairq.cli.changes import change
from fairq.cli.confirm import Yes, agrees
from fairq.cli.limits import GivenLimits, change_limits, parse_percent, show_limits
from fairq.cli.opening_hours import Always, Windows, show_opening_hours
from fairq.cli.options import IfVersion, Json, Server, run_with
from fairq.cli.output import columns_of, make_table, print_json, print_rows
from fairq.cli.purges import DryRun, purge
from fairq.cli.watch import Watch
from fairq.cli.watch import watch as draw
from fairq.errors import BadRequest, NotFound
from fairq.model.checks import MAX_WEIGHT, MIN_WEIGHT
from fairq.model.queues import SETTING_RANGES, SETTINGS, SHARES, QueueSettings, longest_retries_ms
from fairq.model.texts import say_away, say_slots, say_span
from fairq.model.why_text import say_silence

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fairq.client.operator import OperatorClient
    from fairq.model.operator_views import QueueRow

queues = App(
    name="queues", help="List queues, change settings, limits and hours, pause, resume, repair, purge and delete."
)


def _shown(settings: QueueSettings) -> dict[str, Any]:
    return asdict(settings) | {"reserve": f"{settings.reserve}%"}


_DEFAULTS = _shown(QueueSettings())
_SETTINGS = (
    f"share: {' or '.join(SHARES)}; queue_weight: {MIN_WEIGHT} to {MAX_WEIGHT:g} (1.0), among the queues of its"
    " workers; whole numbers, with their ranges and defaults: "
) + ", ".join(
    f"{name} {low}-{high}{'%' * (name == 'reserve')} ({_DEFAULTS[name]})"
    for name, (low, high) in SETTING_RANGES.items()
)
_COLUMNS = columns_of(
    "queue", "ready", "pending", "delayed", "leased", "dead", "done", "expired", "workers", "takers", "slots", "kept",
    "idle", "share", "is_paused", "is_closed", "made_by", "is_repairing", "is_unavailable", takers="taken",
)  # fmt: skip
_PLACES = columns_of(
    "partition", "primary", "weight", "lag_s", "ready", "pending", "delayed", "leased", "dead", "cpu_part",
    lag_s="lag (s)", cpu_part="primary's CPU",
)  # fmt: skip
_CPU_S = 1.0  # for how long the CPU time of primaries is watched
_RARE = (
    "pending", "delayed", "dead", "expired", "kept", "is_paused", "is_closed", "made_by", "is_repairing",
    "is_unavailable",
)  # fmt: skip
_TAKERS = {"": "", "some": "yes", "none": "nobody", "unknown": "unknown"}


@queues.command(name="list")
def list_(*, watch: Watch = False, json: Json = False, server: Server | None = None) -> None:
    """List all queues.

    Example: `fairq queues list --watch`
    """
    if json:
        print_json([asdict(row) for row in run_with(server, lambda client: client.queues())])
    else:
        draw(server, _picture, once=not watch)


async def _picture(client: OperatorClient, lines: int) -> RenderableType:
    from rich.console import Group

    found = await client.queues()
    rows = [asdict(row) for row in found]
    flat = [{**row, **row["settings"], "takers": _TAKERS[row["takers"]], "slots": say_slots(row)} for row in rows]
    empty = "there are no queues yet; the first enqueue makes one"
    table = make_table("queues", _COLUMNS, flat, empty=empty, rare=_RARE, lines=lines)
    away = [say_away(row.queue, row.away) for row in found if row.away]
    untaken = [row["queue"] for row in rows if row["takers"] == "none"]
    warning = f"nobody takes these: tasks wait, and no worker is attached: {', '.join(untaken)}"
    silent = [f"{row.queue}: {say_silence(each)}" for row in found for each in row.silent]
    return Group(table, *away, *([warning] if untaken else []), *silent)


@queues.command
def show(queue: str, *, json: Json = False, server: Server | None = None) -> None:
    """Show a queue's settings, and how long its tasks are retried.

    Example: `fairq queues show emails`
    """
    row, places = run_with(server, lambda client: _look(client, queue, counts_cpu=not json))
    settings = row.settings
    if json:
        print_json(asdict(row))
        return
    table = [{"setting": name, "value": value, "default": _DEFAULTS[name]} for name, value in _shown(settings).items()]
    print_rows(f"queue {queue}", columns_of("setting", "value", "default"), table, empty="")
    print(_say_retries(settings))
    if places:
        print_rows("partitions", _PLACES, places, empty="")
    if row.away:
        print(say_away(queue, row.away))


async def _look(client: OperatorClient, queue: str, *, counts_cpu: bool) -> tuple[QueueRow, list[dict[str, Any]]]:
    """Read a queue, and rows for its partitions; the CPU of a primary is counted between two readings."""
    row = await _read(client, queue)
    if not row.places or not counts_cpu:
        return row, []
    before, began = {each.partition: each.store_cpu_s for each in row.places}, trio.current_time()
    await trio.sleep(_CPU_S)
    row = await _read(client, queue)
    seconds, places = trio.current_time() - began, []
    for each in row.places:
        used = _difference(before.get(each.partition), each.store_cpu_s)
        places.append(asdict(each) | {"cpu_part": None if used is None else used / seconds})
    return row, places


def _difference(first: float | None, last: float | None) -> float | None:
    """Return by how much a counter has grown; None if that is not known, or it began anew."""
    return None if first is None or last is None or last < first else last - first


async def _read(client: OperatorClient, queue: str) -> QueueRow:
    rows = await client.queues(queue)
    if not rows or not rows[0].made_at_ms:
        raise NotFound(f"there is no queue {queue}", field="queue")
    return rows[0]


def _say_retries(settings: QueueSettings) -> str:
    if not settings.max_attempts:
        return "tasks without a limit of their own are tried until they succeed"
    longest_ms = longest_retries_ms(settings)
    waits = f"{say_span(longest_ms // 2)} in all on average, {say_span(longest_ms)} at most"
    return f"retries: {settings.max_attempts} attempts, with waits of {waits}"


def _value_of(name: str, text: str) -> Any:
    """Read the value of a setting; an invalid one stays a text, which its check refuses."""
    if name == "reserve":
        return parse_percent(name, text)
    if name == "queue_weight":
        with suppress(ValueError):
            return float(text)
    return int(text) if text.isdecimal() else text


@queues.command(name="set")
def set_(
    queue: str,
    *settings: Annotated[str, Parameter(help=_SETTINGS)],
    if_version: IfVersion = None,
    server: Server | None = None,
) -> None:
    """Change settings of a queue, each as name=value.

    Example: `fairq queues set emails max_attempts=5 reserve=20%`
    """
    if not settings:
        raise BadRequest("give at least one setting, as name=value", field="settings")
    changes: dict[str, Any] = {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator:
            raise BadRequest(f"invalid setting {setting!r}: expected name=value", field="settings")
        name = name.replace("-", "_")
        changes[name] = _value_of(name, value)
    SETTINGS.check(changes, "settings")
    change(server, queue, None, lambda client: client.configure(queue, if_version=if_version, **changes))
    print(f"{queue}: {', '.join(settings)}")


@queues.command
def delete(
    queue: str,
    *,
    purge: Annotated[bool, Parameter(negative=(), help="Also delete its tasks, schedules and batches.")] = False,
    yes: Yes = False,
    json: Json = False,
    server: Server | None = None,
) -> int:
    """Delete an empty queue with its settings, limits and tenants' accounts; an enqueue makes it again.

    Example: `fairq queues delete emails --purge --yes`
    """
    question = f"Delete {queue} with its tasks, schedules and batches?"
    if not agrees(yes or not purge, "--purge", lambda: question, "nothing was deleted"):
        return 1
    found = run_with(server, lambda client: client.delete_queue(queue, purge=purge))
    contents = {name: count for name, count in found.items() if count}
    if json:
        print_json({"queue": queue, "contents": contents})
    else:
        what = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in contents.items())
        print(f"{queue}: deleted" + (f", with {what}" if what else ""))
    return 0


@queues.command(name="purge")
def purge_(
    queue: str,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
    server: Server | None = None,
    tenant: Annotated[str | None, Parameter(show=False)] = None,
) -> int:
    """Cancel all waiting tasks of a queue; running tasks, dead letters and schedules stay.

    `fairq tenants purge` cancels those of one tenant. If interrupted, it says how many it has cancelled; run it again
    to continue.

    Example: `fairq queues purge emails --dry-run`
    """
    if tenant is not None:
        raise BadRequest(f"for one tenant: fairq tenants purge {queue} {tenant}", field="tenant")
    return purge(
        queue, lambda client, dry_run: client.purging_queue(queue, dry_run=dry_run),
        dry_run=dry_run, yes=yes, json=json, server=server,
    )  # fmt: skip


@queues.command
def exists(queue: str, *, server: Server | None = None) -> int:
    """Exit with 0 if the queue exists, else with 1; prints nothing.

    Example: `fairq queues exists emails`
    """
    return int(not run_with(server, lambda client: client.queue_exists(queue)))


@queues.command
def limits(queue: str, *, json: Json = False, server: Server | None = None) -> None:
    """Show the limits for tenants that have no limit of their own.

    Example: `fairq queues limits emails`
    """
    show_limits(server, queue, None, json)


@queues.command
def set_limits(
    queue: str,
    *,
    limits: GivenLimits | None = None,  # type: ignore[valid-type]
    if_version: IfVersion = None,
    server: Server | None = None,
) -> None:
    """Set limits for tenants that have no such limit of their own; each is a number or `none`.

    Example: `fairq queues set-limits emails --queued 100000`
    """
    change_limits(server, queue, None, limits, if_version)


@queues.command
def hours(
    queue: str,
    text: Windows = None,
    *,
    always: Always = False,
    if_version: IfVersion = None,
    json: Json = False,
    server: Server | None = None,
) -> None:
    """Show or set the opening hours of a queue. While it is closed, no tenant's tasks start.

    Example: `fairq queues hours emails --always`
    """
    show_opening_hours(server, queue, None, text, always, if_version, json)


@queues.command
def pause(queue: str, *, server: Server | None = None) -> None:
    """Stop starting tasks of a queue; running tasks continue, and new tasks are still accepted.

    Example: `fairq queues pause emails`
    """
    change(server, queue, None, lambda client: client.pause(queue))
    print(f"{queue}: paused")


@queues.command
def resume(queue: str, *, server: Server | None = None) -> None:
    """Undo pause.

    Example: `fairq queues resume emails`
    """
    was_paused = change(server, queue, None, lambda client: client.resume(queue))
    print(f"{queue}: resumed" if was_paused else f"{queue}: it was not paused")


@queues.command
def repair(queue: str, *, json: Json = False, server: Server | None = None) -> None:
    """Rebuild a queue's indexes and counts from its tasks' records.

    During the repair the queue starts no tasks and refuses changes. If this command is interrupted, run it again.

    Example: `fairq queues repair emails`
    """

    done = run_with(server, lambda client: client.repair_queue(queue))
    if json:
        print_json({"queue": queue, "tasks": done.tasks, "tenants": done.tenants})
    else:
        print(f"{queue}: rebuilt: {done.tasks:,} tasks of {done.tenants:,} tenants")
