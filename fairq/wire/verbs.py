"""The table of verbs: the answer to each client frame, and which role may send it in which state.

The codec, the grid of permissions, the audit, the JSON Schemas and both OpenAPI documents follow from these rows.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict

from fairq.model.attempts import Attempt
from fairq.model.audit import AuditPage
from fairq.model.batches import BatchStage, BatchState
from fairq.model.dead_letters import DeadLetter
from fairq.model.events import Event
from fairq.model.history import History
from fairq.model.limits import Limits
from fairq.model.operator_views import HeldLimits, QueueRow, TokenRow
from fairq.model.places import AwayPartition
from fairq.model.schedules import ScheduleState
from fairq.model.tasks import Outcome, TaskState, WaitingTask
from fairq.model.tenants import TenantState
from fairq.model.waiting import Report, Why
from fairq.model.webhooks import Webhook
from fairq.model.workers import HeldTask, WorkerState
from fairq.wire import messages as wire
from fairq.wire.frames import Ping
from fairq.wire.terms import Role, State

Reply = Any  # the class of a reply's body, or the types of its fields by name

Cursor = Annotated[str | None, "where the next page begins"]
Sent = NewType("Sent", str)  # an outcome of enqueueing; after `duplicate` the id of the task with its key may follow


class Refusal(TypedDict):
    """Why a tenant's tasks were refused."""

    code: str
    message: str
    field: NotRequired[str]
    retry_in_ms: NotRequired[int]


class Enqueued(TypedDict):
    """The outcomes of new tasks, the states of the tasks that they duplicate, and refusals by tenant."""

    outcomes: list[Sent]
    duplicate_of_states: NotRequired[list[str]]
    refusals: NotRequired[dict[str, Refusal]]


class Removed(TypedDict):
    """A schedule that was deleted because its app no longer declares it."""

    queue: str
    tenant: str
    name: str


class TaskEnd(TypedDict):
    """The end of a task."""

    id: str
    state: Literal["done", "dead", "cancelled", "unknown"]
    result: NotRequired[Any]
    reason: NotRequired[str]
    error: NotRequired[str]


class MemberRow(TypedDict):
    """A task of a batch that was done, with its result if that is kept."""

    id: str
    result: NotRequired[Any]


_OUTCOMES: Reply = {"outcomes": list[Outcome]}
_WAS: Reply = {"previous": bool}
_CHANGED = Literal["created", "changed", "same"]
_NOTHING: Reply = {}
_AWAY: Reply = {"away": NotRequired[list[AwayPartition]]}  # partitions that the list leaves out

_ANY, _OPEN = frozenset(State), frozenset({State.OPEN})
_ATTACHED, _WORKING = frozenset({State.ATTACHED}), frozenset({State.ATTACHED, State.DRAINING})
_TENANT, _WORKER, _OPERATOR = frozenset({Role.TENANT}), frozenset({Role.WORKER}), frozenset({Role.OPERATOR})
_PRODUCER = frozenset({Role.PRODUCER})
_READERS = frozenset({Role.OPERATOR, Role.VIEWER})


class Verb(NamedTuple):
    """The answer to a frame (None: no answer), the roles that may send it, and the states in which they may."""

    reply: Reply
    roles: frozenset[Role]
    states: frozenset[State] = _ANY


