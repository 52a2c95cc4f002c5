"""The frames that a server reads (PROTOCOL.md); verbs.py has the table of them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import orjson
from attrs import evolve, field, frozen

from fairq.model import queues, tokens
from fairq.model.audit import PLACE, TOKEN, VERB
from fairq.model.batches import RUNNING, STAGE
from fairq.model.cron import CRON, ZONE
from fairq.model.dead_letters import REASON, SEARCH
from fairq.model.events import EVENT_ID
from fairq.model.history import PERIOD, TENANTS
from fairq.model.limits import LIMITS
from fairq.model.opening_hours import OPENING_HOURS
from fairq.model.rules import (
    BATCH,
    COUNT,
    CURSOR,
    IDS,
    IDS_ONCE,
    MOMENT,
    NEW_BATCH,
    QUEUE,
    QUEUES,
    SPAN,
    TASK,
    TENANT,
    WEIGHT,
    WORKER,
    Rule,
    many,
    whole,
)
from fairq.model.schedules import EVERY, MISFIRE, SCHEDULE_NAME
from fairq.model.tasks import SHORT_NAME, NewTask, ScheduledOptions, Settlement
from fairq.model.tenants import SCAN
from fairq.model.versions import VERSION
from fairq.model.webhooks import SECRETS, URL
from fairq.wire.beside import check_inline
from fairq.wire.frames import Fence, HeldLease, Report
from fairq.wire.terms import MAX_CREDIT, MAX_QUEUES, MAX_WAIT_MS, ROLE

WAIT, CREDIT = whole(0, MAX_WAIT_MS), whole(0, MAX_CREDIT)
ATTACHED_QUEUES, WEIGHTS = many(QUEUE, 1, MAX_QUEUES), many(WEIGHT, 0, MAX_QUEUES)
BATCHES = many(BATCH, once=True)
LATER = evolve(MOMENT, check=lambda value, _: value)  # the verb checks it, after how many weights there are
INLINE = Rule(lambda value, _: check_inline(orjson.dumps(value)), {})


class Request:
    """A frame that a client sends; `ref` is the client's own number for it, repeated in the answer.

    The rules of its fields (fairq/model/rules.py) are checked in their order, but for those that are `first`.
    """

    type: ClassVar[str]
    first: ClassVar[tuple[str, ...]] = ()
    ref: int


@frozen
class Enqueue(Request):
    """Store tasks of the token's tenant; a producer names the tenant of all tasks here, or of each in its full id."""

    type: ClassVar[str] = "enqueue"
    ref: int
    queue: Annotated[str, QUEUE]
    tasks: list[NewTask]
    tenant: Annotated[str | None, TENANT] = None


@frozen
class Tasks(Request):
    """Read the states of tasks."""

    type: ClassVar[str] = "tasks"
    ref: int
    queue: Annotated[str, QUEUE]
    ids: Annotated[list[str], IDS]


@frozen
class Cancel(Request):
    """Cancel waiting tasks, and stop running ones."""

    type: ClassVar[str] = "cancel"
    ref: int
    queue: Annotated[str, QUEUE]
    ids: Annotated[list[str], IDS_ONCE]


@frozen
class CancelAll(Request):
    """Cancel waiting tasks of a tenant that match, as many as the time of one request allows."""

    type: ClassVar[str] = "cancel_all"
    ref: int
    queue: Annotated[str, QUEUE]
    tenant: Annotated[str | None, TENANT] = None
    older_than_ms: Annotated[int, SPAN] = 0
    error: Annotated[str | None, SEARCH] = None
    cursor: Annotated[str | None, CURSOR] = None
    dry_run: bool = False


@frozen
class Reschedule(Request):
    """Change when waiting tasks start: after `delay_ms`, or at `start_at_ms`; without either, now."""

    type: ClassVar[str] = "reschedule"
    ref: int
    queue: Annotated[str, QUEUE]
    ids: Annotated[list[str], IDS_ONCE]
    delay_ms: Annotated[int, SPAN] = 0
    start_at_ms: Annotated[int, MOMENT] = 0


@frozen
class Peek(Request):
    """Show a tenant's next tasks without taking them; an operator names the tenant."""

    type: ClassVar[str] = "peek"
    ref: int
    queue: Annotated[str, QUEUE]
    count: Annotated[int, COUNT] = 10
    tenant: Annotated[str | None, TENANT] = None


@frozen
class WaitTasks(Request):
    """Tell of the ends of these tasks as they happen, for at most `timeout_ms`."""

    type: ClassVar[str] = "wait_tasks"
    ref: int
    queue: Annotated[str, QUEUE]
    ids: Annotated[list[str], IDS_ONCE]
    timeout_ms: Annotated[int, WAIT] = 0


@frozen
class OpenBatch(Request):
    """Open a batch; callbacks are payloads of tasks to enqueue on completion, success or death."""

    type: ClassVar[str] = "open_batch"
    ref: int
    queue: Annotated[str, QUEUE]
    id: Annotated[str, NEW_BATCH]
    max_running: Annotated[int, RUNNING] = 0
    on_complete: Any = None
    on_success: Any = None
    on_death: Any = None
    events: bool = False


@frozen
class CloseBatch(Request):
    """Add no more tasks to a batch."""

    type: ClassVar[str] = "close_batch"
    ref: int
    queue: Annotated[str, QUEUE]
    id: Annotated[str, BATCH]


@frozen
class CancelBatch(Request):
    """Close a batch and cancel its tasks."""

    type: ClassVar[str] = "cancel_batch"
    ref: int
    queue: Annotated[str, QUEUE]
    id: Annotated[str, BATCH]


@frozen
class Batch(Request):
    """Read a batch's state; with `timeout_ms`, wait at most so long until it is complete."""

    type: ClassVar[str] = "batch"
    ref: int
    queue: Annotated[str, QUEUE]
    id: Annotated[str, BATCH]
    timeout_ms: Annotated[int, WAIT] = 0


@frozen
class Batches(Request):
    """Read the states of the named batches; or list batches (of a tenant, in a state), page by page."""

    type: ClassVar[str] = "batches"
    ref: int
    queue: Annotated[str, QUEUE]
    ids: Annotated[list[str] | None, BATCHES] = None
    tenant: Annotated[str | None, TENANT] = None
    state: Annotated[str | None, STAGE] = None
    cursor: Annotated[str | None, CURSOR] = None
    count: Annotated[int, COUNT] = 100


@frozen
class Events(Request):
    """Read a tenant's feed after an event; with `timeout_ms`, wait at most so long for an event."""

    type: ClassVar[str] = "events"
    first: ClassVar[tuple[str, ...]] = ("queue", "count", "tenant")
    ref: int
    queue: Annotated[str, QUEUE]
    after: Annotated[int, EVENT_ID] = 0
    count: Annotated[int, COUNT] = 100
    timeout_ms: Annotated[int, WAIT] = 0
    tenant: Annotated[str | None, TENANT] = None


@frozen
class Why(Request):
    """Ask why a task waits, and when it may start."""

    type: ClassVar[str] = "why"
    ref: int
    queue: Annotated[str, QUEUE]
    id: Annotated[str, TASK]


@frozen
class TenantReport(Request):
    """Read what a tenant's tasks have waited for, and its share."""

    type: ClassVar[str] = "report"
    ref: int
    queue: Annotated[str, QUEUE]
    tenant: Annotated[str | None, TENANT] = None


@frozen
class History(Request):
    """Read what happened in a queue over a period: of the named tenants, or of those with the most service."""

    type: ClassVar[str] = "history"
    ref: int
    queue: Annotated[str, QUEUE]
    period: Annotated[str, PERIOD] = "1h"
    tenants: Annotated[list[str] | None, TENANTS] = None
    since_ms: Annotated[int, MOMENT] = 0


@frozen
class Attach(Request):
    """Attach a worker: from now on up to `credit` tasks of the queues may be pushed to it.

    It has begun all that it holds but up to `prefetch`, and begins tasks in the order in which they were pushed.
    """

    type: ClassVar[str] = "attach"
    first: ClassVar[tuple[str, ...]] = ("worker", "queues", "credit", "prefetch", "weights")
    ref: int
    worker: Annotated[str, WORKER]
    queues: Annotated[list[str], ATTACHED_QUEUES]
    credit: Annotated[int, CREDIT]
    leases: list[HeldLease] = field(factory=list)
    started_at_ms: Annotated[int, LATER] = 0
    weights: Annotated[list[float], WEIGHTS] = field(factory=list)
    prefetch: Annotated[int, CREDIT] = 0


@frozen
class Credit(Request):
    """Change how many tasks the worker holds at most."""

    type: ClassVar[str] = "credit"
    ref: int
    credit: Annotated[int, CREDIT]


@frozen
class Settle(Request):
    """End leases."""

    type: ClassVar[str] = "settle"
    ref: int
    queue: Annotated[str, QUEUE]
    settlements: list[Settlement]


@frozen
class EnqueueFrom(Request):
    """Store tasks, which the handlers of leased tasks enqueue, one lease for each: for the tenants of these."""

    type: ClassVar[str] = "enqueue_from"
    ref: int
    queue: Annotated[str, QUEUE]
    leases: list[HeldLease]
    tasks: list[NewTask]


@frozen
class Extend(Request):
    """Renew leases."""

    type: ClassVar[str] = "extend"
    ref: int
    queue: Annotated[str, QUEUE]
    leases: list[Fence]


@frozen
class Progress(Request):
    """Report the progress of tasks."""

    type: ClassVar[str] = "progress"
    ref: int
    queue: Annotated[str, QUEUE]
    reports: list[Report]


@frozen
class Idle(Request):
    """Ask whether there is a task for this worker."""

    type: ClassVar[str] = "idle"
    ref: int


@frozen
class Queues(Request):
    """List all queues, or one, with counts and settings."""

    type: ClassVar[str] = "queues"
    ref: int
    queue: Annotated[str | None, QUEUE] = None


@frozen
class Configure(Request):
    """Change settings of a queue."""

    type: ClassVar[str] = "configure"
    first: ClassVar[tuple[str, ...]] = ("settings",)
    ref: int
    queue: Annotated[str, QUEUE]
    settings: Annotated[dict[str, Any], queues.SETTINGS]
    if_version: Annotated[str | None, VERSION] = None


@frozen
class DeleteQueue(Request):
    """Delete an empty queue, or with `purge` a queue and its contents."""

    type: ClassVar[str] = "delete_queue"
    ref: int
    queue: Annotated[str, QUEUE]
    purge: bool = False


@frozen
class Tenants(Request):
    """List a queue's tenants page by page, or one of them, with weights, counts and shares."""

    type: ClassVar[str] = "tenants"
    first: ClassVar[tuple[str, ...]] = ("cursor", "count", "tenant")
    ref: int
    queue: Annotated[str, QUEUE]
    tenant: Annotated[str | None, TENANT] = None
    cursor: Annotated[str | None, SCAN] = None
    count: Annotated[int, COUNT] = 500


@frozen
class DropTenant(Request):
    """Delete a tenant that has nothing, with its settings and its feed."""

    type: ClassVar[str] = "drop_tenant"
    ref: int
    queue: Annotated[str, QUEUE]
    tenant: Annotated[str, TENANT]


@frozen
class SetWeight(Request):
    """Give a tenant a weight."""

    type: ClassVar[str] = "set_weight"
    ref: int
    queue: Annotated[str, QUEUE]
    tenant: Annotated[str, TENANT]
    weight: Annotated[float, WEIGHT]
    if_version: Annotated[str | None, VERSION] = None


@frozen
class SetLimits(Request):
    """Set limits of a tenant, or of all tenants without such a limit of their own."""

    type: ClassVar[str] = "set_limits"
    first: ClassVar[tuple[str, ...]] = ("queue", "tenant")
    ref: int
    queue: Annotated[str, QUEUE]
    limits: Annotated[dict[str, Any], LIMITS]
    tenant: Annotated[str | None, TENANT] = None
    if_version: Annotated[str | None, VERSION] = None


@frozen
class Limits(Request):
    """Read the limits and opening hours of a tenant, or of all."""

    type: ClassVar[str] = "limits"
    ref: int
    queue: Annotated[str, QUEUE]
    tenant: Annotated[str | None, TENANT] = None


@frozen
class SetOpeningHours(Request):
    """Set the opening hours of a tenant, or of the whole queue."""

    type: ClassVar[str] = "set_opening_hours"
    first: ClassVar[tuple[str, ...]] = ("queue", "tenant")
    ref: int
    queue: Annotated[str, QUEUE]
    opening_hours: Annotated[str, OPENING_HOURS]
    tenant: Annotated[str | None, TENANT] = None
    if_version: Annotated[str | None, VERSION] = None


