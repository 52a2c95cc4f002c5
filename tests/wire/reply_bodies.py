"""The bodies of replies, by verb, as JSON Schemas."""

from __future__ import annotations

from typing import Any, get_args

from fairq.model.batches import STAGES
from fairq.model.history import History, QueueSeries, QueueTotals
from fairq.model.limits import Limits
from fairq.model.operating import OpenState
from fairq.model.purges import Purge
from fairq.model.queues import Repair
from fairq.model.tasks import Outcome
from fairq.server.web.http.schema import Schema, row_of

TEXT, WHOLE, BOOLEAN = ({"type": kind} for kind in ("string", "integer", "boolean"))
CURSOR: Schema = {"type": ["string", "null"]}
CODED = {"code": TEXT, "message": TEXT, "field": TEXT, "retry_in_ms": WHOLE}


def ref(name: str) -> Schema:
    """Return a reference to a definition of the document."""
    return {"$ref": f"#/$defs/{name}"}


def body(**fields: Schema) -> Schema:
    """Return the schema of a body with all of these fields."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def rows(name: str) -> Schema:
    """Return the schema of a list of parts."""
    return {"type": "array", "items": ref(name)}


def words(*of: str) -> Schema:
    """Return the schema of one of some words."""
    return {"enum": list(of)}


def counts() -> Schema:
    """Return the schema of numbers by name."""
    return {"type": "object", "additionalProperties": WHOLE}


def given_in(kind: Any, **changes: Schema) -> Schema:
    """Return the schema of a body that has the fields of a class, some of them otherwise."""
    return body(**row_of(kind)["properties"] | changes)


_OUTCOMES = body(outcomes={"type": "array", "items": words(*get_args(Outcome))})
_SENT = {"type": "string", "pattern": "^(?:ok|expired|refused|duplicate(?: .+)?|replaced)$"}
_REFUSALS = {
    "type": "object",
    "additionalProperties": {"type": "object", "properties": CODED, "required": ["code", "message"]},
}
_ENQUEUED = body(outcomes={"type": "array", "items": _SENT})
_ENQUEUED["properties"]["refusals"] = _REFUSALS
_WAS, _STAGE, _EMPTY = body(previous=BOOLEAN), body(previous=words(*STAGES)), body()
_OK_OR_GONE, _CHANGED = words("ok", "gone"), words("created", "changed", "same")
_END = {
    "type": "object",
    "properties": {"id": TEXT, "state": words("done", "dead", "cancelled", "unknown"), "result": {}, "reason": TEXT,
                   "error": TEXT},
    "required": ["id", "state"],
}  # fmt: skip
_WAS_SET = body(previous={"type": "object"})

BODIES: dict[str, Schema] = {
    "enqueue": _ENQUEUED,
    "tasks": body(tasks=rows("task_state")),
    "cancel": _OUTCOMES,
    "cancel_all": given_in(Purge, cursor=CURSOR),
    "reschedule": _OUTCOMES,
    "peek": body(tasks=rows("waiting_task")),
    "wait_tasks": body(tasks={"type": "array", "items": _END}),
    "open_batch": body(outcome=words("ok", "duplicate")),
    "close_batch": _STAGE,
    "cancel_batch": _STAGE,
    "batch": body(batch=ref("batch_state")),
    "batches": body(batches=rows("batch_state"), cursor=CURSOR),
    "events": body(oldest=WHOLE, newest=WHOLE, events=rows("event")),
    "why": ref("explanation"),
    "report": body(report=ref("tenant_report")),
    "history": given_in(History, queue=row_of(QueueSeries), totals=row_of(QueueTotals), tenants=rows("tenant_series")),
    "attach": body(leases={"type": "array", "items": words("ok", "cancelled", "gone", "stale")}),
    "credit": _EMPTY,
    "settle": _OUTCOMES,
    "enqueue_from": _ENQUEUED,
    "extend": _OUTCOMES,
    "progress": _EMPTY,
    "idle": body(is_idle=BOOLEAN),
    "queues": body(queues=rows("queue_state")),
    "configure": _WAS_SET,
    "delete_queue": body(outcome=words("ok", "more", "gone"), contents=counts()),
    "tenants": body(tenants=rows("tenant_state"), cursor=CURSOR),
    "drop_tenant": body(outcome=_OK_OR_GONE),
    "set_weight": body(previous={"type": "number"}),
    "set_limits": body(previous=row_of(Limits)),
    "limits": body(
        limits=row_of(Limits), holds=row_of(Limits), opening_hours={"type": "array", "items": row_of(OpenState)},
        now_ms=WHOLE, version=TEXT, hours_version=TEXT,
    ),
    "set_opening_hours": body(previous=TEXT, opening_hours=TEXT, is_open=BOOLEAN, changes_at_ms=WHOLE),
    "workers": body(workers=rows("worker_state")),
    "worker_tasks": body(
        workers=rows("worker_state"), tasks=rows("held_task"), unanswered={"type": "array", "items": TEXT}
    ),
    "drain_worker": body(workers=WHOLE),
    "pause": _WAS,
    "resume": _WAS,
    "repair": given_in(Repair, outcome=words("more", "done", "gone")),
    "dead": body(dead=rows("dead_letter"), cursor=CURSOR, left=WHOLE),
    "dead_letter": body(dead_letter=ref("dead_letter")),
    "replay": _OUTCOMES,
    "purge": _OUTCOMES,
    "schedule": body(outcome=_CHANGED, fires_at_ms={"type": "array", "items": WHOLE}),
    "unschedule": _WAS,
    "pause_schedule": _WAS,
    "resume_schedule": _WAS,
    "schedules": body(schedules=rows("schedule_state")),
    "add_webhook": body(id=TEXT, outcome=_CHANGED),
    "remove_webhook": _WAS,
    "pause_webhook": _WAS,
    "resume_webhook": _WAS,
    "webhooks": body(webhooks=rows("webhook")),
    "create_token": _EMPTY,
    "list_tokens": body(tokens=rows("token_row")),
    "revoke_token": _EMPTY,
    "audit": body(changes=rows("change"), begun=rows("change"), cursor=TEXT, newest=TEXT),
}  # fmt: skip
ENDED = _END