VERBS: dict[type[Any], Verb] = {
    wire.Enqueue: Verb(Enqueued, _TENANT | _PRODUCER, _OPEN),
    wire.Tasks: Verb({"tasks": list[TaskState]}, _TENANT | _PRODUCER | _READERS),
    wire.Cancel: Verb(_OUTCOMES, _TENANT | _PRODUCER | _OPERATOR),
    wire.CancelAll: Verb(
        {"cursor": Cursor, "found": int, "cancelled": int, "looked": int, "waiting": int}, _TENANT | _OPERATOR
    ),
    wire.Reschedule: Verb(_OUTCOMES, _TENANT | _PRODUCER | _OPERATOR),
    wire.Peek: Verb({"tasks": list[WaitingTask]}, _TENANT | _READERS),
    wire.WaitTasks: Verb({"tasks": list[TaskEnd]}, _TENANT | _PRODUCER | _READERS),
    wire.OpenBatch: Verb({"outcome": Literal["ok", "duplicate"]}, _TENANT | _PRODUCER, _OPEN),
    wire.CloseBatch: Verb({"previous": BatchStage}, _TENANT | _PRODUCER | _OPERATOR),
    wire.CancelBatch: Verb({"previous": BatchStage}, _TENANT | _PRODUCER | _OPERATOR),
    wire.Batch: Verb({"batch": BatchState, "waits_for": NotRequired[str | None]}, _TENANT | _PRODUCER | _READERS),
    wire.Batches: Verb({"batches": list[BatchState], "cursor": Cursor} | _AWAY, _TENANT | _PRODUCER | _READERS),
    wire.Events: Verb({"oldest": int, "newest": int, "events": list[Event]}, _TENANT | _READERS),
    wire.Why: Verb(Why, _TENANT | _PRODUCER | _READERS),
    wire.TenantReport: Verb({"report": Report}, _TENANT | _READERS),
    wire.History: Verb(History, _READERS),
    wire.Attach: Verb({"leases": list[Literal["ok", "cancelled", "gone", "stale"]]}, _WORKER, _OPEN),
    wire.Credit: Verb(_NOTHING, _WORKER, _WORKING),
    wire.Settle: Verb(_OUTCOMES, _WORKER, _WORKING),
    wire.EnqueueFrom: Verb(Enqueued, _WORKER, _WORKING),
    wire.BatchResults: Verb({"results": list[MemberRow], "cursor": Cursor}, _WORKER, _WORKING),
    wire.Progress: Verb(_NOTHING, _WORKER, _WORKING),
    wire.Idle: Verb({"is_idle": bool}, _WORKER, _ATTACHED),
    wire.Queues: Verb({"queues": list[QueueRow]}, _READERS),
    wire.Configure: Verb({"previous": dict[str, Any]}, _OPERATOR),
    wire.DeleteQueue: Verb({"outcome": Literal["ok", "more", "gone"], "contents": dict[str, int]}, _OPERATOR),
    wire.Tenants: Verb({"tenants": list[TenantState], "cursor": Cursor} | _AWAY, _READERS),
    wire.DropTenant: Verb({"outcome": Literal["ok", "gone"]}, _OPERATOR),
    wire.SetWeight: Verb({"previous": float}, _OPERATOR),
    wire.SetLimits: Verb({"previous": Limits}, _OPERATOR),
    wire.Limits: Verb(HeldLimits, _TENANT | _READERS),
    wire.SetOpeningHours: Verb(
        {"previous": str, "opening_hours": str, "is_open": bool, "changes_at_ms": int}, _OPERATOR
    ),
    wire.Workers: Verb({"workers": list[WorkerState], "unanswered": NotRequired[list[str]]}, _READERS),
    wire.WorkerTasks: Verb({"workers": list[WorkerState], "tasks": list[HeldTask], "unanswered": list[str]}, _READERS),
    wire.Attempts: Verb({"running": list[Attempt], "ended": list[Attempt], "unanswered": list[str]}, _READERS),
    wire.DrainWorker: Verb({"workers": int}, _OPERATOR),
    wire.SetPaused: Verb(_WAS, _OPERATOR),
    wire.Repair: Verb(
        {"outcome": Literal["more", "done", "gone"], "number": int, "doing": str, "tasks": int, "tenants": int} | _AWAY,
        _OPERATOR,
    ),
    wire.Dead: Verb({"dead": list[DeadLetter], "cursor": Cursor, "left": int} | _AWAY, _TENANT | _READERS),
    wire.DeadLetter: Verb({"dead_letter": DeadLetter}, _TENANT | _READERS),
    wire.Replay: Verb(_OUTCOMES, _TENANT | _OPERATOR),
    wire.Purge: Verb(_OUTCOMES, _TENANT | _OPERATOR),
    wire.Schedule: Verb({"outcome": _CHANGED, "fires_at_ms": list[int]}, _TENANT | _PRODUCER | _OPERATOR),
    wire.Unschedule: Verb(_WAS, _TENANT | _PRODUCER | _OPERATOR),
    wire.SetSchedulePaused: Verb(_WAS, _TENANT | _PRODUCER | _OPERATOR),
    wire.Schedules: Verb({"schedules": list[ScheduleState]} | _AWAY, _TENANT | _PRODUCER | _READERS),
    wire.Declare: Verb({"outcomes": list[str], "removed": list[Removed], "is_over": bool}, _WORKER, _ATTACHED),
    wire.AddWebhook: Verb({"id": str, "outcome": _CHANGED}, _OPERATOR),
    wire.RemoveWebhook: Verb(_WAS, _OPERATOR),
    wire.SetWebhookPaused: Verb(_WAS, _OPERATOR),
    wire.Webhooks: Verb({"webhooks": list[Webhook]}, _WORKER | _READERS),
    wire.CreateToken: Verb(_NOTHING, _OPERATOR),
    wire.ListTokens: Verb({"tokens": list[TokenRow]}, _READERS),
    wire.RevokeToken: Verb(_NOTHING, _OPERATOR),
    wire.Audit: Verb(AuditPage, _READERS),
    Ping: Verb(None, frozenset(Role)),
}

# The frames of operators that change something: the audit has them. Viewers may send all others.
CHANGES = frozenset(
    frame for frame, verb in VERBS.items() if Role.OPERATOR in verb.roles and Role.VIEWER not in verb.roles
)
# Of the frames of tenants and producers, those that change settings: these are in the audit of tenants.
SETTINGS: frozenset[type[Any]] = frozenset({wire.Schedule, wire.Unschedule, wire.SetSchedulePaused})
