"""The table of verbs. A verb does the checks that need more than the frame, then calls the store.

The rules of queues are in lua/; the verbs only check permissions and translate requests and replies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fairq.server.app import App
from fairq.server.net.connection import Connection
from fairq.server.verbs.admin import (
    configure,
    create_token,
    delete_queue,
    drain_worker,
    drop_tenant,
    list_tokens,
    pause,
    queues,
    repair,
    resume,
    revoke_token,
    set_weight,
    tenants,
    worker_tasks,
    workers,
)
from fairq.server.verbs.audit import audit, handle_noted, is_noted
from fairq.server.verbs.batches import batch, batches, cancel_batch, close_batch, open_batch
from fairq.server.verbs.dead_letters import dead, dead_letter, purge, replay
from fairq.server.verbs.explain import tenant_report, why
from fairq.server.verbs.handlers import enqueue_from
from fairq.server.verbs.history import history
from fairq.server.verbs.limits import limits, set_limits, set_opening_hours
from fairq.server.verbs.purges import cancel_all
from fairq.server.verbs.request_scope import Body
from fairq.server.verbs.schedules import pause_schedule, resume_schedule, schedule, schedules, unschedule
from fairq.server.verbs.tasks import cancel, enqueue, events, peek, reschedule, tasks
from fairq.server.verbs.waits import wait_tasks
from fairq.server.verbs.webhooks import add_webhook, pause_webhook, remove_webhook, resume_webhook, webhooks
from fairq.server.verbs.workers import attach, credit, extend, idle, progress, settle
from fairq.wire import messages as wire

VERBS: dict[type[Any], Callable[..., Awaitable[Body]]] = {
    wire.Enqueue: enqueue,
    wire.Tasks: tasks,
    wire.Cancel: cancel,
    wire.WaitTasks: wait_tasks,
    wire.OpenBatch: open_batch,
    wire.CloseBatch: close_batch,
    wire.CancelBatch: cancel_batch,
    wire.Batch: batch,
    wire.Batches: batches,
    wire.Events: events,
    wire.CancelAll: cancel_all,
    wire.Reschedule: reschedule,
    wire.Peek: peek,
    wire.Why: why,
    wire.TenantReport: tenant_report,
    wire.History: history,
    wire.Attach: attach,
    wire.Credit: credit,
    wire.Settle: settle,
    wire.EnqueueFrom: enqueue_from,
    wire.Extend: extend,
    wire.Progress: progress,
    wire.Idle: idle,
    wire.Queues: queues,
    wire.Configure: configure,
    wire.DeleteQueue: delete_queue,
    wire.Tenants: tenants,
    wire.DropTenant: drop_tenant,
    wire.SetWeight: set_weight,
    wire.SetLimits: set_limits,
    wire.Limits: limits,
    wire.SetOpeningHours: set_opening_hours,
    wire.Workers: workers,
    wire.WorkerTasks: worker_tasks,
    wire.DrainWorker: drain_worker,
    wire.Pause: pause,
    wire.Resume: resume,
    wire.Repair: repair,
    wire.Dead: dead,
    wire.DeadLetter: dead_letter,
    wire.Replay: replay,
    wire.Purge: purge,
    wire.Schedule: schedule,
    wire.Unschedule: unschedule,
    wire.PauseSchedule: pause_schedule,
    wire.ResumeSchedule: resume_schedule,
    wire.Schedules: schedules,
    wire.AddWebhook: add_webhook,
    wire.RemoveWebhook: remove_webhook,
    wire.PauseWebhook: pause_webhook,
    wire.ResumeWebhook: resume_webhook,
    wire.Webhooks: webhooks,
    wire.CreateToken: create_token,
    wire.ListTokens: list_tokens,
    wire.RevokeToken: revoke_token,
    wire.Audit: audit,
}


async def handle_request(app: App, connection: Connection, request: Any) -> Body:
    """Do what a request asks; a change goes into the audit. Raises: FairqError."""
    verb = VERBS[type(request)]
    if is_noted(connection, request):
        return await handle_noted(app, connection, request, verb)
    return await verb(app, connection, request)
