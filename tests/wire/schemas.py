"""The JSON Schemas of all frames, of their classes: `python -m tests.wire.schemas > fairq/wire/frames.schema.json`."""

from __future__ import annotations

import json
from typing import Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

from attrs import NOTHING, has

from fairq.model.attempts import Attempt
from fairq.model.audit import Change
from fairq.model.batches import BatchState
from fairq.model.checks import MAX_BATCH, MAX_INLINE_BYTES, MAX_PAYLOAD_BYTES
from fairq.model.dead_letters import DeadLetter
from fairq.model.events import Event
from fairq.model.history import TenantSeries
from fairq.model.operator_views import QueueRow, TokenRow
from fairq.model.rules import QUEUE, TENANT, rules_of, whole
from fairq.model.schedules import ScheduleState
from fairq.model.tasks import MAX_LINKS, Link, NewTask, Settlement, TaskState, WaitingTask
from fairq.model.tenants import TenantState
from fairq.model.waiting import Part, Report, Why
from fairq.model.webhooks import Webhook
from fairq.model.workers import HeldTask, WorkerState
from fairq.server.web.http.schema import Schema, default_of, hints_of, schema_of
from fairq.wire import frames
from fairq.wire import messages as wire
from fairq.wire.codec import MAX_REF
from fairq.wire.verbs import VERBS, Sent, TaskEnd

GIVEN: dict[str, Any] = {  # the parts of clients' frames
    "task": NewTask,
    "link": Link,
    "settlement": Settlement,
    "held_lease": frames.HeldLease,
    "report": frames.Report,
    "declared_schedule": wire.DeclaredSchedule,
}
SENT: dict[str, Any] = {  # the parts of servers' frames and of their bodies
    "pushed_task": frames.PushedTask,
    "lease": frames.Fence,
    "task_state": TaskState,
    "waiting_task": WaitingTask,
    "batch_state": BatchState,
    "event": Event,
    "explanation": Why,
    "tenant_report": Report,
    "part": Part,
    "tenant_series": TenantSeries,
    "dead_letter": DeadLetter,
    "queue_state": QueueRow,
    "tenant_state": TenantState,
    "worker_state": WorkerState,
    "held_task": HeldTask,
    "attempt": Attempt,
    "schedule_state": ScheduleState,
    "webhook": Webhook,
    "token_row": TokenRow,
    "change": Change,
}
_PART_OF_CLIENTS = {kind: name for name, kind in GIVEN.items()}
_PART_OF_SERVERS = {kind: name for name, kind in SENT.items()}
_ONE_PAYLOAD = [{"required": ["payload"]}, {"required": ["payload_bytes"]}]


def ref(name: str) -> Schema:
    """Return a reference to a definition of the document."""
    return {"$ref": f"#/$defs/{name}"}


def given(kind: Any) -> Schema:
    """Return the schema of what a client sends: nothing unknown, and null for the default of an optional field."""
    properties, required = {}, []
    for name, hint in hints_of(kind).items():
        schema = _given_field(kind, name, hint)
        if default_of(kind, name) is NOTHING:
            required.append(name)
        else:
            schema = or_null(schema)
        properties[name] = schema
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _given_field(kind: Any, name: str, hint: Any) -> Schema:
    if name == "ref":
        return whole(0, MAX_REF).schema
    if rule := rules_of(kind).get(name):
        return rule.schema
    if get_origin(hint) in (list, tuple) and (part := _PART_OF_CLIENTS.get(get_args(hint)[0])):
        least = {"minItems": 1} if default_of(kind, name) is NOTHING else {}
        most = MAX_LINKS if name == "links" else MAX_BATCH
        return {"type": "array", "items": ref(part), "maxItems": most} | least
    kinds = [arg for arg in get_args(hint) if arg is not type(None)]
    return schema_of(kinds[0] if type(None) in get_args(hint) else hint)


def or_null(schema: Schema) -> Schema:
    """Return the schema of a value that may also be null."""
    return {"anyOf": [schema, {"type": "null"}]} if schema else {}


def _task() -> Schema:
    """Return the schema of a new task; a long payload stands beside the frame."""
    plain = given(NewTask)
    payload = {"payload": {}, "payload_bytes": whole(MAX_INLINE_BYTES + 1, MAX_PAYLOAD_BYTES).schema}
    properties = plain["properties"] | payload | {"tenant": or_null(TENANT.schema)}
    return plain | {"properties": properties, "required": ["id"], "oneOf": _ONE_PAYLOAD}


