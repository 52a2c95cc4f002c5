"""The schemas of the frames' fields, by HTTP's names and units."""

from __future__ import annotations

from typing import Any

from fairq.model.checks import MAX_BATCH, MAX_SPAN_MS, MAX_TIME_MS
from fairq.model.rules import FULL_ID, LEASE, QUEUE, rules_of
from fairq.model.tasks import MAX_LINKS, Settlement
from fairq.server.web.http.fields import MAX_WAIT_S, is_moment, name_of, plain
from fairq.server.web.http.leases import EnqueueFromLease
from fairq.server.web.http.schema import Schema, schema_of

SPAN = {"type": "number", "minimum": 0, "maximum": MAX_SPAN_MS // 1000}
MOMENT = {
    "anyOf": [
        {"type": "number", "minimum": 0, "maximum": MAX_TIME_MS // 1000},
        {"type": "string", "format": "date-time"},
    ]
}
_WAIT = {"type": "number", "minimum": 0, "maximum": MAX_WAIT_S}
_LEASE = {"queue": QUEUE.schema, "id": FULL_ID.schema, "lease": LEASE.schema}


def some(part: str, low: int, high: int) -> Schema:
    """Return the schema of a list of parts that have a schema of their own."""
    items = {"$ref": f"#/components/schemas/{part}"}
    return {"type": "array", "items": items, "minItems": low, "maxItems": high}


_PARTS: dict[tuple[Any, str], Schema] = {
    (Settlement, "links"): some("Link", 0, MAX_LINKS),
    (EnqueueFromLease, "tasks"): some("OwnTask", 1, MAX_BATCH),
    (EnqueueFromLease, "lease"): {
        "type": "object", "properties": _LEASE, "required": list(_LEASE), "additionalProperties": False,
    },
}  # fmt: skip


def field_schema(frame: Any, field: str, hint: Any) -> Schema:
    """Return the schema of a frame's field, by HTTP's name and in its unit; null is the default."""
    name = name_of(field)
    if name != field:
        return _WAIT if name == "wait" else MOMENT if is_moment(name) else SPAN
    if field == "settlements":
        return some("Settlement", 1, MAX_BATCH)
    if part := _PARTS.get((frame, field)):
        return part
    known = rules_of(frame)
    if field == "id" and "ids" in known:  # of the one in a path
        return dict(known["ids"].schema["items"])
    return known[field].schema if field in known else schema_of(plain(hint))
