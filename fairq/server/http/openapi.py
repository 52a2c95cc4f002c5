"""The OpenAPI document: each path's parameters and bodies are the fields of its frame, by HTTP's names and units."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import version
from typing import Any, get_args

from attrs import NOTHING

from fairq.model.batches import STAGES, BatchState
from fairq.model.checks import (
    BATCH_ID_PATTERN,
    FULL_ID_PATTERN,
    KNOWN_ID_PATTERN,
    MAX_BATCH,
    MAX_ERROR_CHARS,
    MAX_SPAN_MS,
    MAX_TIME_MS,
    MAX_TRACEBACK_BYTES,
    NAME_PATTERN,
    TASK_ID_PATTERN,
    TENANT_PATTERN,
    WORKER_PATTERN,
)
from fairq.model.dead_letters import MAX_SEARCH_CHARS, REASONS, DeadLetter
from fairq.model.events import MAX_EVENT_ID, Event
from fairq.model.operating import HeldLimits
from fairq.model.options import TaskOptions
from fairq.model.purges import Purge
from fairq.model.schedules import MISFIRES, SCHEDULE_PATTERN, ScheduleState
from fairq.model.tasks import ACTIONS, MAX_LEASE, MAX_LINKS, NewTask, Outcome, Settlement, TaskState, WaitingTask
from fairq.model.waiting import Report, Why
from fairq.server.http.bodies import JSON, NDJSON
from fairq.server.http.bounds import MAX_CLAIM
from fairq.server.http.events import EVENT_STREAM
from fairq.server.http.fields import MAX_WAIT_S, name_of, names_of
from fairq.server.http.leases import ClaimTasks, EndLeases, EnqueueFromLease
from fairq.server.http.problems import MEDIA_TYPE, STATUS
from fairq.server.http.routes import ROWS, Row
from fairq.server.http.schema import Schema, default_of, hints_of, row_of, schema_of
from fairq.wire import frames
from fairq.wire import messages as wire

_SPAN = {"type": "number", "minimum": 0, "maximum": MAX_SPAN_MS // 1000}
_MOMENT = {
    "anyOf": [
        {"type": "number", "minimum": 0, "maximum": MAX_TIME_MS // 1000},
        {"type": "string", "format": "date-time"},
    ]
}
_TEXT: Schema = {"type": "string"}


def _pattern(*patterns: re.Pattern[str]) -> Schema:
    """Return the schema of a text; in JSON schemas `$` is the end of a text."""
    return _TEXT | {"pattern": "|".join(f"^(?:{each.pattern.removesuffix(chr(92) + 'Z')})$" for each in patterns)}


_ID = _pattern(KNOWN_ID_PATTERN, FULL_ID_PATTERN)
_IDS = {"type": "array", "items": _ID, "minItems": 1, "maxItems": MAX_BATCH}
_RULES: dict[str, Schema] = {  # of fields whose type does not say all
    "queue": _pattern(NAME_PATTERN),
    "tenant": _pattern(TENANT_PATTERN),
    "worker": _pattern(WORKER_PATTERN),
    "id": _ID,
    "ids": _IDS | {"uniqueItems": True},
    "wait": {"type": "number", "minimum": 0, "maximum": MAX_WAIT_S},
    "count": {"type": "integer", "minimum": 1, "maximum": MAX_BATCH},
    "offset": {"type": "integer", "minimum": 0, "maximum": MAX_TIME_MS},
    "after": {"type": "integer", "minimum": 0, "maximum": MAX_EVENT_ID},
    "cursor": _TEXT | {"minLength": 1},
    "reason": {"enum": list(REASONS)},
    "misfire": {"enum": list(MISFIRES)},
    "priority": {"type": "integer", "minimum": 0, "maximum": 99},
    "lease": {"type": "integer", "minimum": 1, "maximum": MAX_LEASE},
    "error": _TEXT | {"minLength": 1, "maxLength": MAX_SEARCH_CHARS},
    "group_weight": {"type": "number", "minimum": 0.001, "maximum": 10_000},
    "action": {"enum": list(ACTIONS)},
    "result": {},
}
_OF_FRAME: dict[tuple[Any, str], Schema] = {
    (wire.Schedule, "name"): _pattern(SCHEDULE_PATTERN),
    (wire.Batch, "id"): _pattern(BATCH_ID_PATTERN, FULL_ID_PATTERN),
    (wire.OpenBatch, "id"): _pattern(BATCH_ID_PATTERN, FULL_ID_PATTERN),
    (wire.Batches, "state"): {"enum": list(STAGES)},
    (ClaimTasks, "count"): {"type": "integer", "minimum": 1, "maximum": MAX_CLAIM},
    (Settlement, "error"): _TEXT | {"maxLength": MAX_ERROR_CHARS},
    (Settlement, "traceback"): _TEXT | {"maxLength": MAX_TRACEBACK_BYTES},
    (Settlement, "id"): _pattern(FULL_ID_PATTERN),
    (Settlement, "links"): {"type": "array", "items": {"$ref": "#/components/schemas/Link"}, "maxItems": MAX_LINKS},
    (EnqueueFromLease, "lease"): {
        "type": "object",
        "properties": {
            "queue": _RULES["queue"], "id": _pattern(FULL_ID_PATTERN), "lease": _RULES["lease"],
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


def _schema(frame: Any, field: str, hint: Any) -> Schema:
    """Return the schema of a frame's field, by HTTP's name and in its unit; null is the default."""
    name = name_of(field)
    known = _OF_FRAME.get((wire.Schedule if frame in _NAMED and name == "name" else frame, name)) or _RULES.get(name)
    if known is None and name != field:
        known = _MOMENT if name.endswith("_at") else _SPAN
    if field == "settlements":
        settlement = {"$ref": "#/components/schemas/Settlement"}
        known = {"type": "array", "items": settlement, "minItems": 1, "maxItems": MAX_BATCH}
    return dict(known) if known is not None else schema_of(_plain(hint))


def _plain(hint: Any) -> Any:
    kinds = [arg for arg in get_args(hint) if arg is not type(None)]
    return kinds[0] if type(None) in get_args(hint) else hint


def _fields(frame: Any) -> dict[str, Any]:
    return {name: hint for name, hint in hints_of(frame).items() if name != "ref"}


def _parameters(row: Row) -> list[Schema]:
    """Return the parameters of a path, and unless there is a body those of its query."""
    in_path = re.findall(r"{(\w+)}", row.path)
    found = [
        {"name": name, "in": "path", "required": True, "schema": _schema(row.frame, name, str)} for name in in_path
    ]
    if row.has_body:
        if row.frame is wire.Enqueue:
            found.append(_query("tenant", _RULES["tenant"]))
            key = {"name": "Idempotency-Key", "in": "header", "schema": _pattern(TASK_ID_PATTERN)}
            found.append(key | {"description": "The id of the one task, so that a repeated request makes no other."})
        return found
    for field, hint in _fields(row.frame).items():
        name = name_of(field)
        if name not in in_path and (name, in_path[-1]) != ("ids", "id"):
            is_required = default_of(row.frame, field) is NOTHING
            found.append(_query(name, _schema(row.frame, field, hint), is_required))
    if "id" in in_path and not any(each["name"] == "tenant" for each in found):
        found.append(_query("tenant", _RULES["tenant"]))
    if row.frame is wire.Events:
        last = {"name": "Last-Event-ID", "in": "header", "schema": _RULES["after"]}
        found.append(last | {"description": "The event to go on after, instead of `after`."})
    return found


def _query(name: str, schema: Schema, is_required: bool = False) -> Schema:
    return {"name": name, "in": "query", "required": is_required, "schema": schema}


def _body(row: Row) -> Schema | None:
    """Return the body of a request, if it has one."""
    if not row.has_body:
        return None
    if row.frame is wire.Enqueue:
        task, tasks = {"$ref": "#/components/schemas/Task"}, {"$ref": "#/components/schemas/Tasks"}
        return {"required": True, "content": {JSON: {"schema": {"anyOf": [task, tasks]}}, NDJSON: {"schema": _TEXT}}}
    in_path = re.findall(r"{(\w+)}", row.path)
    properties, required = {}, []
    for field, hint in _fields(row.frame).items():
        if (name := name_of(field)) in in_path:
            continue
        is_required = default_of(row.frame, field) is NOTHING and (row.frame, name) != (wire.OpenBatch, "id")
        if is_required or (row.frame, name) == (EndLeases, "settlements"):
            required.append(name)
            properties[name] = _schema(row.frame, field, hint)
        else:
            properties[name] = _or_null(_schema(row.frame, field, hint))
    if "id" in in_path or "ids" in properties or row.frame is wire.OpenBatch:
        properties.setdefault("tenant", _or_null(_RULES["tenant"]))
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"required": bool(required), "content": {JSON: {"schema": schema}}}


def _or_null(schema: Schema) -> Schema:
    """Return the schema of a field that may be null: that is its default."""
    return {"anyOf": [schema, {"type": "null"}]} if schema else schema


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(kind: Any) -> Schema:
    return {"type": "array", "items": row_of(kind)}


_CURSOR: Schema = {"type": ["string", "null"]}
_OUTCOMES = _object(outcomes={"type": "array", "items": {"enum": list(get_args(Outcome))}})
_PREVIOUS = _object(previous={"type": "boolean"})
_ENQUEUED = _object(id=_TEXT, outcome={"enum": ["ok", "duplicate", "replaced", "expired", "refused"]})
_ANSWERS: dict[tuple[str, Any], Schema] = {
    ("POST", wire.Enqueue): {"anyOf": [_ENQUEUED, _object(tasks={"type": "array", "items": _ENQUEUED})]},
    ("GET", wire.Tasks): _object(tasks=_list(TaskState)),
    ("GET", wire.WaitTasks): row_of(TaskState),
    ("DELETE", wire.Cancel): _object(id=_TEXT, outcome={"enum": list(get_args(Outcome))}),
    ("POST", wire.Cancel): _OUTCOMES,
    ("POST", wire.CancelAll): row_of(Purge) | {"properties": row_of(Purge)["properties"] | {"cursor": _CURSOR}},
    ("POST", wire.Reschedule): _OUTCOMES,
    ("GET", wire.Peek): _object(tasks=_list(WaitingTask)),
    ("GET", wire.Why): row_of(Why),
    ("GET", wire.TenantReport): row_of(Report),
    ("GET", wire.Limits): row_of(HeldLimits),
    ("POST", wire.OpenBatch): _object(id=_TEXT, outcome={"enum": ["ok", "duplicate"]}),
    ("GET", wire.Batches): _object(batches=_list(BatchState), cursor=_CURSOR),
    ("GET", wire.Batch): row_of(BatchState),
    ("POST", wire.CloseBatch): _object(previous={"enum": list(STAGES)}),
    ("DELETE", wire.CancelBatch): _object(previous={"enum": list(STAGES)}),
    ("GET", wire.Events): _object(oldest={"type": "integer"}, newest={"type": "integer"}, events=_list(Event)),
    ("PUT", wire.Schedule): _object(
        outcome={"enum": ["created", "changed", "same"]}, fires_at_ms={"type": "array", "items": {"type": "integer"}}
    ),
    ("DELETE", wire.Unschedule): _PREVIOUS,
    ("POST", wire.PauseSchedule): _PREVIOUS,
    ("POST", wire.ResumeSchedule): _PREVIOUS,
    ("GET", wire.Dead): _object(dead=_list(DeadLetter), cursor=_CURSOR, left={"type": "integer"}),
    ("GET", wire.DeadLetter): row_of(DeadLetter),
    ("POST", wire.Replay): _OUTCOMES,
    ("POST", wire.Purge): _OUTCOMES,
    ("POST", ClaimTasks): _object(
        lease_ms={"type": "integer"}, run_timeout_ms={"type": "integer"}, tasks=_list(frames.PushedTask)
    ),
    ("POST", EndLeases): _OUTCOMES,
    ("POST", EnqueueFromLease): _object(tasks={"type": "array", "items": _ENQUEUED}),
}


def _answer(row: Row) -> Schema:
    if row.frame is wire.Schedules:
        return row_of(ScheduleState) if "{name}" in row.path else _object(schedules=_list(ScheduleState))
    return _ANSWERS[row.method, row.frame]


def _responses(row: Row) -> Schema:
    """Return the answers of a path: its own, and problems."""
    content: Schema = {JSON: {"schema": _answer(row)}}
    if row.frame is wire.Events:
        content[EVENT_STREAM] = {"schema": _TEXT}
    found: Schema = {str(row.status): {"description": "Done.", "content": content}}
    if row.status == 201:
        found["200"] = {"description": "It was there already.", "content": content}
    if row.frame is wire.Schedule:
        found["201"] = {"description": "Created.", "content": content}
    if row.frame is wire.Enqueue:
        found["207"] = {"description": "Some tenants' tasks were refused.", "content": content}
    problem = {
        "description": "A problem.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    return found | {str(status): problem for status in sorted(set(STATUS.values()))}


def _task() -> Schema:
    """Return the schema of a task: the SDK's options, as JSON."""
    optional = {"id": _pattern(TASK_ID_PATTERN), "tenant": _RULES["tenant"]}
    properties: Schema = {"payload": {}} | {name: _or_null(schema) for name, schema in optional.items()}
    hints = hints_of(NewTask)
    for name in TaskOptions.__annotations__:
        field = f"{name}_ms" if f"{name}_ms" in hints else name
        properties[name] = _or_null(_schema(NewTask, field, hints.get(field, bool)))
    return {"type": "object", "properties": properties, "required": ["payload"], "additionalProperties": False}


