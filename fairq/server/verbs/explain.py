"""The verbs that tell why a task waits, and what a tenant's tasks waited for."""

from __future__ import annotations

import trio
from attrs import asdict

from fairq.errors import NotFound
from fairq.model.waiting import Report, explain
from fairq.server.app import App
from fairq.server.net.connection import Connection
from fairq.server.stats.wait_times import percentile, summarize
from fairq.server.verbs.request_scope import Body, full_id_of, own_tenant
from fairq.wire import messages as wire


async def why(app: App, connection: Connection, request: wire.Why) -> Body:
    """Tell why a task waits, and when it may start."""
    queue, id = connection.identity.check_queue(request.queue), full_id_of(connection, request.id)
    task = await app.store.why(queue, id)
    if task.state == "unknown":
        raise NotFound(f"unknown task {request.id} in queue {queue}", field="id")
    found = asdict(explain(request.id, task, app.count_places(queue)))
    if task.facts is None:
        return {name: found[name] for name in ("id", "state", "now_ms")}
    return {name: value for name, value in found.items() if value not in (0, False) or name == "starts_at_ms"}


async def tenant_report(app: App, connection: Connection, request: wire.TenantReport) -> Body:
    """Report how long a tenant's tasks waited in the last minutes, for what, and its share."""
    queue, tenant = connection.identity.check_queue(request.queue), own_tenant(connection, request.tenant)
    dispatcher = app.dispatchers.get(queue)
    wait_times = dispatcher.wait_times.parts(tenant, dispatcher.store_now_ms) if dispatcher else []
    whole = [sum(parts.values()) for parts in wait_times]
    found = Report(tenant, len(wait_times), percentile(whole, 50), percentile(whole, 99), summarize(wait_times))
    return {"report": {**asdict(found), **await _share(app, queue, tenant)}}


async def _share(app: App, queue: str, tenant: str) -> Body:
    """Return what a tenant was given and entitled to since a sample; empty without a sample."""
    previous = app.shares.previous(queue, tenant)
    if previous is None:
        return {}
    rows = await app.store.tenants(queue, [tenant])
    if not rows:  # it was deleted since
        return {}
    now = rows[0]
    delivered, entitled = now.delivered - previous.delivered, now.entitled - previous.entitled
    over_ms = round((trio.current_time() - previous.at) * 1000)
    if entitled < 0:  # its account was reset since the sample
        return {}
    return {"delivered": delivered, "entitled": entitled, "share_over_ms": over_ms}
