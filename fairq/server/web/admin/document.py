"""The OpenAPI document of the operators' paths."""

from __future__ import annotations

from functools import cache

from fairq.model.audit import AuditPage
from fairq.model.history import History
from fairq.model.limits import Limits
from fairq.model.operating import Deletion, QueueRow
from fairq.model.queues import Repair
from fairq.model.schedules import ScheduleState
from fairq.model.tenants import TenantState
from fairq.model.webhooks import Webhook
from fairq.model.workers import HeldTask, WorkerState
from fairq.server.web.admin.routes import QUEUE, ROWS, TENANT
from fairq.server.web.http.openapi import ANSWERS, CURSOR, PREVIOUS, Answers, document_of, list_of, object_of, paths_of
from fairq.server.web.http.schema import Schema, row_of
from fairq.tokens import TokenRow
from fairq.wire import messages as wire

_NUMBER, _TEXT, _NOTHING = {"type": "integer"}, {"type": "string"}, object_of()
_OWN: Answers = {
    ("GET", wire.Queues): object_of(queues=list_of(QueueRow)),
    ("DELETE", wire.DeleteQueue): row_of(Deletion),
    ("PATCH", wire.Configure): object_of(previous={"type": "object"}),
    ("POST", wire.Pause): PREVIOUS,
    ("POST", wire.Resume): PREVIOUS,
    ("POST", wire.Repair): row_of(Repair),
    ("PATCH", wire.SetLimits): object_of(previous=row_of(Limits)),
    ("PUT", wire.SetOpeningHours): object_of(
        previous=_TEXT, opening_hours=_TEXT, is_open={"type": "boolean"}, changes_at_ms=_NUMBER
    ),
    ("GET", wire.History): row_of(History),
    ("GET", wire.Tenants): object_of(tenants=list_of(TenantState), cursor=CURSOR),
    ("DELETE", wire.DropTenant): object_of(outcome={"enum": ["ok", "gone"]}),
    ("PUT", wire.SetWeight): object_of(previous={"type": "number"}),
    ("GET", wire.Webhooks): object_of(webhooks=list_of(Webhook)),
    ("POST", wire.AddWebhook): object_of(id=_TEXT, outcome={"enum": ["created", "changed", "same"]}),
    ("DELETE", wire.RemoveWebhook): PREVIOUS,
    ("POST", wire.PauseWebhook): PREVIOUS,
    ("POST", wire.ResumeWebhook): PREVIOUS,
    ("GET", wire.Workers): object_of(workers=list_of(WorkerState)),
    ("GET", wire.WorkerTasks): object_of(
        workers=list_of(WorkerState), tasks=list_of(HeldTask), unanswered={"type": "array", "items": _TEXT}
    ),
    ("POST", wire.DrainWorker): object_of(workers=_NUMBER),
    ("GET", wire.ListTokens): object_of(tokens=list_of(TokenRow)),
    ("POST", wire.CreateToken): _NOTHING,
    ("DELETE", wire.RevokeToken): _NOTHING,
    ("GET", wire.Audit): row_of(AuditPage),
}
_ONE = {QUEUE: QueueRow, TENANT: TenantState, f"{TENANT}/schedules/{{name}}": ScheduleState}  # paths of one row
_IF_MATCH = {"name": "If-Match", "in": "header", "schema": {"type": "string"}, "description": "A version, in quotes."}


@cache
def make_document() -> Schema:
    """Make the document."""
    paths = paths_of(ROWS, ANSWERS | _OWN)
    for path, kind in _ONE.items():
        paths[path]["get"]["responses"]["200"]["content"]["application/json"]["schema"] = row_of(kind)
    added = paths[f"{QUEUE}/webhooks"]["post"]["responses"]
    added["201"] = added["200"] | {"description": "Created."}
    for row in ROWS:
        if "if_version" in row.frame.__annotations__:
            paths[row.path][row.method.lower()]["parameters"].append(_IF_MATCH)
    return document_of("fairq, for operators", paths)
