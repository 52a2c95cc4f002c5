"""What each request does: checks that need more than the frame, then one call of the store.

No rule of the queue lives here (they are in lua/), only who may do it and how it is said.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson
from attrs import asdict

from fairq.errors import BadRequest, Draining, FairqError, Forbidden, NotFound
from fairq.model import (
    MAX_ATTEMPT,
    WORKER_PATTERN,
    NewTask,
    Settlement,
    check_full_id,
    check_int,
    check_name,
    check_settings,
    check_task_id,
    check_weight,
    full_id,
)
from fairq.server.app import App
from fairq.server.peer import Peer
from fairq.server.schedules import pause_schedule, resume_schedule, schedule, schedules, unschedule
from fairq.tokens import TokenRecord
from fairq.wire import messages as wire
from fairq.wire.messages import MAX_CREDIT, MAX_QUEUES, State

Body = dict[str, Any]


async def enqueue(app: App, peer: Peer, request: wire.Enqueue) -> Body:
    """Store tasks of the token's tenant."""
    queue = peer.identity.check_queue(request.queue)
    tenant = peer.identity.tenant
    tasks = [NewTask(full_id(tenant, task.id), *task[1:]) for task in request.tasks]
    app.hint(queue)  # now: a claim that leaves right behind the tasks shares their turn of the store, and its fsync
    outcomes = await app.store.enqueue(queue, tenant, tasks)
    for task in request.tasks:
        if task.delay_ms or task.start_at_ms:
            app.ticker.expect(queue, task.delay_ms)
    return {"outcomes": outcomes}


async def tasks(app: App, peer: Peer, request: wire.Tasks) -> Body:
    """Tell what is known of tasks; a tenant hears only of its own."""
    queue = peer.identity.check_queue(request.queue)
    mine = peer.identity.tenant
    if mine:
        ids = [full_id(mine, check_task_id(id, "ids")) for id in request.ids]
    else:
        ids = [check_full_id(id, "ids") for id in request.ids]
    states = await app.store.tasks(queue, ids)
    rows = [{name: value for name, value in asdict(state).items() if value not in ("", 0)} for state in states]
    return {"tasks": [{**row, "id": id} for row, id in zip(rows, request.ids, strict=True)]}


async def attach(app: App, peer: Peer, request: wire.Attach) -> Body:
    """Begin to feed a worker, which may bring along leases from an earlier connection."""
    if not WORKER_PATTERN.match(request.worker):
        raise BadRequest("worker must be 1 to 64 of A-Z, a-z, 0-9, '.', '_', '-'", field="worker")
    if not 1 <= len(request.queues) <= MAX_QUEUES:
        raise BadRequest(f"queues must name 1 to {MAX_QUEUES}", field="queues")
    queues = tuple(dict.fromkeys(peer.identity.check_queue(queue) for queue in request.queues))
    check_int(request.credit, "credit", 0, MAX_CREDIT)
    if any(lease.queue not in queues for lease in request.leases):
        raise BadRequest("leases must be of the queues attached to", field="leases")
    outcomes, brought = ["gone"] * len(request.leases), {}
    for queue in queues:
        at = [i for i, lease in enumerate(request.leases) if lease.queue == queue]
        held = [Settlement("extend", request.leases[i].id, request.leases[i].attempt) for i in at]
        if held:
            for i, outcome in zip(at, await app.store.settle(queue, held), strict=True):
                outcomes[i] = outcome
                if outcome == "ok":
                    brought[queue, request.leases[i].id] = request.leases[i].attempt
    if peer.session.state is State.DRAINING:
        raise Draining("the server is stopping; connect again")
    if peer.session.state is not State.OPEN:
        raise BadRequest("the connection is attached already", field="type")
    app.move_leases(brought, peer)
    peer.name, peer.queues = request.worker, queues
    peer.session.state, peer.session.credit = State.ATTACHED, request.credit
    app.attach(peer)
    return {"leases": outcomes}


async def credit(app: App, peer: Peer, request: wire.Credit) -> Body:
    """Change how many tasks the worker may hold."""
    peer.session.credit = check_int(request.credit, "credit", 0, MAX_CREDIT)
    app.credit_changed(peer)
    return {}


async def _settle(app: App, peer: Peer, queue: str, settlements: Sequence[Settlement]) -> Body:
    if queue not in peer.queues:
        raise BadRequest(f"the worker is not attached to queue {queue!r:.80}", field="queue")
    # What ends is off the worker's account at once, so that the claim it makes room for shares the store's next turn.
    ended = {(queue, s.id): s.attempt for s in settlements if s.action != "extend"}
    ended = {token: attempt for token, attempt in ended.items() if peer.session.held.get(token) == attempt}
    for token in ended:
        del peer.session.held[token]
    if ended:
        app.credit_changed(peer)
    try:
        outcomes = await app.store.settle(queue, settlements)
    except FairqError:
        peer.session.held.update(ended)
        raise
    for settlement, outcome in zip(settlements, outcomes, strict=True):
        if settlement.action == "nack":
            app.ticker.expect(queue, settlement.delay_ms or 0)
        elif settlement.action == "extend" and outcome != "ok":
            app.drop_lease(peer, (queue, settlement.id), settlement.attempt)
    return {"outcomes": outcomes}


async def settle(app: App, peer: Peer, request: wire.Settle) -> Body:
    """End leases."""
    return await _settle(app, peer, request.queue, request.settlements)


async def extend(app: App, peer: Peer, request: wire.Extend) -> Body:
    """Renew leases."""
    tokens = [
        Settlement("extend", check_full_id(lease.id, "leases"), check_int(lease.attempt, "leases", 1, MAX_ATTEMPT))
        for lease in request.leases
    ]
    if not tokens:
        raise BadRequest("leases must hold at least 1", field="leases")
    return await _settle(app, peer, request.queue, tokens)


