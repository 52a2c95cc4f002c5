"""The table of verbs. A verb does the checks that need more than the frame, then calls the store.

The rules of queues are in lua/; the verbs only check permissions and translate requests and replies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fairq.server.app import App
from fairq.server.net.connection import Connection
from fairq.server.verbs import (
    admin,
    audit,
    batches,
    dead_letters,
    explain,
    handlers,
    history,
    limits,
    purges,
    schedules,
    tasks,
    waits,
    webhooks,
    workers,
)
from fairq.server.verbs.request_scope import Body
from fairq.wire import messages as wire

HANDLERS: dict[type[Any], Callable[..., Awaitable[Body]]] = {
    wire.Enqueue: tasks.enqueue,
    wire.Tasks: tasks.tasks,
    wire.Cancel: tasks.cancel,
    wire.WaitTasks: waits.wait_tasks,
    wire.OpenBatch: batches.open_batch,
    wire.CloseBatch: batches.close_batch,
    wire.CancelBatch: batches.cancel_batch,
    wire.Batch: batches.batch,
    wire.Batches: batches.batches,
    wire.Events: tasks.events,
    wire.CancelAll: purges.cancel_all,
    wire.Reschedule: tasks.reschedule,
    wire.Peek: tasks.peek,
    wire.Why: explain.why,
    wire.TenantReport: explain.tenant_report,
    wire.History: history.history,
    wire.Attach: workers.attach,
    wire.Credit: workers.credit,
    wire.Settle: workers.settle,
    wire.EnqueueFrom: handlers.enqueue_from,
    wire.Extend: workers.extend,
    wire.Progress: workers.progress,
    wire.Idle: workers.idle,
    wire.Queues: admin.queues,
    wire.Configure: admin.configure,
    wire.DeleteQueue: admin.delete_queue,
    wire.Tenants: admin.tenants,
    wire.DropTenant: admin.drop_tenant,
    wire.SetWeight: admin.set_weight,
    wire.SetLimits: limits.set_limits,
    wire.Limits: limits.limits,
    wire.SetOpeningHours: limits.set_opening_hours,
    wire.Workers: admin.workers,
    wire.WorkerTasks: admin.worker_tasks,
    wire.DrainWorker: admin.drain_worker,
    wire.Pause: admin.pause,
    wire.Resume: admin.resume,
    wire.Repair: admin.repair,
    wire.Dead: dead_letters.dead,
    wire.DeadLetter: dead_letters.dead_letter,
    wire.Replay: dead_letters.replay,
    wire.Purge: dead_letters.purge,
    wire.Schedule: schedules.schedule,
    wire.Unschedule: schedules.unschedule,
    wire.PauseSchedule: schedules.pause_schedule,
    wire.ResumeSchedule: schedules.resume_schedule,
    wire.Schedules: schedules.schedules,
    wire.AddWebhook: webhooks.add_webhook,
    wire.RemoveWebhook: webhooks.remove_webhook,
    wire.PauseWebhook: webhooks.pause_webhook,
    wire.ResumeWebhook: webhooks.resume_webhook,
    wire.Webhooks: webhooks.webhooks,
    wire.CreateToken: admin.create_token,
    wire.ListTokens: admin.list_tokens,
    wire.RevokeToken: admin.revoke_token,
    wire.Audit: audit.audit,
}


async def handle_request(app: App, connection: Connection, request: Any) -> Body:
    """Do what a request asks; a change goes into the audit. Raises: FairqError."""
    handler = HANDLERS[type(request)]
    if audit.is_noted(connection, request):
        return await audit.handle_noted(app, connection, request, handler)
    return await handler(app, connection, request)
