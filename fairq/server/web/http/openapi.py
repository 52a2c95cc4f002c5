"""The OpenAPI document: each path's parameters and bodies are the fields of its frame, by HTTP's names and units."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from typing import Any

from attrs import NOTHING

from fairq.model import rules
from fairq.model.cancelling import CancelProgress
from fairq.model.checks import MAX_BATCH, TASK_ID_PATTERN
from fairq.model.events import EVENT_ID
from fairq.model.operator_views import Deletion
from fairq.model.option_tables import TaskOptions
from fairq.model.queues import Repair
from fairq.model.rules import pattern
from fairq.model.tasks import NewTask, Outcome, Settlement, TaskState
from fairq.server.web.http.bodies import JSON, NDJSON
from fairq.server.web.http.events import EVENT_STREAM
from fairq.server.web.http.field_schemas import field_schema, some
from fairq.server.web.http.fields import name_of, names_of
from fairq.server.web.http.leases import ClaimTasks, EndLeases, EnqueueFromLease, ReadBatchResults
from fairq.server.web.http.problems import MEDIA_TYPE, STATUS
from fairq.server.web.http.routes import QUEUE, ROWS, Row
from fairq.server.web.http.schema import Schema, body_of, default_of, hints_of, object_of, row_of, schema_of
from fairq.wire import frames
from fairq.wire import messages as wire
from fairq.wire.verbs import VERBS, Cursor

TEXT: Schema = {"type": "string"}
_IF_MATCH = {"name": "If-Match", "in": "header", "schema": TEXT, "description": "A version, in quotes."}


def _fields(frame: Any) -> dict[str, Any]:
    return {name: hint for name, hint in hints_of(frame).items() if name != "ref"}


def _parameters(row: Row) -> list[Schema]:
    """Return the parameters of a path, and of its query if there is no body."""
    in_path = re.findall(r"{(\w+)}", row.path)
    found = [
        {"name": name, "in": "path", "required": True, "schema": field_schema(row.frame, name, str)} for name in in_path
    ]
    if row.has_body:
        if row.frame is wire.Enqueue:
            found.append(_query("tenant", rules.TENANT.schema))
            key = {"name": "Idempotency-Key", "in": "header", "schema": pattern(TASK_ID_PATTERN)}
            found.append(key | {"description": "The id of the one task, so that a repeated request makes no other."})
        return found + ([_IF_MATCH] if "if_version" in _fields(row.frame) else [])
    for field, hint in _fields(row.frame).items():
        name = name_of(field)
        if name not in in_path and (name, in_path[-1:]) != ("ids", ["id"]):
            is_required = default_of(row.frame, field) is NOTHING
            found.append(_query(name, field_schema(row.frame, field, hint), is_required))
    if "id" in in_path and not any(each["name"] == "tenant" for each in found):
        found.append(_query("tenant", rules.TENANT.schema))
    return found


def _query(name: str, schema: Schema, is_required: bool = False) -> Schema:
    return {"name": name, "in": "query", "required": is_required, "schema": schema}


def _body(row: Row) -> Schema | None:
    """Return the body of a request, if it has one."""
    if not row.has_body:
        return None
    if row.frame is wire.Enqueue:
        task, tasks = {"$ref": "#/components/schemas/Task"}, {"$ref": "#/components/schemas/Tasks"}
        return {"required": True, "content": {JSON: {"schema": {"anyOf": [task, tasks]}}, NDJSON: {"schema": TEXT}}}
    in_path = re.findall(r"{(\w+)}", row.path)
    properties, required = {}, []
    for field, hint in _fields(row.frame).items():
        if (name := name_of(field)) in in_path:
            continue
        is_required = default_of(row.frame, field) is NOTHING and (row.frame, name) != (wire.OpenBatch, "id")
        if is_required or (row.frame, name) == (EndLeases, "settlements"):
            required.append(name)
            properties[name] = field_schema(row.frame, field, hint)
        else:
            properties[name] = _or_null(field_schema(row.frame, field, hint))
    if "id" in in_path or "ids" in properties or row.frame is wire.OpenBatch:
        properties.setdefault("tenant", _or_null(rules.TENANT.schema))
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"required": bool(required), "content": {JSON: {"schema": schema}}}


def _or_null(schema: Schema) -> Schema:
    """Return the schema of a field that may be null: that is its default."""
    return {"anyOf": [schema, {"type": "null"}]} if schema else schema


_ENQUEUED = object_of(id=TEXT, outcome={"enum": ["ok", "duplicate", "replaced", "expired", "refused"]})
_ENQUEUED["properties"]["duplicate_of_state"] = TEXT
_CANCELLING = row_of(CancelProgress)
_OWN: dict[tuple[str, Any], Schema] = {  # of method and frame: answers that are not the frame's reply
    ("POST", wire.Enqueue): {"anyOf": [_ENQUEUED, object_of(tasks={"type": "array", "items": _ENQUEUED})]},
    ("GET", wire.WaitTasks): row_of(TaskState),
    ("DELETE", wire.Cancel): object_of(id=TEXT, outcome=schema_of(Outcome)),
    ("POST", wire.OpenBatch): object_of(id=TEXT, **body_of(VERBS[wire.OpenBatch].reply)["properties"]),
    ("POST", ClaimTasks): body_of({"lease_ms": int, "run_timeout_ms": int, "tasks": list[frames.PushedTask]}),
    ("POST", EndLeases): body_of(VERBS[wire.Settle].reply),
    ("POST", ReadBatchResults): body_of(VERBS[wire.BatchResults].reply),
    ("POST", EnqueueFromLease): object_of(tasks={"type": "array", "items": _ENQUEUED}),
    # These say less than the reply does.
    ("POST", wire.CancelAll): _CANCELLING | {"properties": _CANCELLING["properties"] | {"cursor": schema_of(Cursor)}},
    ("DELETE", wire.DeleteQueue): row_of(Deletion),
    ("POST", wire.Repair): row_of(Repair),
}


def _answer(row: Row) -> Schema:
    if own := _OWN.get((row.method, row.frame)):
        return own
    reply = VERBS[row.frame].reply
    if not row.part:
        return body_of(reply)
    part = schema_of(reply[row.part])
    return part.get("items", part)  # type: ignore[no-any-return]


def _responses(row: Row) -> Schema:
    """Return the answers of a path: its own, and problems."""
    content: Schema = {JSON: {"schema": _answer(row)}}
    found: Schema = {str(row.status): {"description": "Done.", "content": content}}
    if row.status == 201:
        found["200"] = {"description": "It was there already.", "content": content}
    if row.frame in (wire.Schedule, wire.AddWebhook):
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
    optional = {"id": pattern(TASK_ID_PATTERN), "tenant": rules.TENANT.schema}
    properties: Schema = {"payload": {}} | {name: _or_null(schema) for name, schema in optional.items()}
    hints = hints_of(NewTask)
    for name in TaskOptions.__annotations__:
        field = f"{name}_ms" if f"{name}_ms" in hints else name
        properties[name] = _or_null(field_schema(NewTask, field, hints.get(field, bool)))
    return {"type": "object", "properties": properties, "required": ["payload"], "additionalProperties": False}


def _task_without(*names: str) -> Schema:
    """Return the schema of a task without some fields."""
    task = _task()
    return task | {"properties": {name: it for name, it in task["properties"].items() if name not in names}}


def _link() -> Schema:
    task = _task_without("tenant", "batch")
    return task | {
        "properties": task["properties"] | {"queue": rules.QUEUE.schema},
        "required": [*task["required"], "queue"],
    }


def _settlement() -> Schema:
    required = ["action", "id", "lease"]
    hints = hints_of(Settlement)
    schemas = {name: field_schema(Settlement, field, hints[field]) for name, field in names_of(Settlement).items()}
    properties = {name: schema if name in required else _or_null(schema) for name, schema in schemas.items()}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _problem() -> Schema:
    texts = {name: TEXT for name in ("type", "title", "detail", "field")}
    numbers = {name: schema_of(int) for name in ("status", "retry_in_ms")}
    required = ["type", "title", "status", "detail", "code"]
    return {"type": "object", "properties": texts | numbers | {"code": {"enum": list(STATUS)}}, "required": required}


def paths_of(rows: Iterable[Row]) -> dict[str, Schema]:
    """Describe the paths of rows."""
    paths: dict[str, Schema] = {}
    for row in rows:
        words = re.sub(r"\W+", "_", re.sub(r"^/\w+/(queues/{queue}/)?", "", row.path)).strip("_")
        operation = {
            "operationId": f"{row.method.lower()}_{words}",
            "summary": row.summary,
            "parameters": _parameters(row),
            "responses": _responses(row),
        }
        if body := _body(row):
            operation["requestBody"] = body
        paths.setdefault(row.path, {})[row.method.lower()] = operation
    return paths


def _describe_stream(operation: Schema) -> None:
    """Add to the answer that is a page of events, the one that is a stream of them."""
    last = {"name": "Last-Event-ID", "in": "header", "schema": EVENT_ID.schema}
    operation["parameters"].append(last | {"description": "The event to go on after, instead of `after`."})
    operation["responses"]["200"]["content"][EVENT_STREAM] = {"schema": TEXT}


def document_of(title: str, paths: dict[str, Schema], **schemas: Schema) -> Schema:
    """Make a document of paths; `schemas` has the ones that they refer to, except a problem's."""
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version("fairq")},
        "paths": paths,
        "components": {
            "schemas": {**schemas, "Problem": _problem()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


@cache
def make_document() -> Schema:
    """Make the document of the tenants' API."""
    properties = {"tasks": some("Task", 1, MAX_BATCH), "tenant": rules.TENANT.schema}
    many = {"type": "object", "properties": properties, "required": ["tasks"]}
    paths = paths_of(ROWS)
    _describe_stream(paths[f"{QUEUE}/events"]["get"])
    return document_of(
        "fairq",
        paths,
        Task=_task(),
        OwnTask=_task_without("tenant"),
        Link=_link(),
        Tasks=many | {"additionalProperties": False},
        Settlement=_settlement(),
    )
