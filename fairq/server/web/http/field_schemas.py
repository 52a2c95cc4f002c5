"""The schemas of the frames' fields, by HTTP's names and units."""

from __future__ import annotations

import re
from typing import Any, get_args

from fairq.model.audit import PLACE_PATTERN, TOKEN_PATTERN, VERB_PATTERN
from fairq.model.batches import STAGES
from fairq.model.checks import (
    BATCH_ID_PATTERN,
    FULL_ID_PATTERN,
    KNOWN_ID_PATTERN,
    MAX_BATCH,
    MAX_ERROR_CHARS,
    MAX_SPAN_MS,
    MAX_TIME_MS,
    MAX_TRACEBACK_BYTES,
    MAX_WEIGHT,
    MIN_WEIGHT,
    NAME_PATTERN,
    TENANT_PATTERN,
    WORKER_PATTERN,
)
from fairq.model.dead_letters import MAX_SEARCH_CHARS, REASONS
from fairq.model.events import MAX_EVENT_ID
from fairq.model.limits import LIMIT_RANGES
from fairq.model.opening_hours import MAX_OPENING_HOURS_CHARS
from fairq.model.queues import SETTING_RANGES, SHARES
from fairq.model.schedules import MISFIRES, SCHEDULE_PATTERN
from fairq.model.tasks import ACTIONS, MAX_LEASE, MAX_LINKS, Settlement
from fairq.model.versions import VERSION_PATTERN
from fairq.model.webhooks import MAX_SECRETS, MAX_URL_CHARS
from fairq.server.web.http.bounds import MAX_CLAIM
from fairq.server.web.http.fields import MAX_WAIT_S, is_moment, name_of
from fairq.server.web.http.leases import ClaimTasks, EnqueueFromLease
from fairq.server.web.http.schema import Schema, schema_of
from fairq.tokens import HASH_PATTERN, ID_PATTERN, MAX_LABEL_CHARS
from fairq.wire import messages as wire
from fairq.wire.terms import Role

SPAN = {"type": "number", "minimum": 0, "maximum": MAX_SPAN_MS // 1000}
MOMENT = {
    "anyOf": [
        {"type": "number", "minimum": 0, "maximum": MAX_TIME_MS // 1000},
        {"type": "string", "format": "date-time"},
    ]
}
TEXT: Schema = {"type": "string"}


def pattern(*patterns: re.Pattern[str]) -> Schema:
    """Return the schema of a text; in JSON schemas `$` is the end of a text."""
    return TEXT | {"pattern": "|".join(f"^(?:{each.pattern.removesuffix(chr(92) + 'Z')})$" for each in patterns)}


def _some(properties: Schema) -> Schema:
    """Return the schema of an object with at least one of some fields."""
    return {"type": "object", "properties": properties, "minProperties": 1, "additionalProperties": False}


def _whole(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


_ID = pattern(KNOWN_ID_PATTERN, FULL_ID_PATTERN)
_IDS = {"type": "array", "items": _ID, "minItems": 1, "maxItems": MAX_BATCH}
RULES: dict[str, Schema] = {  # of fields whose type does not say all
    "queue": pattern(NAME_PATTERN),
    "tenant": pattern(TENANT_PATTERN),
    "worker": pattern(WORKER_PATTERN),
    "id": _ID,
    "ids": _IDS | {"uniqueItems": True},
    "wait": {"type": "number", "minimum": 0, "maximum": MAX_WAIT_S},
    "count": {"type": "integer", "minimum": 1, "maximum": MAX_BATCH},
    "offset": {"type": "integer", "minimum": 0, "maximum": MAX_TIME_MS},
    "after": {"type": "integer", "minimum": 0, "maximum": MAX_EVENT_ID},
    "cursor": TEXT | {"minLength": 1},
    "reason": {"enum": list(REASONS)},
    "misfire": {"enum": list(MISFIRES)},
    "priority": {"type": "integer", "minimum": 0, "maximum": 99},
    "lease": {"type": "integer", "minimum": 1, "maximum": MAX_LEASE},
    "error": TEXT | {"minLength": 1, "maxLength": MAX_SEARCH_CHARS},
    "group_weight": {"type": "number", "minimum": 0.001, "maximum": 10_000},
    "action": {"enum": list(ACTIONS)},
    "result": {},
    "weight": {"type": "number", "minimum": MIN_WEIGHT, "maximum": MAX_WEIGHT},
    "if_version": pattern(VERSION_PATTERN),
    "settings": _some(
        {"share": {"enum": list(SHARES)}} | {name: _whole(*each) for name, each in SETTING_RANGES.items()}
    ),
    "limits": _some(
        {
            name: {"type": ["number" if name == "rate" else "integer", "null"], "minimum": 0, "maximum": most}
            for name, most in LIMIT_RANGES.items()
        }
    ),
    "opening_hours": TEXT | {"maxLength": MAX_OPENING_HOURS_CHARS},
    "url": TEXT | {"pattern": rf"^https?://[!-~]{{1,{MAX_URL_CHARS - 8}}}$"},
    "secrets": {
        "type": "array",
        "items": pattern(re.compile(r"whsec_[A-Za-z0-9+/]{32,88}={0,2}\Z")),
        "maxItems": MAX_SECRETS,
    },
    "number": {"type": "integer", "minimum": 0, "maximum": MAX_TIME_MS},
    "role": {"enum": [role.value for role in Role]},
    "hash": pattern(HASH_PATTERN),
    "label": TEXT | {"maxLength": MAX_LABEL_CHARS},
    "queues": {"type": "array", "items": pattern(NAME_PATTERN), "minItems": 1, "maxItems": MAX_BATCH},
    "max_attempts": {"type": "integer", "minimum": 0, "maximum": 1000},
}
_OF_FRAME: dict[tuple[Any, str], Schema] = {
    (wire.Schedule, "name"): pattern(SCHEDULE_PATTERN),
    (wire.Batch, "id"): pattern(BATCH_ID_PATTERN, FULL_ID_PATTERN),
    (wire.OpenBatch, "id"): pattern(BATCH_ID_PATTERN, FULL_ID_PATTERN),
    (wire.Batches, "state"): {"enum": list(STAGES)},
    (wire.Audit, "token"): pattern(TOKEN_PATTERN),
    (wire.Audit, "verb"): pattern(VERB_PATTERN),
    (wire.Audit, "cursor"): pattern(PLACE_PATTERN),
    (wire.Audit, "after"): pattern(PLACE_PATTERN),
    (wire.CreateToken, "id"): pattern(ID_PATTERN),
    (wire.CreateToken, "tenant"): TEXT | {"pattern": r"^[A-Za-z0-9._@+*-]{1,128}$"},
    (wire.RevokeToken, "id"): pattern(ID_PATTERN),
    (ClaimTasks, "count"): {"type": "integer", "minimum": 1, "maximum": MAX_CLAIM},
    (Settlement, "error"): TEXT | {"maxLength": MAX_ERROR_CHARS},
    (Settlement, "traceback"): TEXT | {"maxLength": MAX_TRACEBACK_BYTES},
    (Settlement, "id"): pattern(FULL_ID_PATTERN),
    (Settlement, "links"): {"type": "array", "items": {"$ref": "#/components/schemas/Link"}, "maxItems": MAX_LINKS},
    (EnqueueFromLease, "lease"): {
        "type": "object",
        "properties": {
            "queue": RULES["queue"], "id": pattern(FULL_ID_PATTERN), "lease": RULES["lease"],
        },
        "required": ["queue", "id", "lease"],
        "additionalProperties": False,
    },
    (EnqueueFromLease, "tasks"): {
        "type": "array",
        "items": {"$ref": "#/components/schemas/OwnTask"},
        "minItems": 1,
        "maxItems": MAX_BATCH,
    },
}  # fmt: skip
_NAMED = (wire.Unschedule, wire.PauseSchedule, wire.ResumeSchedule, wire.Schedules)  # as wire.Schedule is


def field_schema(frame: Any, field: str, hint: Any) -> Schema:
    """Return the schema of a frame's field, by HTTP's name and in its unit; null is the default."""
    name = name_of(field)
    known = _OF_FRAME.get((wire.Schedule if frame in _NAMED and name == "name" else frame, name)) or RULES.get(name)
    if known is None and name != field:
        known = MOMENT if is_moment(name) else SPAN
    if field == "settlements":
        settlement = {"$ref": "#/components/schemas/Settlement"}
        known = {"type": "array", "items": settlement, "minItems": 1, "maxItems": MAX_BATCH}
    return dict(known) if known is not None else schema_of(_plain(hint))


def _plain(hint: Any) -> Any:
    kinds = [arg for arg in get_args(hint) if arg is not type(None)]
    return kinds[0] if type(None) in get_args(hint) else hint
