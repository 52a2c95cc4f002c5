"""The verbs of operators: queues, tenants, workers and tokens."""

from __future__ import annotations

import structlog
from attrs import asdict, evolve

from fairq.errors import NotFound
from fairq.model.attempts import AttemptFilter
from fairq.model.places import queue_of
from fairq.model.queues import QueueState, kept_slots, unread_state
from fairq.model.tasks import TaskState, leased_at_ms
from fairq.model.tenants import TenantPage
from fairq.model.versions import settings_version
from fairq.model.workers import HeldTask, LeaseKey
from fairq.server.engine.app import MAX_SILENT, App
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.net.server_slots import Offer
from fairq.server.engine.net.worker_registry import HeldAt
from fairq.server.engine.verbs.request_scope import Body, check_all_queues
from fairq.store.routes import NO_ANSWER, Away
from fairq.tokens import TokenRecord
from fairq.wire import messages as wire

log = structlog.get_logger("fairq.server")

_DELETE_S = 2.0  # how long one request deletes
_REPAIR_S = 1.0  # how long one request repairs


async def queues(app: App, connection: Connection, request: wire.Queues) -> Body:
    """List all queues, or one, also those with workers that never had a task, and those that cannot be read now.

    While a primary is away, a queue has the counts of the places that answer. Raises: Unavailable, OutcomeUnknown if
    none of the one that is named does.
    """
    rows, states, away = [], dict[str, QueueState | None](), Away()
    made = await app.store.registry.read_or_last()
    offers, silent = app.queues.offers(), app.silent_workers()
    named = offers.keys() | made.keys()
    if request.queue is not None:
        named &= {request.queue}
    for queue in sorted(named):
        if connection.identity.queues is not None and queue not in connection.identity.queues:
            continue
        offer = offers.get(queue, Offer())
        having = {queue, *offer.shared_by}  # the slots
        for each in having - states.keys():
            states[each] = await _state_of(app, each, away)
        known = states[queue]
        if known is None and request.queue is not None:
            raise next(error for place, error in away.items() if queue_of(place) == queue)
        state = evolve(known or unread_state(queue), **(made[queue]._asdict() if queue in made else {}))
        slots, leased = app.queues.count_slots(queue), sum(of.leased for name in having if (of := states[name]))
        kept, idle = kept_slots(slots, state.settings.reserve), slots - leased
        counts: Body = {"version": settings_version(state.settings) if known else "", "is_unavailable": known is None}
        counts |= {"slots": slots, "kept": kept, "idle": max(0, idle)}
        counts |= {"workers": offer.workers, "shared": offer.shared, "shared_by": len(offer.shared_by)}
        counts["silent"] = [asdict(each) for each in silent.get(queue, ())][:MAX_SILENT]
        counts["away"] = app.store.away_rows(place for place in away if queue_of(place) == queue)
        if request.queue is not None:
            counts["places"] = [asdict(each) for each in await app.partitions(queue)]
        rows.append({**asdict(state), **counts})
    waiting = [row["queue"] for row in rows if row["ready"] or row["pending"] or row["delayed"]]
    takers = {queue: "some" for queue in waiting if app.queues.is_taken_here(queue)}
    takers |= await app.takers([queue for queue in waiting if queue not in takers])
    return {"queues": [{**row, "takers": takers.get(row["queue"], "")} for row in rows]}


async def _state_of(app: App, queue: str, away: Away) -> QueueState | None:
    """Read the state of a queue; None if none of its places answers. `away` gets those that do not."""
    try:
        return await app.store.queue(queue, away=away)
    except NO_ANSWER as error:
        away.update(dict.fromkeys(app.store.registry.places_known(queue), error))
        return None


async def configure(app: App, connection: Connection, request: wire.Configure) -> Body:
    """Change settings of a queue."""
    queue = request.queue
    previous = await app.store.configure(queue, request.settings, request.if_version or "")
    app.ticker.tick_within(queue, 0)  # a tick applies a changed reserve to all tenants
    return {"previous": {name: getattr(previous, name) for name in request.settings}}


async def delete_queue(app: App, connection: Connection, request: wire.DeleteQueue) -> Body:
    """Delete a queue, for at most _DELETE_S; the outcome `more` means that the request must be repeated."""
    queue = request.queue
    deletion = await app.store.registry.delete(queue, purge=request.purge, seconds=_DELETE_S)
    if deletion.outcome == "ok":
        log.info("queue deleted", queue=queue, **deletion.contents)
    return {"outcome": deletion.outcome, "contents": deletion.contents}


async def tenants(app: App, connection: Connection, request: wire.Tenants) -> Body:
    """List a queue's tenants, a page of them, or one of them, if there is one of that name."""
    queue, away = await _known_queue(app, request.queue), Away()
    if request.tenant is None:
        page = await app.store.list_tenants(queue, request.cursor or "", request.count, away=away)
    else:
        page = TenantPage(await app.store.tenants(queue, [request.tenant]), "")
    rows = [asdict(row, recurse=False) for row in page.tenants]
    return {"tenants": rows, "cursor": page.cursor or None, "away": app.store.away_rows(away)}