@frozen
class Workers(Request):
    """List the workers that are attached to any server of the store."""

    type: ClassVar[str] = "workers"
    ref: int


@frozen
class WorkerTasks(Request):
    """Describe the workers of a name and the tasks that they hold."""

    type: ClassVar[str] = "worker_tasks"
    ref: int
    worker: Annotated[str, WORKER]
    count: Annotated[int, COUNT] = 100


@frozen
class DrainWorker(Request):
    """Let the workers of a name finish their tasks and end."""

    type: ClassVar[str] = "drain_worker"
    ref: int
    worker: Annotated[str, WORKER]


@frozen
class Pause(Request):
    """Stop starting tasks of a tenant, or of the whole queue."""

    type: ClassVar[str] = "pause"
    ref: int
    queue: Annotated[str, QUEUE]
    tenant: Annotated[str | None, TENANT] = None


@frozen
class Resume(Request):
    """Undo `pause`."""

    type: ClassVar[str] = "resume"
    ref: int
    queue: Annotated[str, QUEUE]
    tenant: Annotated[str | None, TENANT] = None


@frozen
class Repair(Request):
    """Repair a queue for about a second; repeat it, with the `number` of the reply, while the outcome is `more`."""

    type: ClassVar[str] = "repair"
    ref: int
    queue: Annotated[str, QUEUE]
    number: Annotated[int | None, MOMENT] = None


@frozen
class Dead(Request):
    """List dead letters that match, oldest first."""

    type: ClassVar[str] = "dead"
    ref: int
    queue: Annotated[str, QUEUE]
    tenant: Annotated[str | None, TENANT] = None
    reason: Annotated[str | None, REASON] = None
    error: Annotated[str | None, SEARCH] = None
    older_than_ms: Annotated[int, SPAN] = 0
    younger_than_ms: Annotated[int, SPAN] = 0
    cursor: Annotated[str | None, CURSOR] = None
    count: Annotated[int, COUNT] = 100
    brief: bool = False


@frozen
class DeadLetter(Request):
    """Read one dead letter."""

    type: ClassVar[str] = "dead_letter"
    ref: int
    queue: Annotated[str, QUEUE]
    id: Annotated[str, TASK]


@frozen
class Replay(Request):
    """Give dead letters a fresh set of attempts."""

    type: ClassVar[str] = "replay"
    ref: int
    queue: Annotated[str, QUEUE]
    ids: Annotated[list[str], IDS]


@frozen
class Purge(Request):
    """Delete dead letters."""

    type: ClassVar[str] = "purge"
    ref: int
    queue: Annotated[str, QUEUE]
    ids: Annotated[list[str], IDS]


@frozen
class Schedule(Request, ScheduledOptions):
    """Create a schedule, or change the one with this name; give `cron` or `every_ms`."""

    type: ClassVar[str] = "schedule"
    first: ClassVar[tuple[str, ...]] = ("queue", "tenant", "name", "cron", "zone", "every_ms", "misfire", "payload")
    ref: int
    queue: Annotated[str, QUEUE]
    name: Annotated[str, SCHEDULE_NAME]
    payload: Annotated[Any, INLINE]
    cron: Annotated[str, CRON] = ""
    zone: Annotated[str, ZONE] = ""
    every_ms: Annotated[int, EVERY] = 0
    misfire: Annotated[str, MISFIRE] = "skip"
    tenant: Annotated[str | None, TENANT] = None


@frozen
class Unschedule(Request):
    """Delete a schedule."""

    type: ClassVar[str] = "unschedule"
    first: ClassVar[tuple[str, ...]] = ("queue", "tenant")
    ref: int
    queue: Annotated[str, QUEUE]
    name: Annotated[str, SCHEDULE_NAME]
    tenant: Annotated[str | None, TENANT] = None


@frozen
class PauseSchedule(Request):
    """Stop a schedule from firing until it is resumed."""

    type: ClassVar[str] = "pause_schedule"
    first: ClassVar[tuple[str, ...]] = ("queue", "tenant")
    ref: int
    queue: Annotated[str, QUEUE]
    name: Annotated[str, SCHEDULE_NAME]
    tenant: Annotated[str | None, TENANT] = None