def _link() -> Schema:
    """Return the schema of a link: a task, and the queue that it is for."""
    task = _task()
    own = {name: each for name, each in task["properties"].items() if name not in ("tenant", "batch")}
    return task | {"properties": {"queue": QUEUE.schema} | own, "required": ["queue", "id"]}


def schema_as_sent(kind: Any) -> Schema:
    """Return the schema of what a server sends: a later one may say more, so unknown fields are allowed."""
    hints = hints_of(kind)
    required = [name for name in hints if default_of(kind, name) is NOTHING]
    properties = {name: _sent_field(hint) for name, hint in hints.items()}
    return {"type": "object", "properties": properties, "required": required}


def _sent_field(hint: Any) -> Schema:
    if get_origin(hint) is NotRequired:
        return _sent_field(get_args(hint)[0])
    if hint == Sent:
        return {"type": "string", "pattern": "^(?:ok|expired|refused|duplicate(?: .+)?|replaced)$"}
    if hint in _PART_OF_SERVERS:
        return ref(_PART_OF_SERVERS[hint])
    if is_typeddict(hint):
        return body_of(hint)
    if get_origin(hint) in (list, tuple):
        return {"type": "array", "items": _sent_field(get_args(hint)[0])}
    if get_origin(hint) is dict and get_args(hint)[1] is not Any:
        return {"type": "object", "additionalProperties": _sent_field(get_args(hint)[1])}
    return schema_of(hint)


def body_of(reply: Any) -> Schema:
    """Return the schema of a reply's body: all fields are there, unless they have a default or it says otherwise."""
    if not isinstance(reply, dict) and reply in _PART_OF_SERVERS:
        return ref(_PART_OF_SERVERS[reply])
    if is_typeddict(reply):
        hints = get_type_hints(reply, include_extras=True)
    else:
        hints = reply if isinstance(reply, dict) else hints_of(reply)
    required = [name for name, hint in hints.items() if get_origin(hint) is not NotRequired]
    if has(reply):
        required = [name for name in hints if default_of(reply, name) is NOTHING]
    properties = {name: _sent_field(hint) for name, hint in hints.items()}
    return {"type": "object", "properties": properties, "required": required}


def with_payload(schema: Schema) -> Schema:
    """Return the schema of a part whose payload may stand beside the frame, with its length here."""
    properties = schema["properties"] | {"payload_bytes": whole(0, MAX_PAYLOAD_BYTES).schema}
    if "payload" not in schema["required"]:
        return schema | {"properties": properties}
    required = [name for name in schema["required"] if name != "payload"]
    return schema | {"properties": properties, "required": required, "oneOf": _ONE_PAYLOAD}


def framed(kind: Any, schema: Schema) -> Schema:
    """Return the schema of a frame: its fields, and its type."""
    head = {"description": " ".join((kind.__doc__ or "").split()), "type": "object"}
    return head | schema | {
        "properties": {"type": {"const": kind.type}} | schema["properties"],
        "required": ["type", *schema["required"]],
    }  # fmt: skip


def definitions() -> dict[str, Schema]:
    """Make all definitions: parts, `client.<type>` and `server.<type>` for frames, `reply.<verb>` for bodies."""
    defs = {name: given(kind) for name, kind in GIVEN.items()} | {"task": _task(), "link": _link()}
    defs |= {name: schema_as_sent(kind) for name, kind in SENT.items()}
    for name in ("pushed_task", "waiting_task", "dead_letter"):
        defs[name] = with_payload(defs[name])
    defs |= {f"client.{kind.type}": framed(kind, given(kind)) for kind in VERBS}
    defs |= {f"server.{kind.type}": framed(kind, schema_as_sent(kind)) for kind in frames.SERVER_FRAMES}
    defs["server.ended"]["properties"]["tasks"]["items"] = body_of(TaskEnd)
    defs |= {f"reply.{kind.type}": body_of(verb.reply) for kind, verb in VERBS.items() if verb.reply is not None}
    for side in ("client", "server"):
        defs[side] = {"anyOf": [ref(name) for name in defs if name.startswith(f"{side}.")]}
    return defs


def document() -> Schema:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:fairq:v1:frames",
        "title": "Frames of fairq.v1",
        "anyOf": [ref("client"), ref("server")],
        "$defs": definitions(),
    }


def page() -> str:
    """Write the document, each definition on a line of its own."""
    head = document()
    rows = [f"{json.dumps(name)}: {json.dumps(schema)}" for name, schema in head.pop("$defs").items()]
    return json.dumps(head, indent=0)[:-2] + ',\n"$defs": {\n' + ",\n".join(rows) + "\n}\n}\n"


if __name__ == "__main__":
    print(page(), end="")
