"""When schedules fire: pure functions of a timing and a moment.

Cron expressions have five fields and are read as Debian's cron reads them (names, ranges, steps; also L, LW and #). An
expression with a minute or hour that begins with `*` follows local time, hour by hour: it does not fire in skipped
hours, and fires again in repeated ones. Any other expression fires once on each of its days: if the clock skips its
time, when the gap ends; if the clock repeats it, the first time.

An interval fires on a grid that begins when the schedule is made: a late fire does not move the next one.
"""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from fairq.errors import BadRequest
from fairq.model.rules import Rule, or_empty, text
from fairq.model.schedules import EVERY, MAX_CRON_CHARS, Timing
from fairq.model.zones import DAY, SECOND, change, offset, zones

_FIELDS = 5
_NAMED = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # as Debian's cron names them  # fmt: skip
_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)


def check_timing(cron: str, zone: str, every_ms: int) -> Timing:
    """Return the timing that a request describes: `cron` or `every_ms`. Raises: BadRequest, naming the field."""
    if bool(cron) == bool(every_ms):
        raise BadRequest("give either cron or an interval", field="cron" if cron else "every_ms")
    if every_ms:
        EVERY.check(every_ms, "every_ms")
        if zone:
            raise BadRequest("an interval has no time zone", field="zone")
        return Timing(every_ms=every_ms)
    return Timing(_check_cron(cron, "cron"), _check_zone(zone or "UTC", "zone"))


def _check_cron(cron: str, field: str) -> str:
    """Return an expression with one space between its fields. Raises: BadRequest."""
    words = _NAMED.get(cron.strip(), cron).split()
    if len(cron) > MAX_CRON_CHARS or len(words) != _FIELDS:
        raise BadRequest(
            f"{field} must have {_FIELDS} fields and at most {MAX_CRON_CHARS} characters, or be {', '.join(_NAMED)}",
            field=field,
        )
    found = " ".join(words)
    try:
        CronSim(found, _ANY_TIME)
    except (CronSimError, AssertionError, ValueError, TypeError) as error:
        raise BadRequest(f"{field} {found!r} is not a cron expression: {str(error).lower()}", field=field) from None
    return found


def _check_zone(zone: str, field: str) -> str:
    if zone not in zones():
        raise BadRequest(f"unknown time zone {zone!r:.80}", field=field)
    return zone


CRON = Rule(or_empty(Rule(_check_cron, {})).check, text(0, MAX_CRON_CHARS).schema)
ZONE = Rule(or_empty(Rule(_check_zone, {})).check, {"type": "string"})


def next_fire(timing: Timing, after_ms: int, grid_ms: int) -> int:
    """Return the first fire after a moment; an interval's grid goes through `grid_ms`. Raises: BadRequest if never."""
    if timing.every_ms:
        return grid_ms + timing.every_ms * ((after_ms - grid_ms) // timing.every_ms + 1)
    after = datetime.fromtimestamp(after_ms / 1000, UTC).replace(microsecond=0)
    minute, hour, *_ = timing.cron.split()
    search = _next_on_the_wall if minute.startswith("*") or hour.startswith("*") else _next_of_a_day
    try:
        moment = search(timing.cron, ZoneInfo(timing.zone), after)
    except StopIteration:
        raise BadRequest(f"cron {timing.cron!r} never fires", field="cron") from None
    return round(moment.timestamp() * 1000)


def _next_of_a_day(cron: str, zone: ZoneInfo, after: datetime) -> datetime:
    """Leave gaps and overlaps to cronsim; asked in a repeated hour, it also finds the first time, which is over."""
    return next(moment for moment in CronSim(cron, after.astimezone(zone)) if moment > after)


def _next_on_the_wall(cron: str, zone: ZoneInfo, after: datetime) -> datetime:
    """Search day by day: until the clock is changed it shows UTC and an offset, and cronsim knows no zones.

    (With zones it counts from a midnight that the clock skips, and in full hours.)
    """
    while True:
        ahead, tomorrow = offset(zone, after + SECOND), after + DAY
        moment = next(CronSim(cron, after + ahead)) - ahead
        if offset(zone, tomorrow) == ahead:
            if moment <= tomorrow:
                return moment
            after = max(tomorrow, moment - DAY)  # no clock shows that time earlier, whatever its changes
        else:
            changed = change(zone, after, tomorrow)
            if moment < changed:
                return moment
            after = changed - SECOND


def next_fires(timing: Timing, after_ms: int, grid_ms: int, count: int) -> list[int]:
    """Return the first few fires after a moment. Raises: BadRequest if there are none."""
    fires: list[int] = []
    for _ in range(count):
        fires.append(next_fire(timing, fires[-1] if fires else after_ms, grid_ms))
    return fires