def _task_without(*names: str) -> Schema:
    """Return the schema of a task of which some fields may not be given."""
    task = _task()
    return task | {"properties": {name: it for name, it in task["properties"].items() if name not in names}}


def _link() -> Schema:
    task = _task_without("tenant", "batch")
    return task | {
        "properties": task["properties"] | {"queue": _RULES["queue"]},
        "required": [*task["required"], "queue"],
    }


def _settlement() -> Schema:
    required = ["action", "id", "lease"]
    hints = hints_of(Settlement)
    schemas = {name: _schema(Settlement, field, hints[field]) for name, field in names_of(Settlement).items()}
    properties = {name: schema if name in required else _or_null(schema) for name, schema in schemas.items()}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _problem() -> Schema:
    texts = {name: _TEXT for name in ("type", "title", "detail", "field")}
    numbers = {name: schema_of(int) for name in ("status", "retry_in_ms")}
    required = ["type", "title", "status", "detail", "code"]
    return {"type": "object", "properties": texts | numbers | {"code": {"enum": list(STATUS)}}, "required": required}


@cache
def make_document() -> Schema:
    """Make the document."""
    paths: dict[str, Schema] = {}
    for row in ROWS:
        words = re.sub(r"\W+", "_", row.path.removeprefix("/v1/").replace("queues/{queue}/", "")).strip("_")
        operation = {
            "operationId": f"{row.method.lower()}_{words}",
            "summary": row.summary,
            "parameters": _parameters(row),
            "responses": _responses(row),
        }
        if body := _body(row):
            operation["requestBody"] = body
        paths.setdefault(row.path, {})[row.method.lower()] = operation
    tasks = {"type": "array", "items": {"$ref": "#/components/schemas/Task"}, "minItems": 1, "maxItems": MAX_BATCH}
    many = {"type": "object", "properties": {"tasks": tasks, "tenant": _RULES["tenant"]}, "required": ["tasks"]}
    return {
        "openapi": "3.1.0",
        "info": {"title": "fairq", "version": version("fairq")},
        "paths": paths,
        "components": {
            "schemas": {
                "Task": _task(),
                "OwnTask": _task_without("tenant"),
                "Link": _link(),
                "Tasks": many | {"additionalProperties": False},
                "Settlement": _settlement(),
                "Problem": _problem(),
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }
