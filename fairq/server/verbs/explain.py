"""The verbs that tell why a task waits, what a tenant's tasks waited for, and what happened in a queue."""

from __future__ import annotations

from attrs import asdict

from fairq.errors import NotFound
from fairq.model.waiting import Report, explain
from fairq.server.app import App
from fairq.server.net.connection import Connection
from fairq.server.stats.history import read_history, recent_share
from fairq.server.stats.wait_times import percentile, summarize
from fairq.server.verbs.request_scope import Body, full_id_of, own_tenant
from fairq.wire import messages as wire


async def why(app: App, connection: Connection, request: wire.Why) -> Body:
    """Explain why a task waits, and when it may start."""
    queue, id = request.queue, full_id_of(connection, request.id)
    task = await app.store.why(queue, id)
    if task.state == "unknown":
        raise NotFound(f"unknown task {request.id} in queue {queue}", field="id")
    found = asdict(explain(request.id, task, app.queues.count_divided_slots(queue)))
    if task.facts is None:
        return {name: found[name] for name in ("id", "state", "now_ms")}
    return {name: value for name, value in found.items() if value not in (0, False) or name == "starts_at_ms"}


async def tenant_report(app: App, connection: Connection, request: wire.TenantReport) -> Body:
    """Report how long a tenant's tasks waited in the last minutes, for what, and its share; at all servers."""
    queue, tenant = request.queue, own_tenant(connection, request.tenant)
    wait_times, unanswered = await app.waits(queue, tenant)
    whole = [sum(parts.values()) for parts in wait_times]
    found = Report(tenant, len(wait_times), percentile(whole, 50), percentile(whole, 99), summarize(wait_times))
    share = await recent_share(app.store, queue, tenant)
    return {"report": {**asdict(found), **share._asdict(), "unanswered": unanswered}}


async def history(app: App, connection: Connection, request: wire.History) -> Body:
    """Return counts, waiting times and shares of a queue and its top tenants, as all servers have added them."""
    return asdict(await read_history(app.store, request.queue, request.period, request.tenants, request.since_ms))
