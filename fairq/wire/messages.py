"""The frames that a server reads (PROTOCOL.md); verbs.py has the table of them."""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import field, frozen

from fairq.model.tasks import NewTask, ScheduledOptions, Settlement
from fairq.wire.frames import Fence, HeldLease, Report


class Request:
    """A frame that a client sends; `ref` is the client's own number for it, repeated in the answer."""

    type: ClassVar[str]
    ref: int


@frozen
class Enqueue(Request):
    """Store tasks of the token's tenant; a producer names the tenant of all tasks here, or of each in its full id."""

    type: ClassVar[str] = "enqueue"
    ref: int
    queue: str
    tasks: list[NewTask]
    tenant: str | None = None


@frozen
class Tasks(Request):
    """Read the states of tasks."""

    type: ClassVar[str] = "tasks"
    ref: int
    queue: str
    ids: list[str]


@frozen
class Cancel(Request):
    """Cancel waiting tasks, and stop running ones."""

    type: ClassVar[str] = "cancel"
    ref: int
    queue: str
    ids: list[str]


@frozen
class CancelAll(Request):
    """Cancel waiting tasks of a tenant that match, as many as the time of one request allows."""

    type: ClassVar[str] = "cancel_all"
    ref: int
    queue: str
    tenant: str | None = None
    older_than_ms: int = 0
    error: str | None = None
    cursor: str | None = None
    dry_run: bool = False


@frozen
class Reschedule(Request):
    """Change when waiting tasks start: after `delay_ms`, or at `start_at_ms`; without either, now."""

    type: ClassVar[str] = "reschedule"
    ref: int
    queue: str
    ids: list[str]
    delay_ms: int = 0
    start_at_ms: int = 0


@frozen
class Peek(Request):
    """Show a tenant's next tasks without taking them; an operator names the tenant."""

    type: ClassVar[str] = "peek"
    ref: int
    queue: str
    count: int = 10
    tenant: str | None = None


@frozen
class WaitTasks(Request):
    """Tell of the ends of these tasks as they happen, for at most `timeout_ms`."""

    type: ClassVar[str] = "wait_tasks"
    ref: int
    queue: str
    ids: list[str]
    timeout_ms: int = 0


@frozen
class OpenBatch(Request):
    """Open a batch; callbacks are payloads of tasks to enqueue on completion, success or death."""

    type: ClassVar[str] = "open_batch"
    ref: int
    queue: str
    id: str
    max_running: int = 0
    on_complete: Any = None
    on_success: Any = None
    on_death: Any = None
    events: bool = False


@frozen
class CloseBatch(Request):
    """Add no more tasks to a batch."""

    type: ClassVar[str] = "close_batch"
    ref: int
    queue: str
    id: str


@frozen
class CancelBatch(Request):
    """Close a batch and cancel its tasks."""

    type: ClassVar[str] = "cancel_batch"
    ref: int
    queue: str
    id: str


@frozen
class Batch(Request):
    """Read a batch's state; with `timeout_ms`, wait at most so long until it is complete."""

    type: ClassVar[str] = "batch"
    ref: int
    queue: str
    id: str
    timeout_ms: int = 0


@frozen
class Batches(Request):
    """Read the states of the named batches; or list batches (of a tenant, in a state), page by page."""

    type: ClassVar[str] = "batches"
    ref: int
    queue: str
    ids: list[str] | None = None
    tenant: str | None = None
    state: str | None = None
    cursor: str | None = None
    count: int = 100


@frozen
class Events(Request):
    """Read a tenant's feed after an event; with `timeout_ms`, wait at most so long for an event."""

    type: ClassVar[str] = "events"
    ref: int
    queue: str
    after: int = 0
    count: int = 100
    timeout_ms: int = 0
    tenant: str | None = None


@frozen
class Why(Request):
    """Ask why a task waits, and when it may start."""

    type: ClassVar[str] = "why"
    ref: int
    queue: str
    id: str


@frozen
class TenantReport(Request):
    """Read what a tenant's tasks have waited for, and its share."""

    type: ClassVar[str] = "report"
    ref: int
    queue: str
    tenant: str | None = None


