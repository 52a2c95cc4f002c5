"""The frames that a server reads (PROTOCOL.md); verbs.py has the table of them."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

import orjson
from attrs import field, frozen

from fairq.model import attempts, queues, token_rules
from fairq.model.audit import PLACE, TOKEN, VERB
from fairq.model.batches import CALLBACK_NAME, RUNNING, STAGE
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
    FULL_ID,
    IDS,
    IDS_ONCE,
    LEASE,
    MOMENT,
    NEW_BATCH,
    QUEUE,
    QUEUES,
    SOME_SPAN,
    SPAN,
    TASK,
    TENANT,
    WEIGHT,
    WORKER,
    Rule,
    many,
    whole,
)
from fairq.model.schedules import APP, EVERY, MISFIRE, SCHEDULE_NAME
from fairq.model.tasks import SHORT_NAME, NewTask, ScheduledOptions, Settlement
from fairq.model.tenants import SCAN
from fairq.model.versions import VERSION
from fairq.model.webhooks import SECRETS, URL
from fairq.wire.frames import HeldLease, Report
from fairq.wire.raw_payloads import check_inline
from fairq.wire.terms import MAX_CREDIT, MAX_QUEUES, MAX_WAIT_MS, ROLE

WAIT, CREDIT = whole(0, MAX_WAIT_MS), whole(0, MAX_CREDIT)
ATTACHED_QUEUES = many(QUEUE, 1, MAX_QUEUES)
BATCHES = many(BATCH, once=True)
INLINE = Rule(lambda value, _: check_inline(orjson.dumps(value)), {})


@frozen
class Request:
    """A frame that a client sends; `ref` is the client's own number for it, repeated in the answer.

    Its type is the name of its class, unless it gives one: `CloseBatch` is `close_batch`. The rules of its fields
    (fairq/model/rules.py) are checked in their order.
    """

    type: ClassVar[str]
    ref: int

    def __init_subclass__(cls) -> None:
        """Name the type of a class."""
        if "type" not in vars(cls):
            cls.type = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


@frozen
class OfQueue(Request):
    """A frame about one queue."""

    queue: Annotated[str, QUEUE]


@frozen
class Enqueue(OfQueue):
    """Store tasks of the token's tenant; a producer names the tenant of all tasks here, or of each in its full id."""

    tasks: list[NewTask]
    tenant: Annotated[str | None, TENANT] = None


@frozen
class Tasks(OfQueue):
    """Read the states of tasks."""

    ids: Annotated[list[str], IDS]


@frozen
class Cancel(OfQueue):
    """Cancel waiting tasks, and stop running ones."""

    ids: Annotated[list[str], IDS_ONCE]


@frozen
class CancelAll(OfQueue):
    """Cancel waiting tasks of a tenant that match, as many as the time of one request allows."""

    tenant: Annotated[str | None, TENANT] = None
    older_than_ms: Annotated[int, SPAN] = 0
    error: Annotated[str | None, SEARCH] = None
    cursor: Annotated[str | None, CURSOR] = None
    dry_run: bool = False


@frozen
class Reschedule(OfQueue):
    """Change when waiting tasks start: after `delay_ms`, or at `start_at_ms`; without either, now."""

    ids: Annotated[list[str], IDS_ONCE]
    delay_ms: Annotated[int, SPAN] = 0
    start_at_ms: Annotated[int, MOMENT] = 0


@frozen
class Peek(OfQueue):
    """Show a tenant's next tasks without taking them; an operator names the tenant."""

    count: Annotated[int, COUNT] = 10
    tenant: Annotated[str | None, TENANT] = None


@frozen
class WaitTasks(OfQueue):
    """Report the ends of these tasks as they happen, for at most `timeout_ms`."""

    ids: Annotated[list[str], IDS_ONCE]
    timeout_ms: Annotated[int, WAIT] = 0


