"""The table of operators' paths: their own rows, and the rows that they share with tenants."""

from __future__ import annotations

from typing import Any

from fairq.server.web.http.routes import QUEUE as OF_TENANTS
from fairq.server.web.http.routes import ROWS as TENANTS
from fairq.server.web.http.routes import Row
from fairq.wire import messages as wire

QUEUE = "/api/queues/{queue}"
TENANT = f"{QUEUE}/tenants/{{tenant}}"


def _under(prefix: str, *frames: Any) -> list[Row]:
    """Return the rows that tenants have for these frames, under another prefix."""
    return [row._replace(path=prefix + row.path.removeprefix(OF_TENANTS)) for row in TENANTS if row.frame in frames]


ROWS = (
    Row("GET", "/api/queues", wire.Queues, "List queues"),
    Row("GET", QUEUE, wire.Queues, "Read a queue: its counts and settings", part="queues"),
    Row("DELETE", QUEUE, wire.DeleteQueue, "Delete a queue, for two seconds; repeat it while the outcome is more"),
    Row("PATCH", f"{QUEUE}/settings", wire.Configure, "Change settings of a queue"),
    Row("PUT", f"{QUEUE}/paused", wire.SetPaused, "Stop starting tasks of a queue, or start them again"),
    Row("POST", f"{QUEUE}/repair", wire.Repair, "Repair a queue, for a second; repeat it while the outcome is more"),
    Row("GET", f"{QUEUE}/limits", wire.Limits, "Read the limits for all tenants, and the queue's opening hours"),
    Row("PATCH", f"{QUEUE}/limits", wire.SetLimits, "Change the limits for all tenants"),
    Row("PUT", f"{QUEUE}/opening-hours", wire.SetOpeningHours, "Set the opening hours of a queue"),
    Row("GET", f"{QUEUE}/history", wire.History, "Read what happened in a queue over time"),
    Row("GET", f"{QUEUE}/attempts", wire.Attempts, "List the attempts that run, and the last that ended"),
    Row("GET", f"{QUEUE}/tenants", wire.Tenants, "List the tenants of a queue"),
    Row("GET", TENANT, wire.Tenants, "Read a tenant: its weight, counts and share", part="tenants"),
    Row("DELETE", TENANT, wire.DropTenant, "Delete a tenant that has nothing"),
    Row("PUT", f"{TENANT}/weight", wire.SetWeight, "Give a tenant a weight"),
    Row("GET", f"{TENANT}/limits", wire.Limits, "Read the limits and opening hours of a tenant"),
    Row("PATCH", f"{TENANT}/limits", wire.SetLimits, "Change the limits of a tenant"),
    Row("PUT", f"{TENANT}/opening-hours", wire.SetOpeningHours, "Set the opening hours of a tenant"),
    Row("PUT", f"{TENANT}/paused", wire.SetPaused, "Stop starting tasks of a tenant, or start them again"),
    Row("POST", f"{TENANT}/cancel-all", wire.CancelAll, "Cancel waiting tasks of a tenant that match"),
    Row("GET", f"{TENANT}/next", wire.Peek, "Show a tenant's next tasks, with their payloads"),
    Row("GET", f"{TENANT}/report", wire.TenantReport, "Tell what a tenant's tasks waited for, and its share",
        part="report"),
    Row("GET", f"{TENANT}/events", wire.Events, "Read a tenant's events"),
    Row("GET", f"{QUEUE}/schedules", wire.Schedules, "List schedules"),
    Row("GET", f"{TENANT}/schedules/{{name}}", wire.Schedules, "Read a schedule, with its task", part="schedules"),
    *_under(TENANT, wire.Schedule, wire.Unschedule, wire.SetSchedulePaused),
    *_under(QUEUE, wire.Tasks, wire.WaitTasks, wire.Cancel, wire.Reschedule, wire.Why),
    *_under(QUEUE, wire.Batches, wire.Batch, wire.CloseBatch, wire.CancelBatch),
    *_under(QUEUE, wire.Dead, wire.DeadLetter, wire.Replay, wire.Purge),
    Row("GET", f"{QUEUE}/webhooks", wire.Webhooks, "List webhooks, without their secrets"),
    Row("POST", f"{QUEUE}/webhooks", wire.AddWebhook, "Register or change a webhook"),
    Row("DELETE", f"{QUEUE}/webhooks", wire.RemoveWebhook, "Forget a webhook"),
    Row("PUT", f"{QUEUE}/webhooks/paused", wire.SetWebhookPaused, "Post no tasks to a webhook, or post them again"),
    Row("GET", "/api/workers", wire.Workers, "List the workers of all servers"),
    Row("GET", "/api/workers/{worker}", wire.WorkerTasks, "Describe the workers of a name, and their tasks"),
    Row("POST", "/api/workers/{worker}/drain", wire.DrainWorker, "Let the workers of a name finish, and end"),
    Row("GET", "/api/tokens", wire.ListTokens, "List tokens, without their hashes"),
    Row("POST", "/api/tokens", wire.CreateToken, "Register a token that the caller has made, by its hash"),
    Row("DELETE", "/api/tokens/{id}", wire.RevokeToken, "Delete a token, and close its connections"),
    Row("GET", "/api/audit", wire.Audit, "Read what operators have changed"),
)  # fmt: skip