async def drop_tenant(app: App, connection: Connection, request: wire.DropTenant) -> Body:
    """Delete a tenant that has nothing."""
    is_dropped = await app.store.drop_tenant(request.queue, request.tenant)
    if is_dropped:
        log.info("tenant deleted", queue=request.queue, tenant=request.tenant)
    return {"outcome": "ok" if is_dropped else "gone"}


async def _known_queue(app: App, queue: str) -> str:
    if queue not in await app.store.queues(or_last=True):
        raise NotFound(f"there is no queue {queue}", field="queue")
    return queue


async def set_weight(app: App, connection: Connection, request: wire.SetWeight) -> Body:
    """Give a tenant a weight."""
    version = request.if_version or ""
    return {"previous": await app.store.set_weight(request.queue, request.tenant, request.weight, version)}


async def workers(app: App, connection: Connection, request: wire.Workers) -> Body:
    """List the workers of all servers, if all their queues are the token's."""
    found, unread = await app.worker_registry.all_workers()
    mine = connection.identity.queues
    rows = [asdict(row) for row in found if mine is None or mine.issuperset(row.queues)]
    return {"workers": rows, "unanswered": sorted(unread)}


async def worker_tasks(app: App, connection: Connection, request: wire.WorkerTasks) -> Body:
    """Describe the workers of a name, at all servers, and the tasks that they have held longest."""
    found = await app.worker_registry.named(request.worker, request.count, connection.identity.queues)
    if not found.workers:
        raise NotFound(f"no worker {request.worker} is attached", field="worker")
    return {
        "workers": [asdict(worker) for worker in found.workers],
        "tasks": [asdict(task) for task in await _held_tasks(app, found.leases)],
        "unanswered": sorted(found.unanswered),
    }


async def _held_tasks(app: App, held: list[HeldAt]) -> list[HeldTask]:
    """Describe the tasks of leases, in order, without those that have ended meanwhile."""
    states: dict[LeaseKey, TaskState] = {}
    for queue in {each.lease.queue for each in held}:
        ids = list(dict.fromkeys(each.lease.id for each in held if each.lease.queue == queue))
        for state, number in await app.store.tasks_and_leases(queue, ids):
            if state.state == "leased":
                states[LeaseKey(queue, state.id, number)] = state
    tasks = []
    for lease, server, attached_at_ms in held:
        if known := states.get(lease):
            leased_at = leased_at_ms(lease.lease)
            tasks.append(
                HeldTask(lease.id, lease.queue, known.tenant, known.attempt, leased_at, server, attached_at_ms)
            )
    return tasks


async def attempts(app: App, connection: Connection, request: wire.Attempts) -> Body:
    """List a queue's attempts that run, at all servers, and the last that ended."""
    which = AttemptFilter(request.state, request.tenant, request.name, request.error)
    async with app.reports:
        return asdict(await app.attempts.find(request.queue, which, request.count))


async def drain_worker(app: App, connection: Connection, request: wire.DrainWorker) -> Body:
    """Drain the workers of a name, at all servers."""
    check_all_queues(connection)
    return {"workers": await app.worker_registry.drain(request.worker)}


async def set_paused(app: App, connection: Connection, request: wire.SetPaused) -> Body:
    """Stop starting tasks of a tenant, or of the whole queue; or start them again."""
    return {"previous": await app.store.set_paused(request.queue, request.tenant or "", request.paused)}


async def repair(app: App, connection: Connection, request: wire.Repair) -> Body:
    """Repair a queue, for about _REPAIR_S."""
    queue, away = await _known_queue(app, request.queue), Away()
    step = await app.store.repair(queue, request.number, seconds=_REPAIR_S, away=away)
    return asdict(step) | {"away": app.store.away_rows(away)}


async def create_token(app: App, connection: Connection, request: wire.CreateToken) -> Body:
    """Register a token."""
    check_all_queues(connection)
    named = (request.id, request.role, request.hash, request.tenant, request.queues)
    await app.auth.create(TokenRecord(*named, label=request.label), request.expires_in_ms)
    return {}


async def list_tokens(app: App, connection: Connection, request: wire.ListTokens) -> Body:
    """List tokens, without their hashes."""
    check_all_queues(connection)
    return {"tokens": [asdict(token) for token in await app.auth.tokens()]}


async def revoke_token(app: App, connection: Connection, request: wire.RevokeToken) -> Body:
    """Delete a token and close the connections that use it."""
    check_all_queues(connection)
    if not await app.auth.revoke(request.id):
        raise NotFound(f"there is no token {request.id!r:.80}", field="id")
    return {}