@frozen
class OpenBatch(OfQueue):
    """Open a batch; callbacks are payloads (and names) of tasks to enqueue on completion, success or death."""

    id: Annotated[str, NEW_BATCH]
    max_running: Annotated[int, RUNNING] = 0
    on_complete: Any = None
    on_success: Any = None
    on_death: Any = None
    on_complete_name: Annotated[str, CALLBACK_NAME] = ""
    on_success_name: Annotated[str, CALLBACK_NAME] = ""
    on_death_name: Annotated[str, CALLBACK_NAME] = ""
    events: bool = False


@frozen
class CloseBatch(OfQueue):
    """Add no more tasks to a batch."""

    id: Annotated[str, BATCH]


@frozen
class CancelBatch(OfQueue):
    """Close a batch and cancel its tasks."""

    id: Annotated[str, BATCH]


@frozen
class Batch(OfQueue):
    """Read a batch's state; wait at most `timeout_ms` until it is complete."""

    id: Annotated[str, BATCH]
    timeout_ms: Annotated[int, WAIT] = 0


@frozen
class Batches(OfQueue):
    """Read the states of the named batches; or list batches (of a tenant, in a state), page by page."""

    ids: Annotated[list[str] | None, BATCHES] = None
    tenant: Annotated[str | None, TENANT] = None
    state: Annotated[str | None, STAGE] = None
    cursor: Annotated[str | None, CURSOR] = None
    count: Annotated[int, COUNT] = 100


@frozen
class Events(OfQueue):
    """Read a tenant's feed after an event; wait at most `timeout_ms` for one."""

    after: Annotated[int, EVENT_ID] = 0
    count: Annotated[int, COUNT] = 100
    timeout_ms: Annotated[int, WAIT] = 0
    tenant: Annotated[str | None, TENANT] = None


@frozen
class Why(OfQueue):
    """Ask why a task waits, and when it may start."""

    id: Annotated[str, TASK]


@frozen
class TenantReport(OfQueue):
    """Read for what a tenant's tasks have waited, and its share."""

    type: ClassVar[str] = "report"
    tenant: Annotated[str | None, TENANT] = None


@frozen
class History(OfQueue):
    """Read what happened in a queue over a period: of the named tenants, or of those with the most service."""

    period: Annotated[str, PERIOD] = "1h"
    tenants: Annotated[list[str] | None, TENANTS] = None
    since_ms: Annotated[int, MOMENT] = 0


@frozen
class Attach(Request):
    """Attach a worker: from now on up to `credit` tasks of the queues may be pushed to it.

    It has begun all that it holds but up to `prefetch`, and begins tasks in the order in which they were pushed.
    """

    worker: Annotated[str, WORKER]
    queues: Annotated[list[str], ATTACHED_QUEUES]
    credit: Annotated[int, CREDIT]
    leases: list[HeldLease] = field(factory=list)
    started_at_ms: Annotated[int, MOMENT] = 0
    prefetch: Annotated[int, CREDIT] = 0


@frozen
class Credit(Request):
    """Change how many leases the worker may hold."""

    credit: Annotated[int, CREDIT]


@frozen
class Settle(OfQueue):
    """End leases, or extend them."""

    settlements: list[Settlement]


@frozen
class EnqueueFrom(OfQueue):
    """Store tasks enqueued by handlers of leased tasks, for the tenants of those; each task names one lease."""

    leases: list[HeldLease]
    tasks: list[NewTask]


@frozen
class BatchResults(OfQueue):
    """Read the results of a batch's tasks page by page, for the handler of one of its callback tasks."""

    id: Annotated[str, FULL_ID]
    lease: Annotated[int, LEASE]
    cursor: Annotated[str | None, SCAN] = None


@frozen
class Progress(OfQueue):
    """Report the progress of tasks."""

    reports: list[Report]


@frozen
class Idle(Request):
    """Ask whether there is a task for this worker."""

    ref: int


@frozen
class Queues(Request):
    """List all queues, or one, with counts and settings."""

    queue: Annotated[str | None, QUEUE] = None


@frozen
class Configure(OfQueue):
    """Change settings of a queue."""

    settings: Annotated[dict[str, Any], queues.SETTINGS]
    if_version: Annotated[str | None, VERSION] = None


@frozen
class DeleteQueue(OfQueue):
    """Delete an empty queue, or with `purge` a queue and its contents."""

    purge: bool = False


@frozen
class Tenants(OfQueue):
    """List a queue's tenants page by page, or one of them, with weights, counts and shares."""

    tenant: Annotated[str | None, TENANT] = None
    cursor: Annotated[str | None, SCAN] = None
    count: Annotated[int, COUNT] = 500


@frozen
class DropTenant(OfQueue):
    """Delete a tenant that has nothing, with its settings and its feed."""

    tenant: Annotated[str, TENANT]


@frozen
class SetWeight(OfQueue):
    """Give a tenant a weight."""

    tenant: Annotated[str, TENANT]
    weight: Annotated[float, WEIGHT]
    if_version: Annotated[str | None, VERSION] = None


@frozen
class SetLimits(OfQueue):
    """Set limits of a tenant, or of all tenants without such a limit of their own."""

    limits: Annotated[dict[str, Any], LIMITS]
    tenant: Annotated[str | None, TENANT] = None
    if_version: Annotated[str | None, VERSION] = None


@frozen
class Limits(OfQueue):
    """Read the limits and opening hours of a tenant, or of all."""

    tenant: Annotated[str | None, TENANT] = None


@frozen
class SetOpeningHours(OfQueue):
    """Set the opening hours of a tenant, or of the whole queue."""

    opening_hours: Annotated[str, OPENING_HOURS]
    tenant: Annotated[str | None, TENANT] = None
    if_version: Annotated[str | None, VERSION] = None


@frozen
class Workers(Request):
    """List the workers that are attached to any server of the store."""

    ref: int


@frozen
class WorkerTasks(Request):
    """Describe the workers of a name and the tasks that they hold."""

    worker: Annotated[str, WORKER]
    count: Annotated[int, COUNT] = 100


@frozen
class Attempts(OfQueue):
    """List the running attempts of a queue, and the last ended ones; both that match."""

    state: Annotated[str | None, attempts.STATE] = None
    tenant: Annotated[str | None, TENANT] = None
    name: Annotated[str | None, SHORT_NAME] = None
    error: Annotated[str | None, SEARCH] = None
    count: Annotated[int, COUNT] = 100


@frozen
class DrainWorker(Request):
    """Let the workers of a name finish their tasks and end."""

    worker: Annotated[str, WORKER]


@frozen
class SetPaused(OfQueue):
    """Stop starting tasks of a tenant, or of the whole queue; or start them again."""

    paused: bool
    tenant: Annotated[str | None, TENANT] = None


@frozen
class Repair(OfQueue):
    """Repair a queue for about a second; repeat it, with the `number` of the reply, while the outcome is `more`."""

    number: Annotated[int | None, MOMENT] = None


@frozen
class Dead(OfQueue):
    """List dead letters that match, oldest first."""

    tenant: Annotated[str | None, TENANT] = None
    reason: Annotated[str | None, REASON] = None
    error: Annotated[str | None, SEARCH] = None
    older_than_ms: Annotated[int, SPAN] = 0
    younger_than_ms: Annotated[int | None, SOME_SPAN] = None
    cursor: Annotated[str | None, CURSOR] = None
    count: Annotated[int, COUNT] = 100
    brief: bool = False


@frozen
class DeadLetter(OfQueue):
    """Read one dead letter."""

    id: Annotated[str, TASK]


@frozen
class Replay(OfQueue):
    """Give dead letters a fresh set of attempts."""

    ids: Annotated[list[str], IDS]


@frozen
class Purge(OfQueue):
    """Delete dead letters."""

    ids: Annotated[list[str], IDS]