@frozen
class History(Request):
    """Read what happened in a queue over a period: of the named tenants, or of those with the most service."""

    type: ClassVar[str] = "history"
    ref: int
    queue: str
    period: str = "1h"
    tenants: list[str] | None = None
    since_ms: int = 0


@frozen
class Attach(Request):
    """Attach a worker: from now on up to `credit` tasks of the queues may be pushed to it.

    It has begun all that it holds but up to `prefetch`, and begins tasks in the order in which they were pushed.
    """

    type: ClassVar[str] = "attach"
    ref: int
    worker: str
    queues: list[str]
    credit: int
    leases: list[HeldLease] = field(factory=list)
    started_at_ms: int = 0
    weights: list[float] = field(factory=list)
    prefetch: int = 0


@frozen
class Credit(Request):
    """Change how many tasks the worker holds at most."""

    type: ClassVar[str] = "credit"
    ref: int
    credit: int


@frozen
class Settle(Request):
    """End leases."""

    type: ClassVar[str] = "settle"
    ref: int
    queue: str
    settlements: list[Settlement]


@frozen
class EnqueueFrom(Request):
    """Store tasks, which the handlers of leased tasks enqueue, one lease for each: for the tenants of these."""

    type: ClassVar[str] = "enqueue_from"
    ref: int
    queue: str
    leases: list[HeldLease]
    tasks: list[NewTask]


@frozen
class Extend(Request):
    """Renew leases."""

    type: ClassVar[str] = "extend"
    ref: int
    queue: str
    leases: list[Fence]


@frozen
class Progress(Request):
    """Report the progress of tasks."""

    type: ClassVar[str] = "progress"
    ref: int
    queue: str
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
    queue: str | None = None


@frozen
class Configure(Request):
    """Change settings of a queue."""

    type: ClassVar[str] = "configure"
    ref: int
    queue: str
    settings: dict[str, Any]
    if_version: str | None = None


@frozen
class DeleteQueue(Request):
    """Delete an empty queue, or with `purge` a queue and its contents."""

    type: ClassVar[str] = "delete_queue"
    ref: int
    queue: str
    purge: bool = False


@frozen
class Tenants(Request):
    """List a queue's tenants page by page, or one of them, with weights, counts and shares."""

    type: ClassVar[str] = "tenants"
    ref: int
    queue: str
    tenant: str | None = None
    cursor: str | None = None
    count: int = 500


@frozen
class DropTenant(Request):
    """Delete a tenant that has nothing, with its settings and its feed."""

    type: ClassVar[str] = "drop_tenant"
    ref: int
    queue: str
    tenant: str


@frozen
class SetWeight(Request):
    """Give a tenant a weight."""

    type: ClassVar[str] = "set_weight"
    ref: int
    queue: str
    tenant: str
    weight: float
    if_version: str | None = None


@frozen
class SetLimits(Request):
    """Set limits of a tenant, or of all tenants without such a limit of their own."""

    type: ClassVar[str] = "set_limits"
    ref: int
    queue: str
    limits: dict[str, Any]
    tenant: str | None = None
    if_version: str | None = None


@frozen
class Limits(Request):
    """Read the limits and opening hours of a tenant, or of all."""

    type: ClassVar[str] = "limits"
    ref: int
    queue: str
    tenant: str | None = None


@frozen
class SetOpeningHours(Request):
    """Set the opening hours of a tenant, or of the whole queue."""

    type: ClassVar[str] = "set_opening_hours"
    ref: int
    queue: str
    opening_hours: str
    tenant: str | None = None
    if_version: str | None = None


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
    worker: str
    count: int = 100


@frozen
class DrainWorker(Request):
    """Let the workers of a name finish their tasks and end."""

    type: ClassVar[str] = "drain_worker"
    ref: int
    worker: str


@frozen
class Pause(Request):
    """Stop starting tasks of a tenant, or of the whole queue."""

    type: ClassVar[str] = "pause"
    ref: int
    queue: str
    tenant: str | None = None


@frozen
class Resume(Request):
    """Undo `pause`."""

    type: ClassVar[str] = "resume"
    ref: int
    queue: str
    tenant: str | None = None


