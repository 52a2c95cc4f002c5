"""The verbs that tell why a task waits, what a tenant's tasks waited for, and what happened in a queue."""

from __future__ import annotations

from attrs import asdict, evolve

from fairq.errors import NotFound
from fairq.model.suggestions import nearest
from fairq.model.waiting import explain
from fairq.model.workers import LeaseKey
from fairq.server.engine.app import MAX_SILENT, App
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.stats.history import read_history, recent_share
from fairq.server.engine.verbs.request_scope import Body, full_id_of, own_tenant
from fairq.wire import messages as wire

_ALWAYS = ("starts_at_ms", "causes")  # also where they say nothing
_MAX_SERVED = 10  # queues that are named


async def why(app: App, connection: Connection, request: wire.Why) -> Body:
    """Explain why a task waits, and when it may start."""
    queue, id = request.queue, full_id_of(connection, request.id)
    task = await app.store.why(queue, id)
    if task.state == "unknown":
        raise NotFound(f"unknown task {request.id} in queue {queue}", field="id")
    why = explain(request.id, task, app.queues.count_divided_slots(queue))
    if "no_worker" in why.causes:
        why = evolve(why, served=await _served(app, connection, queue))
    if silent := app.silent_workers().get(queue):
        if why.state == "leased":
            names = await _holders(app, queue, id)
            silent = [each for each in silent if each.worker in names]
        why = evolve(why, silent=silent[:MAX_SILENT])
    found, always = asdict(why), () if task.facts is None else _ALWAYS
    return {name: value for name, value in found.items() if value not in (0, False, []) or name in always}


async def _holders(app: App, queue: str, id: str) -> set[str]:
    """Return the name of the worker that holds a leased task, if it is known."""
    leases = [LeaseKey(queue, id, lease) for _, lease in await app.store.tasks_and_leases(queue, [id])]
    return set((await app.lease_holders.names(leases)).values())


async def _served(app: App, connection: Connection, queue: str) -> list[str]:
    """Name queues that workers take tasks of, the nearest first: no others than the caller may know of."""
    identity = connection.identity
    may_use = (name for name in app.queues.served() if identity.queues is None or name in identity.queues)
    names = sorted(may_use)
    near = nearest(queue, names)
    names = sorted(names, key=lambda name: name != near)[:_MAX_SERVED]
    if not identity.tenant:
        return names
    makers = await app.store.registry.makers(names)
    return [name for name, maker in zip(names, makers, strict=True) if maker in ("", identity.tenant)]


async def tenant_report(app: App, connection: Connection, request: wire.TenantReport) -> Body:
    """Report how long a tenant's tasks waited in the last minutes, for what, and its share; at all servers."""
    queue, tenant = request.queue, own_tenant(connection, request.tenant)
    found = (await app.wait_reports(queue, [tenant]))[tenant]
    share = await recent_share(app.store, queue, tenant)
    return {"report": {**asdict(found), **share._asdict()}}


async def history(app: App, connection: Connection, request: wire.History) -> Body:
    """Return counts, waiting times and shares of a queue and its top tenants, as all servers have added them."""
    return asdict(await read_history(app.store, request.queue, request.period, request.tenants, request.since_ms))