@frozen(kw_only=True, slots=False)  # a base class among several
class ScheduleTerms(ScheduledOptions):
    """The terms of a schedule: give `cron` or `every_ms`."""

    name: Annotated[str, SCHEDULE_NAME]
    payload: Annotated[Any, INLINE]
    cron: Annotated[str, CRON] = ""
    zone: Annotated[str, ZONE] = ""
    every_ms: Annotated[int, EVERY] = 0
    misfire: Annotated[str, MISFIRE] = "skip"
    task_name: Annotated[str, SHORT_NAME] = ""  # its own


@frozen
class Schedule(OfQueue, ScheduleTerms):
    """Create a schedule, or change the one with this name; give `cron` or `every_ms`."""

    tenant: Annotated[str | None, TENANT] = None


@frozen
class Unschedule(OfQueue):
    """Delete a schedule."""

    name: Annotated[str, SCHEDULE_NAME]
    tenant: Annotated[str | None, TENANT] = None


@frozen
class SetSchedulePaused(OfQueue):
    """Stop a schedule from firing, or let it fire again."""

    name: Annotated[str, SCHEDULE_NAME]
    paused: bool
    tenant: Annotated[str | None, TENANT] = None


@frozen
class Schedules(OfQueue):
    """List schedules."""

    name: Annotated[str | None, SCHEDULE_NAME] = None
    tenant: Annotated[str | None, TENANT] = None
    offset: Annotated[int, MOMENT] = 0
    count: Annotated[int, COUNT] = 100


@frozen(kw_only=True)
class DeclaredSchedule(ScheduleTerms):
    """A schedule that stands in an app's code."""

    queue: Annotated[str, QUEUE]
    tenant: Annotated[str, TENANT]


@frozen
class Declare(Request):
    """Declare the schedules in an app's code: all of them, in the queues of this worker."""

    app: Annotated[str, APP]
    schedules: list[DeclaredSchedule] = field(factory=list)


@frozen
class AddWebhook(OfQueue):
    """Post a queue's tasks to a URL, or change how; `name`: only tasks of that name."""

    url: Annotated[str, URL]
    name: Annotated[str, SHORT_NAME] = ""
    has_fan_out: bool = False
    secrets: Annotated[list[str], SECRETS] = field(factory=list, repr=False)


@frozen
class RemoveWebhook(OfQueue):
    """Forget a webhook; its tasks stay."""

    url: Annotated[str, URL]
    name: Annotated[str, SHORT_NAME] = ""


@frozen
class SetWebhookPaused(OfQueue):
    """Post no tasks to a webhook, or post them again."""

    url: Annotated[str, URL]
    paused: bool
    name: Annotated[str, SHORT_NAME] = ""


@frozen
class Webhooks(Request):
    """List the webhooks of a queue; only workers get their secrets."""

    queue: Annotated[str, QUEUE]


@frozen
class CreateToken(Request):
    """Register a token that the caller made; `hash` is the SHA-256 of its text, which is never sent."""

    id: Annotated[str, token_rules.TOKEN_ID]
    role: Annotated[str, ROLE]
    hash: Annotated[str, token_rules.HASH]
    tenant: Annotated[str | None, token_rules.TENANTS] = None
    queues: Annotated[list[str] | None, QUEUES] = None
    label: Annotated[str, token_rules.LABEL] = ""
    expires_in_ms: Annotated[int | None, SOME_SPAN] = None


@frozen
class ListTokens(Request):
    """List tokens, without their secrets."""

    ref: int


@frozen
class RevokeToken(Request):
    """Delete a token and close the connections that use it."""

    id: Annotated[str, token_rules.TOKEN_ID]


@frozen
class Audit(Request):
    """Read the changes by operators, or (`by_tenants`) those by tenants and producers, the newest first."""

    token: Annotated[str | None, TOKEN] = None
    verb: Annotated[str | None, VERB] = None
    queue: Annotated[str | None, QUEUE] = None
    tenant: Annotated[str | None, TENANT] = None
    since_ms: Annotated[int, MOMENT] = 0
    by_tenants: bool = False
    cursor: Annotated[str | None, PLACE] = None
    after: Annotated[str | None, PLACE] = None
    count: Annotated[int, COUNT] = 100