@frozen
class Repair(Request):
    """Repair a queue for about a second; repeat it, with the `number` of the reply, while the outcome is `more`."""

    type: ClassVar[str] = "repair"
    ref: int
    queue: str
    number: int | None = None


@frozen
class Dead(Request):
    """List dead letters that match, oldest first."""

    type: ClassVar[str] = "dead"
    ref: int
    queue: str
    tenant: str | None = None
    reason: str | None = None
    error: str | None = None
    older_than_ms: int = 0
    younger_than_ms: int = 0
    cursor: str | None = None
    count: int = 100
    brief: bool = False


@frozen
class DeadLetter(Request):
    """Read one dead letter."""

    type: ClassVar[str] = "dead_letter"
    ref: int
    queue: str
    id: str


@frozen
class Replay(Request):
    """Give dead letters a fresh set of attempts."""

    type: ClassVar[str] = "replay"
    ref: int
    queue: str
    ids: list[str]


@frozen
class Purge(Request):
    """Delete dead letters."""

    type: ClassVar[str] = "purge"
    ref: int
    queue: str
    ids: list[str]


@frozen
class Schedule(Request, ScheduledOptions):
    """Create a schedule, or change the one with this name; give `cron` or `every_ms`."""

    type: ClassVar[str] = "schedule"
    ref: int
    queue: str
    name: str
    payload: Any
    cron: str = ""
    zone: str = ""
    every_ms: int = 0
    misfire: str = "skip"
    tenant: str | None = None


@frozen
class Unschedule(Request):
    """Delete a schedule."""

    type: ClassVar[str] = "unschedule"
    ref: int
    queue: str
    name: str
    tenant: str | None = None


@frozen
class PauseSchedule(Request):
    """Stop a schedule from firing until it is resumed."""

    type: ClassVar[str] = "pause_schedule"
    ref: int
    queue: str
    name: str
    tenant: str | None = None


@frozen
class ResumeSchedule(Request):
    """Undo `pause_schedule`."""

    type: ClassVar[str] = "resume_schedule"
    ref: int
    queue: str
    name: str
    tenant: str | None = None


@frozen
class Schedules(Request):
    """List schedules."""

    type: ClassVar[str] = "schedules"
    ref: int
    queue: str
    name: str | None = None
    tenant: str | None = None
    offset: int = 0
    count: int = 100


@frozen
class AddWebhook(Request):
    """Have a queue's tasks posted to a URL, or change how; `name`: only tasks of that name."""

    type: ClassVar[str] = "add_webhook"
    ref: int
    queue: str
    url: str
    name: str = ""
    has_fan_out: bool = False
    secrets: list[str] = field(factory=list, repr=False)


@frozen
class RemoveWebhook(Request):
    """Forget a webhook; tasks that are for it stay."""

    type: ClassVar[str] = "remove_webhook"
    ref: int
    queue: str
    url: str
    name: str = ""


@frozen
class PauseWebhook(Request):
    """Post no tasks to a webhook until it is resumed."""

    type: ClassVar[str] = "pause_webhook"
    ref: int
    queue: str
    url: str
    name: str = ""


@frozen
class ResumeWebhook(Request):
    """Undo `pause_webhook`."""

    type: ClassVar[str] = "resume_webhook"
    ref: int
    queue: str
    url: str
    name: str = ""


@frozen
class Webhooks(Request):
    """List the webhooks of a queue; workers are told their secrets too."""

    type: ClassVar[str] = "webhooks"
    ref: int
    queue: str


@frozen
class CreateToken(Request):
    """Register a token that the caller made; `hash` is the SHA-256 of its text, which is never sent."""

    type: ClassVar[str] = "create_token"
    ref: int
    id: str
    role: str
    hash: str
    tenant: str | None = None
    queues: list[str] | None = None
    label: str = ""
    expires_in_ms: int = 0


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
    ref: int
    token: str | None = None
    verb: str | None = None
    queue: str | None = None
    tenant: str | None = None
    since_ms: int = 0
    by_tenants: bool = False
    cursor: str | None = None
    after: str | None = None
    count: int = 100
