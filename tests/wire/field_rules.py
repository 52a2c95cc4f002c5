"""What a field of a client's frame may hold beyond its type, as JSON Schemas: patterns, ranges and lengths."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fairq.model.audit import PLACE_PATTERN, TOKEN_PATTERN, VERB_PATTERN
from fairq.model.batches import MAX_RUNNING, STAGES
from fairq.model.checks import (
    BATCH_ID_PATTERN,
    FULL_ID_PATTERN,
    KNOWN_ID_PATTERN,
    MAX_BATCH,
    MAX_CURSOR_CHARS,
    MAX_ERROR_CHARS,
    MAX_SPAN_MS,
    MAX_TENANT_CHARS,
    MAX_TIME_MS,
    MAX_WEIGHT,
    MIN_WEIGHT,
    NAME_PATTERN,
    TENANT_PATTERN,
    WORKER_PATTERN,
)
from fairq.model.dead_letters import MAX_SEARCH_CHARS, REASONS
from fairq.model.events import MAX_EVENT_ID
from fairq.model.history import MAX_NAMED, PERIODS
from fairq.model.limits import LIMIT_RANGES
from fairq.model.opening_hours import MAX_OPENING_HOURS_CHARS
from fairq.model.queues import SETTING_RANGES, SHARES
from fairq.model.schedules import MAX_CRON_CHARS, MIN_EVERY_MS, MISFIRES, SCHEDULE_PATTERN
from fairq.model.tasks import (
    ACTIONS,
    MAX_ATTEMPTS,
    MAX_KEY_BYTES,
    MAX_LEASE,
    MAX_LINKS,
    MAX_NAME_BYTES,
    MAX_PRIORITY,
    MAX_PROGRESS_CHARS,
    TRACE_PATTERN,
    Link,
    NewTask,
    Settlement,
)
from fairq.model.versions import VERSION_PATTERN
from fairq.model.webhooks import MAX_SECRETS, MAX_URL_CHARS
from fairq.server.web.http.schema import Schema
from fairq.tokens import HASH_PATTERN, ID_PATTERN, MAX_LABEL_CHARS
from fairq.wire import messages as wire
from fairq.wire.terms import MAX_CREDIT, MAX_QUEUES, MAX_WAIT_MS, Role

MAX_REF = (1 << 53) - 1


def pattern(*patterns: re.Pattern[str]) -> Schema:
    """Return the schema of a text that matches one of these as a whole; in JSON Schema `$` is the end of a text."""
    either = "|".join(each.pattern.removesuffix("\\Z") for each in patterns)
    return {"type": "string", "pattern": f"^(?:{either})$"}


def whole(low: int, high: int) -> Schema:
    """Return the schema of a whole number within a range."""
    return {"type": "integer", "minimum": low, "maximum": high}


def number(low: float, high: float) -> Schema:
    """Return the schema of a number within a range."""
    return {"type": "number", "minimum": low, "maximum": high}


def text(low: int, high: int) -> Schema:
    """Return the schema of a text of so many characters."""
    return {"type": "string", "maxLength": high} | ({"minLength": low} if low else {})


def many(items: Schema, low: int = 1, high: int = MAX_BATCH) -> Schema:
    """Return the schema of a list of so many items."""
    return {"type": "array", "items": items, "maxItems": high} | ({"minItems": low} if low else {})


def one_of(*words: str) -> Schema:
    """Return the schema of one of some words."""
    return {"enum": list(words)}


def some_of(rules: Mapping[str, Schema]) -> Schema:
    """Return the schema of an object with at least one of some fields."""
    return {"type": "object", "properties": dict(rules), "minProperties": 1, "additionalProperties": False}


def or_null(schema: Schema) -> Schema:
    """Return the schema of a value that may also be null."""
    return {"anyOf": [schema, {"type": "null"}]} if schema else {}


SPAN, MOMENT, WEIGHT = whole(0, MAX_SPAN_MS), whole(0, MAX_TIME_MS), number(MIN_WEIGHT, MAX_WEIGHT)
TASK, BATCH = pattern(KNOWN_ID_PATTERN, FULL_ID_PATTERN), pattern(BATCH_ID_PATTERN, FULL_ID_PATTERN)
LONG_NAME = text(0, MAX_NAME_BYTES)

RULES: dict[str, Schema] = {  # of fields that mean the same wherever they stand
    "ref": whole(0, MAX_REF),
    "queue": pattern(NAME_PATTERN),
    "tenant": pattern(TENANT_PATTERN),
    "worker": pattern(WORKER_PATTERN),
    "id": pattern(FULL_ID_PATTERN),
    "ids": many(TASK),
    "lease": whole(1, MAX_LEASE),
    "count": whole(1, MAX_BATCH),
    "offset": MOMENT,
    "number": MOMENT,
    "after": whole(0, MAX_EVENT_ID),
    "cursor": text(1, MAX_CURSOR_CHARS),
    "timeout_ms": whole(0, MAX_WAIT_MS),
    "since_ms": MOMENT,
    "period": one_of(*PERIODS),
    "tenants": many(pattern(TENANT_PATTERN), 1, MAX_NAMED) | {"uniqueItems": True},
    "every_ms": {"anyOf": [{"const": 0}, whole(MIN_EVERY_MS, MAX_SPAN_MS)]},
    "max_running": whole(0, MAX_RUNNING),
    "max_attempts": whole(0, MAX_ATTEMPTS),
    "priority": whole(0, MAX_PRIORITY),
    "dedupe_key": text(0, MAX_KEY_BYTES),
    "group": LONG_NAME,
    "group_weight": WEIGHT,
    "weight": WEIGHT,
    "weights": many(WEIGHT, 0, MAX_QUEUES),
    "name": LONG_NAME,
    "trace": {"anyOf": [{"const": ""}, pattern(TRACE_PATTERN)]},
    "batch": {"anyOf": [{"const": ""}, pattern(BATCH_ID_PATTERN)]},
    "credit": whole(0, MAX_CREDIT),
    "prefetch": whole(0, MAX_CREDIT),
    "fraction": number(0, 1),
    "text": text(0, MAX_PROGRESS_CHARS),
    "error": text(1, MAX_SEARCH_CHARS),
    "action": one_of(*ACTIONS),
    "result": {},
    "reason": one_of(*REASONS),
    "state": one_of(*STAGES),
    "misfire": one_of(*MISFIRES),
    "role": one_of(*(role.value for role in Role)),
    "hash": pattern(HASH_PATTERN),
    "label": text(0, MAX_LABEL_CHARS) | {"pattern": r"^[^\x00-\x1f\x7f]*$"},
    "if_version": pattern(VERSION_PATTERN),
    "cron": text(0, MAX_CRON_CHARS),
    "opening_hours": text(0, MAX_OPENING_HOURS_CHARS),
    "url": text(0, MAX_URL_CHARS) | {"pattern": "^https?://[!-~]+$"},
    "secrets": many({"type": "string", "pattern": "^whsec_[A-Za-z0-9+/]{32,88}={0,2}$"}, 0, MAX_SECRETS),
    "settings": some_of(
        {"share": one_of(*SHARES)} | {name: whole(low, high) for name, (low, high) in SETTING_RANGES.items()}
    ),
    "limits": some_of(
        {name: or_null((number if name == "rate" else whole)(0, high)) for name, high in LIMIT_RANGES.items()}
    ),
}
_BATCHES = (wire.OpenBatch, wire.Batch, wire.CloseBatch, wire.CancelBatch)
_SCHEDULES = (wire.Schedule, wire.Unschedule, wire.PauseSchedule, wire.ResumeSchedule, wire.Schedules)
_OF: dict[tuple[Any, str], Schema] = {  # of fields that mean something else in one frame
    **{(frame, "id"): BATCH for frame in _BATCHES},
    **{(frame, "name"): pattern(SCHEDULE_PATTERN) for frame in _SCHEDULES},
    (wire.Batches, "ids"): many(BATCH),
    (wire.Why, "id"): TASK,
    (wire.DeadLetter, "id"): TASK,
    (NewTask, "id"): pattern(KNOWN_ID_PATTERN),
    (Link, "id"): pattern(KNOWN_ID_PATTERN),
    (Settlement, "error"): text(0, MAX_ERROR_CHARS),
    (Settlement, "links"): many({"$ref": "#/$defs/link"}, 0, MAX_LINKS),
    (wire.Attach, "queues"): many(pattern(NAME_PATTERN), 1, MAX_QUEUES),
    (wire.Attach, "leases"): many({"$ref": "#/$defs/held_lease"}, 0),
    (wire.CreateToken, "id"): pattern(ID_PATTERN),
    (wire.CreateToken, "tenant"): text(1, MAX_TENANT_CHARS) | {"pattern": r"^[A-Za-z0-9._@+*-]+$"},
    (wire.CreateToken, "queues"): many(pattern(NAME_PATTERN)),
    (wire.RevokeToken, "id"): {"type": "string"},
    (wire.Audit, "token"): {"anyOf": [{"const": ""}, pattern(TOKEN_PATTERN)]},
    (wire.Audit, "verb"): {"anyOf": [{"const": ""}, pattern(VERB_PATTERN)]},
    (wire.Audit, "cursor"): pattern(PLACE_PATTERN),
    (wire.Audit, "after"): pattern(PLACE_PATTERN),
}


def rule_of(kind: Any, name: str) -> Schema | None:
    """Return what a field may hold; None: all that its type allows."""
    known = _OF[kind, name] if (kind, name) in _OF else RULES.get(name)
    if known is None and name.endswith("_at_ms"):
        return MOMENT
    return SPAN if known is None and name.endswith("_ms") else known