@frozen
class ResumeSchedule(Request):
    """Undo `pause_schedule`."""

    type: ClassVar[str] = "resume_schedule"
    first: ClassVar[tuple[str, ...]] = ("queue", "tenant")
    ref: int
    queue: Annotated[str, QUEUE]
    name: Annotated[str, SCHEDULE_NAME]
    tenant: Annotated[str | None, TENANT] = None


@frozen
class Schedules(Request):
    """List schedules."""

    type: ClassVar[str] = "schedules"
    first: ClassVar[tuple[str, ...]] = ("queue", "offset", "count", "tenant")
    ref: int
    queue: Annotated[str, QUEUE]
    name: Annotated[str | None, SCHEDULE_NAME] = None
    tenant: Annotated[str | None, TENANT] = None
    offset: Annotated[int, MOMENT] = 0
    count: Annotated[int, COUNT] = 100


@frozen
class AddWebhook(Request):
    """Have a queue's tasks posted to a URL, or change how; `name`: only tasks of that name."""

    type: ClassVar[str] = "add_webhook"
    ref: int
    queue: Annotated[str, QUEUE]
    url: Annotated[str, URL]
    name: Annotated[str, SHORT_NAME] = ""
    has_fan_out: bool = False
    secrets: Annotated[list[str], SECRETS] = field(factory=list, repr=False)


@frozen
class RemoveWebhook(Request):
    """Forget a webhook; tasks that are for it stay."""

    type: ClassVar[str] = "remove_webhook"
    ref: int
    queue: Annotated[str, QUEUE]
    url: Annotated[str, URL]
    name: Annotated[str, SHORT_NAME] = ""


@frozen
class PauseWebhook(Request):
    """Post no tasks to a webhook until it is resumed."""

    type: ClassVar[str] = "pause_webhook"
    ref: int
    queue: Annotated[str, QUEUE]
    url: Annotated[str, URL]
    name: Annotated[str, SHORT_NAME] = ""


@frozen
class ResumeWebhook(Request):
    """Undo `pause_webhook`."""

    type: ClassVar[str] = "resume_webhook"
    ref: int
    queue: Annotated[str, QUEUE]
    url: Annotated[str, URL]
    name: Annotated[str, SHORT_NAME] = ""


@frozen
class Webhooks(Request):
    """List the webhooks of a queue; workers are told their secrets too."""

    type: ClassVar[str] = "webhooks"
    ref: int
    queue: Annotated[str, QUEUE]


@frozen
class CreateToken(Request):
    """Register a token that the caller made; `hash` is the SHA-256 of its text, which is never sent."""

    type: ClassVar[str] = "create_token"
    ref: int
    id: Annotated[str, tokens.TOKEN_ID]
    role: Annotated[str, ROLE]
    hash: Annotated[str, tokens.HASH]
    tenant: Annotated[str | None, tokens.TENANTS] = None
    queues: Annotated[list[str] | None, QUEUES] = None
    label: Annotated[str, tokens.LABEL] = ""
    expires_in_ms: Annotated[int, SPAN] = 0


@frozen
class ListTokens(Request):
    """List tokens, without their secrets."""

    type: ClassVar[str] = "list_tokens"
    ref: int


@frozen
class RevokeToken(Request):
    """Delete a token and close the connections that use it."""

    type: ClassVar[str] = "revoke_token"
    ref: int
    id: str


@frozen
class Audit(Request):
    """Read what operators have changed, or (`by_tenants`) what tenants and producers have set, the newest first."""

    type: ClassVar[str] = "audit"
    first: ClassVar[tuple[str, ...]] = ("queue", "tenant", "since_ms")
    ref: int
    token: Annotated[str | None, TOKEN] = None
    verb: Annotated[str | None, VERB] = None
    queue: Annotated[str | None, QUEUE] = None
    tenant: Annotated[str | None, TENANT] = None
    since_ms: Annotated[int, MOMENT] = 0
    by_tenants: bool = False
    cursor: Annotated[str | None, PLACE] = None
    after: Annotated[str | None, PLACE] = None
    count: Annotated[int, COUNT] = 100
