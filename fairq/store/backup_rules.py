"""The rules of a backup's fields: those that callers give have the rule of the argument, others that of their bytes.

Each check takes a value and the field's name, and raises BadRequest, or TooLarge, which names the field. `fields_of`
lists the fields of a record of lua/KEYS.md, as they stand in a line (fairq/store/backup_lines.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from fairq.errors import BadRequest, FairqError, TooLarge
from fairq.model.batches import CALLBACK_NAME, RUNNING
from fairq.model.checks import MAX_TRACEBACK_BYTES, MAX_WEIGHT, MIN_WEIGHT, matching, owner_of
from fairq.model.cron import check_timing
from fairq.model.history import LAST_BUCKET
from fairq.model.limits import LIMIT_RULES
from fairq.model.opening_hours import MAX_OPENING_HOURS_CHARS, OPENING_HOURS
from fairq.model.queues import SETTING_RULES, SHARES
from fairq.model.rules import FULL_ID, MAX_LEASE, NEW_BATCH, TENANT, Rule, number, or_empty, rules_of, text, whole
from fairq.model.schedules import APP, EVERY
from fairq.model.tasks import ATTEMPTS, DEDUPE_KEY, SHORT_NAME, TRACE, NewTask
from fairq.model.webhooks import SECRETS, URL
from fairq.store.backup_lines import FORMATS, read_text
from fairq.wire import strict_json

Check = Callable[[Any, str], object]

MAX_ERROR_BYTES = 2_048  # of an error (lua/base/prelude.lua)
MAX_EXTRA = 400 + 4 * (255 + 128)  # bytes that a task's options count at most, with the longest key and group
_MAX_MAP = 100  # names in a map
_MAX_MOMENT = 1 << 52  # of the library
_BITS = {"b": -8, "B": 8, "h": -16, "H": 16, "i": -32, "I": 32}  # of struct's whole numbers; negative: with a sign

REQUIRED = object()  # instead of a default: the field must be present

COUNT, MOMENT, FLAG = whole(0, MAX_LEASE).check, number(0, _MAX_MOMENT).check, whole(0, 1).check
LEASE = COUNT  # 0: none
TAG = whole(0, (1 << 32) - 1).check
OF_TENANT = or_empty(TENANT).check  # or of the queue
_TASKS = rules_of(NewTask)


def finite(value: Any, field: str) -> float:
    """Check a number of any size; a whole number must be exact."""
    if type(value) in (int, float) and math.isfinite(value) and float(value) == value:
        return float(value)
    raise BadRequest(f"{field} must be a number of eight bytes, not {value!r:.80}", field=field)


def moment_or_never(value: Any, field: str) -> object:
    """Check a time that may be infinite."""
    return value if value == "inf" else MOMENT(value, field)


def data(most: int) -> Callable[[Any, str], bytes]:
    """Return the check of bytes, a text or base64, of at most this length."""

    def check(value: Any, field: str) -> bytes:
        try:
            found = read_text(value)
        except (ValueError, KeyError, TypeError):
            raise BadRequest(f"{field} must be text, or base64 of other bytes in an object", field=field) from None
        if len(found) > most:
            raise TooLarge(f"{field} must have at most {most} bytes, not {len(found)}", field=field)
        return found

    return check


def full(rule: Rule, word: str) -> Check:
    """Return the check of an id with its tenant."""

    def check(value: Any, field: str) -> str:
        if not isinstance(value, str) or not owner_of(value):
            raise BadRequest(f"{field} must be the full id of {word}, <tenant>/<id>, not {value!r:.80}", field=field)
        rule.check(value, field)
        return value

    return check


def json_text(most: int) -> Check:
    """Return the check of JSON in a text."""
    is_long = data(most)

    def check(value: Any, field: str) -> Any:
        found = is_long(value, field)
        try:
            return strict_json.read(found.decode())
        except (FairqError, ValueError) as error:
            raise BadRequest(f"{field} must be JSON: {error}", field=field) from None

    return check


def map_of(rules: Mapping[str, Check]) -> Check:
    """Return the check of a map by name; unknown names belong to a later version and are kept, as servers keep them."""

    def check(value: Any, field: str) -> dict[str, Any]:
        if type(value) is not dict or len(value) > _MAX_MAP:
            raise BadRequest(f"{field} must be an object of at most {_MAX_MAP} fields", field=field)
        for name, each in value.items():
            rules.get(name, _later)(each, f"{field}.{name:.80}")
        return value

    return check


def _later(value: Any, field: str) -> object:
    return data(255)(value, field) if isinstance(value, str) else finite(value, field)


BATCH_ID, TASK_ID = full(NEW_BATCH, "a batch"), full(FULL_ID, "a task")
CHOICES = {  # options of a task that are kept, by name
    name: _TASKS[name if name in _TASKS else f"{name}_ms"].check
    for name in ("priority", "result_ttl", "retry_base", "retry_cap", "dedupe_key", "group")
} | {
    "events": FLAG, "opened_at": MOMENT, "ready_at": MOMENT,
    "batch": lambda value, field: value and BATCH_ID(value, field),
}  # fmt: skip
LIMITS = map_of({name: rule.check for name, rule in LIMIT_RULES.items()})
OPTIONS = map_of(CHOICES)
_SETTINGS = map_of(
    {name: rule.check for name, rule in SETTING_RULES.items()} | {"share": whole(0, len(SHARES) - 1).check}
)


@contextmanager
def inside(field: str, *, is_whole: bool = False) -> Iterator[None]:
    """Name the field of a line in errors about a part of its value, or (`is_whole`) about another name."""
    try:
        yield
    except (BadRequest, TooLarge) as error:
        label = field if is_whole else f"{field}.{error.field}"
        raise type(error)(f"{label}: {error.message}", field=label) from None


def _opening_hours(value: Any, field: str) -> object:
    text(1, MAX_OPENING_HOURS_CHARS).check(value, field)
    with inside(field, is_whole=True):
        return OPENING_HOURS.check(value, field)


def _secrets(value: Any, field: str) -> object:
    return SECRETS.check(text(0, 1_000).check(value, field).split(), field)


def _timing(value: Any, field: str) -> object:
    if type(value) is not dict or value.keys() != {"every", "zone", "cron"}:
        raise BadRequest(f"{field} must have every, zone and cron", field=field)
    for name, rule in (("zone", text(0, 255)), ("cron", text(0, 255)), ("every", EVERY)):
        rule.check(value[name], f"{field}.{name}")
    with inside(field):
        return check_timing(value["cron"], value["zone"], value["every"])


def _waits(value: Any, field: str) -> object:
    is_bucket, at_last = whole(0, LAST_BUCKET).check, -1
    if type(value) is not list:
        raise BadRequest(f"{field} must be a list", field=field)
    for pair in value:
        if type(pair) is not list or len(pair) != 2 or is_bucket(pair[0], field) <= at_last:
            raise BadRequest(f"{field} must be pairs of a bucket and a count, in the order of the buckets", field=field)
        at_last = pair[0]
        TAG(pair[1], field)
    return value


def _classes(value: Any, field: str) -> object:
    size = FORMATS["CLASS"].size
    if len(data(256 * size)(value, field)) % size:
        raise BadRequest(f"{field} must be records of {size} bytes", field=field)
    return value


def _record(name: str, *, may_be_none: bool = False) -> Check:
    """Return the check of an object that is a record."""

    def check(value: Any, field: str) -> object:
        if value is not None or not may_be_none:
            check_object(value, fields_of(name, f"{field}."), field)
        return value

    return check


_ALWAYS = "books"  # which the library reads of every account
_PACKED: dict[str, Check] = {  # fields that hold more than a number or a text; those that are missing are empty
    "more": data(255),
    "settings": _SETTINGS, "books": _record("BOOKS"), "options": _record("OPTIONS", may_be_none=True),
    "waits": _waits,
}  # fmt: skip
_SPANS = (  # of the options of a schedule's tasks
    "delay", "expires_in", "expires_after_start", "dedupe_period", "result_ttl", "retry_base", "retry_cap",
)  # fmt: skip
_REAL = {  # numbers that need be neither whole nor positive
    "clock", "level", "estimate", "estimate_sq", "delivered", "entitled", "base", "starts", "running", "at",
}  # fmt: skip
_MOMENTS = {  # times; the others that are numbers of eight bytes are whole, and 0 or more
    "now", "origin", "epoch_at", "kept_until", "theoretical_arrival", "out_at", "let_in_at", "enqueued_at", "start_at",
    "expires_at", "began_at", "died_at", "created_at", "completed_at", "next_at", "last_fired_at", "changes_at",
    "seen_at",
}  # fmt: skip
_NAMED: dict[str, Check] = {  # by the name that a field has in all records
    "tenant": TENANT.check, "lease": LEASE, "tag": TAG, "events": FLAG, "paused": FLAG, "trace": TRACE.check,
    "error": data(MAX_ERROR_BYTES), "traceback": data(MAX_TRACEBACK_BYTES), "timing": _timing, "is_extended": FLAG,
    "classes": _classes,
}  # fmt: skip


def _how(value: Any, field: str) -> object:
    """Check how a task has ended: 0, 2 or 255; a 1 begins the record of a task."""
    return value if type(value) is int and value in (2, 255) else whole(0, 0).check(value, field)


_OWN: dict[str, dict[str, Check]] = {
    "QUEUE": {"stage": whole(1, 1).check, "blocked": whole(0, 31).check, "sweeping": whole(0, 3).check},
    "ACCOUNT": {
        "name": TENANT.check, "weight": whole(round(MIN_WEIGHT * 1_000), round(MAX_WEIGHT * 1_000)).check,
        "standing": whole(0, 2).check, "loan": whole(0, 2).check, "is_odd": FLAG, "is_on_wake_list": FLAG,
    },
    "BOOKS": {"events": TAG},
    "DETAILS": {"blocked": whole(0, 7).check, "limited": FLAG, "cause": whole(0, 15).check},
    "HEADER": {
        "type": whole(1, 1).check, "features": whole(0, 7).check, "max_attempts": ATTEMPTS.check,
        "extra": whole(0, MAX_EXTRA).check, "name": SHORT_NAME.check,
    },
    "RUN": {
        "state": whole(0, 3).check, "features": whole(0, 7).check, "max_attempts": ATTEMPTS.check,
    },
    "MARK": {"how": _how},
    "DEATH": {"reason": whole(1, 4).check},
    "OPTIONS": {
        "max_attempts": lambda value, field: value if value == -1 else ATTEMPTS.check(value, field),
        "batch": matching(re.compile(r"\Z"), "empty"), "name": SHORT_NAME.check, "group": SHORT_NAME.check,
        "dedupe_key": DEDUPE_KEY.check, "replace": whole(0, 0).check, "priority": _TASKS["priority"].check,
        **{name: _TASKS[f"{name}_ms"].check for name in _SPANS},
    },
    "BATCH": {
        "state": whole(0, 2).check, "max_running": RUNNING.check,
        **{f"{event}_name": CALLBACK_NAME.check for event in ("complete", "success", "death")},
    },
    "SCHEDULE": {"misfire": FLAG, "app": lambda value, field: value and APP.check(value, field)},
    "HOURS": {"is_open": FLAG, "text": _opening_hours},
    "WEBHOOK": {"fan_out": FLAG, "name": SHORT_NAME.check, "url": URL.check, "secrets": _secrets},
    "SLOT_ROW": {"name": OF_TENANT},
}  # fmt: skip


class LineField(NamedTuple):
    """A field: its name, its default (None: nothing to check), its check, and its name in errors."""

    name: str
    nothing: Any
    check: Check
    label: str


def _check_of(name: str, field: str, type_: str) -> Check:
    own = _OWN.get(name, {}).get(field) or _PACKED.get(field) or _NAMED.get(field)
    if own:
        return own
    if bits := _BITS.get(type_):
        return (whole(0, (1 << bits) - 1) if bits > 0 else whole(-(1 << -bits - 1), (1 << -bits - 1) - 1)).check
    assert type_ == "d", f"no rule for {name}.{field}"
    return finite if field in _REAL else MOMENT if field in _MOMENTS else COUNT


def fields_of(name: str, label: str = "") -> list[LineField]:
    """List the fields of a record."""
    form = FORMATS[name]
    return [
        LineField(
            each.name, REQUIRED if each.name == _ALWAYS else None if each.name in _PACKED else each.nothing,
            _check_of(name, each.name, each.type), label + each.name,
        )
        for each in [*form.fields, *form.later]
        if each.name != "payload"  # stands behind the line
    ]  # fmt: skip


def check_object(value: Any, fields: Iterable[LineField], field: str = "") -> None:
    """Check an object by its fields; no field: it is a line. Raises: BadRequest, TooLarge."""
    if type(value) is not dict:
        raise BadRequest(f"{field} must be an object, not {value!r:.80}", field=field)
    known = 0
    for name, nothing, check, label in fields:
        if name in value:
            known += 1
            check(value[name], label)
        elif nothing is REQUIRED:
            raise BadRequest(f"{label} is missing", field=label)
        elif nothing is not None:
            check(nothing, label)
    if known < len(value):
        label = (f"{field}." if field else "") + min(value.keys() - {each.name for each in fields})[:80]
        raise BadRequest(f"unknown field {label!r}", field=label)
