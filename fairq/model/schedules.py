"""Schedules: tasks that are enqueued at set times."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from attrs import frozen

from fairq.errors import BadRequest
from fairq.model.checks import MAX_SPAN_MS, check_chosen, matching
from fairq.model.rules import Rule, one_of, pattern, whole
from fairq.model.tasks import ScheduledOptions, printable

SCHEDULE_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}\Z")  # shorter than a task's id by the time of a fire
_check_name = matching(SCHEDULE_PATTERN, "1 to 40 characters of a-z, 0-9, '-', '_' and begin with a letter or digit")
MISFIRES = ("skip", "once")
MISFIRE = one_of(*MISFIRES)
MIN_EVERY_MS = 1_000
MAX_SCHEDULES = 1_000  # of a tenant in a queue
MAX_CRON_CHARS = 200
_APP = printable(128)


def _check_app(value: str, field: str) -> str:
    if not _APP.check(value, field):
        raise BadRequest(f"{field} must have at least 1 byte", field=field)
    return value


APP = Rule(_check_app, _APP.schema | {"minLength": 1}, ("", *_APP.bad))  # what declares schedules in its code


def check_schedule_name(value: object, field: str = "name") -> str:
    """Return the name of a schedule, checked. Raises: BadRequest."""
    return check_chosen(_check_name(value, field), field)


SCHEDULE_NAME = Rule(
    check_schedule_name, pattern(SCHEDULE_PATTERN), ("", "N", "-n", "n" * 41, "a/b", "n\n", "from", "from-n")
)
_EVERY = whole(MIN_EVERY_MS, MAX_SPAN_MS)
EVERY = Rule(  # 0: it has a cron expression
    lambda value, field: value and _EVERY.check(value, field), {"anyOf": [{"const": 0}, _EVERY.schema]}
)


class Timing(NamedTuple):
    """When a schedule fires: by a cron expression in a time zone, or at an interval in ms."""

    cron: str = ""
    zone: str = ""
    every_ms: int = 0


@frozen
class ScheduleState(ScheduledOptions):
    """A schedule of a tenant; `next_at_ms` counts unless it is paused.

    `app`: the app that declares it in its code. The options of its tasks (`task_name`: unless it is the schedule's
    name), and their payload, are present only if the schedule was asked for by name.
    """

    tenant: str
    name: str
    cron: str = ""
    zone: str = ""
    every_ms: int = 0
    misfire: str = "skip"
    is_paused: bool = False
    next_at_ms: int = 0
    last_fired_at_ms: int = 0
    app: str = ""
    task_name: str = ""
    payload: Any = None

    @property
    def timing(self) -> Timing:
        """When it fires."""
        return Timing(self.cron, self.zone, self.every_ms)