async def queues(app: App, peer: Peer, request: wire.Queues) -> Body:
    """List all queues, also those that have workers here and had no task yet."""
    rows = []
    served = {queue for queue, dispatcher in app.dispatchers.items() if dispatcher.workers}
    for queue in sorted(served.union(await app.store.queues())):
        if peer.identity.queues is not None and queue not in peer.identity.queues:
            continue
        rows.append({**asdict(await app.store.queue(queue)), "workers": app.count_workers(queue)})
    return {"queues": rows}


async def configure(app: App, peer: Peer, request: wire.Configure) -> Body:
    """Change settings of a queue."""
    changes = check_settings(request.settings)
    await app.store.configure(peer.identity.check_queue(request.queue), changes)
    return {}


async def tenants(app: App, peer: Peer, request: wire.Tenants) -> Body:
    """List a queue's tenants."""
    rows = await app.store.tenants(await _known_queue(app, peer, request.queue))
    return {"tenants": [asdict(row) for row in rows]}


async def _known_queue(app: App, peer: Peer, name: str) -> str:
    queue = peer.identity.check_queue(name)
    if queue not in await app.store.queues():
        raise NotFound(f"there is no queue {queue}", field="queue")
    return queue


async def set_weight(app: App, peer: Peer, request: wire.SetWeight) -> Body:
    """Give a tenant a weight."""
    queue, tenant = peer.identity.check_queue(request.queue), check_name(request.tenant, "tenant")
    before = await app.store.set_weight(queue, tenant, check_weight(request.weight))
    return {"before": before}


async def pause(app: App, peer: Peer, request: wire.Pause) -> Body:
    """Hold back a tenant, or the whole queue."""
    queue, tenant = _target(peer, request)
    return {"before": await app.store.pause(queue, tenant)}


async def resume(app: App, peer: Peer, request: wire.Resume) -> Body:
    """Undo `pause`."""
    queue, tenant = _target(peer, request)
    before = await app.store.resume(queue, tenant)
    app.hint(queue)
    return {"before": before}


def _target(peer: Peer, request: wire.Pause | wire.Resume) -> tuple[str, str]:
    queue = peer.identity.check_queue(request.queue)
    return queue, "" if request.tenant is None else check_name(request.tenant, "tenant")


async def dead(app: App, peer: Peer, request: wire.Dead) -> Body:
    """List dead letters; fewer than asked for when their payloads are long."""
    check_int(request.offset, "offset", 0, 1 << 50)
    check_int(request.count, "count", 1, 500)
    rows: list[Body] = []
    room = wire.MAX_MESSAGE_BYTES
    for letter in await app.store.dead(peer.identity.check_queue(request.queue), request.offset, request.count):
        room -= len(orjson.dumps(letter.payload))
        if rows and room < 0:
            break
        rows.append(asdict(letter))
    return {"dead": rows}


async def replay(app: App, peer: Peer, request: wire.Replay) -> Body:
    """Give dead letters a fresh set of attempts."""
    queue = peer.identity.check_queue(request.queue)
    outcomes = await app.store.replay(queue, [check_full_id(id, "ids") for id in request.ids])
    app.hint(queue)
    return {"outcomes": outcomes}


async def purge(app: App, peer: Peer, request: wire.Purge) -> Body:
    """Delete dead letters."""
    queue = peer.identity.check_queue(request.queue)
    return {"outcomes": await app.store.purge(queue, [check_full_id(id, "ids") for id in request.ids])}


def _check_unlimited(peer: Peer) -> None:
    if peer.identity.queues is not None:
        raise Forbidden("an operator of some queues has no say over tokens", field="type")


async def create_token(app: App, peer: Peer, request: wire.CreateToken) -> Body:
    """Register a token."""
    _check_unlimited(peer)
    await app.auth.create(TokenRecord(request.id, request.role, request.hash, request.tenant, request.queues))
    return {}


async def list_tokens(app: App, peer: Peer, request: wire.ListTokens) -> Body:
    """List tokens, without their hashes."""
    _check_unlimited(peer)
    return {"tokens": [{k: v for k, v in asdict(t).items() if k != "hash"} for t in await app.auth.tokens()]}


async def revoke_token(app: App, peer: Peer, request: wire.RevokeToken) -> Body:
    """Delete a token and close the connections that use it."""
    _check_unlimited(peer)
    if not await app.auth.revoke(request.id):
        raise NotFound(f"there is no token {request.id!r:.80}", field="id")
    return {}


VERBS: dict[type[Any], Callable[..., Awaitable[Body]]] = {
    wire.Enqueue: enqueue,
    wire.Tasks: tasks,
    wire.Attach: attach,
    wire.Credit: credit,
    wire.Settle: settle,
    wire.Extend: extend,
    wire.Queues: queues,
    wire.Configure: configure,
    wire.Tenants: tenants,
    wire.SetWeight: set_weight,
    wire.Pause: pause,
    wire.Resume: resume,
    wire.Dead: dead,
    wire.Replay: replay,
    wire.Purge: purge,
    wire.Schedule: schedule,
    wire.Unschedule: unschedule,
    wire.PauseSchedule: pause_schedule,
    wire.ResumeSchedule: resume_schedule,
    wire.Schedules: schedules,
    wire.CreateToken: create_token,
    wire.ListTokens: list_tokens,
    wire.RevokeToken: revoke_token,
}


async def carry_out(app: App, peer: Peer, request: Any) -> Body:
    """Do what a request asks. Raises: FairqError."""
    return await VERBS[type(request)](app, peer, request)
