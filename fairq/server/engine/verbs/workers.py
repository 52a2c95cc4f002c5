"""The verbs of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter

import trio

from fairq.errors import BadRequest
from fairq.io.scopes import run_all
from fairq.model.checks import check_int
from fairq.model.rules import check_fields
from fairq.model.tasks import Outcome, Settlement
from fairq.server.engine.app import App
from fairq.server.engine.dispatch.worker_account import Ended, TaskKey
from fairq.server.engine.net.connection import NO_CONTEXT, AttachOrder, Connection
from fairq.server.engine.verbs.brought_leases import take_over
from fairq.server.engine.verbs.follow_ups import enqueue_links
from fairq.server.engine.verbs.producers import tick_when_due
from fairq.server.engine.verbs.request_scope import Body
from fairq.wire import messages as wire
from fairq.wire.server_session import why_not
from fairq.wire.terms import State

_ACK = frozenset({"ack"})
_action_of, _links_of = attrgetter("action"), attrgetter("links")


async def attach(app: App, connection: Connection, request: wire.Attach) -> Body:
    """Attach a worker, which may bring leases from an earlier connection."""
    queues = tuple(dict.fromkeys(connection.identity.check_queue(queue, "queues") for queue in request.queues))
    check_int(request.prefetch, "prefetch", 0, request.credit)
    if any(lease.queue not in queues for lease in request.leases):
        raise BadRequest("leases must belong to the attached queues", field="leases")
    outcomes, brought = await take_over(app, request.leases)
    order = AttachOrder()
    if request.started_at_ms:
        token, workers = connection.identity.token_id, app.store.workers
        run = await workers.order_of_run(token, request.worker, request.started_at_ms)
        order = AttachOrder(run, await workers.number_of_attach(token, request.worker))
        named = [(*each.key, each.lease) for each in brought]
        await app.worker_registry.take_name(token, request.worker, order, named)
    if refusal := why_not(request, connection.session.role, connection.session.state):  # it may have changed meanwhile
        raise refusal
    app.leases.move(brought, connection)
    connection.name, connection.queues, connection.attach_order = request.worker, queues, order
    connection.session.state, connection.account.prefetch = State.ATTACHED, request.prefetch
    connection.account.set_credit(request.credit)
    app.attach(connection)
    return {"leases": outcomes}


async def credit(app: App, connection: Connection, request: wire.Credit) -> Body:
    """Change how many tasks the worker may hold."""
    connection.account.set_credit(request.credit)
    app.queues.credit_changed(connection)
    app.worker_registry.credit_changed()
    return {}


def _check_attached(connection: Connection, queue: str) -> None:
    if queue not in connection.queues:
        raise BadRequest(f"the worker is not attached to queue {queue!r:.80}", field="queue")


def _is_its_own(app: App, connection: Connection, queue: str, settlement: Settlement) -> bool:
    """Return whether to pass a settlement to the store: the worker holds this lease, or may have ended it before.

    If the answer to a settlement was lost, it is sent again, here or at another server, on a connection that may not
    hold the lease. Then the store checks the lease's number, unless this server knows that another worker holds it.
    """
    key = (queue, settlement.id)
    if connection.account.has(key, settlement.lease):
        return True
    if settlement.action == "extend" and connection.tracks_leases:
        return False
    return not app.leases.is_of_another(connection, key, settlement.lease)


async def _settle(app: App, connection: Connection, queue: str, settlements: Sequence[Settlement]) -> Body:
    _check_attached(connection, queue)
    # Ended leases leave the account at once, so that the claim they make room for shares the store's next turn.
    ended, asked = connection.account.end(queue, settlements), settlements
    extended: dict[TaskKey, int] = {}
    if len(ended) < len(settlements):
        asked = [s for s in settlements if (queue, s.id) in ended or _is_its_own(app, connection, queue, s)]
        if connection.tracks_leases:
            extended = {(queue, s.id): s.lease for s in asked if s.action == "extend" and (queue, s.id) not in ended}
    more: Body = {"attached_ms": connection.attached_ms(trio.current_time())} if extended else {}
    with connection.account.renewing(extended) if extended else NO_CONTEXT:
        outcomes = await _settle_own(app, connection, queue, asked, ended) if asked else []
    if len(asked) == len(settlements):
        return {"outcomes": outcomes, **more}
    of_own, own = iter(outcomes), set(map(id, asked))
    return {"outcomes": [next(of_own) if id(each) in own else "stale" for each in settlements], **more}


async def _settle_own(
    app: App, connection: Connection, queue: str, settlements: Sequence[Settlement], ended: Mapping[TaskKey, Ended]
) -> list[Outcome]:
    account = connection.account
    if ended:
        app.queues.credit_changed(connection)
    try:
        outcomes = await app.store.settle(queue, settlements)
    except BaseException:  # also if the connection ends meanwhile: then they are given back
        now = trio.current_time()
        for key, (lease, terms) in ended.items():
            if key not in account.held:  # some may have ended, and their tasks come again
                account.add_unsettled(key, lease, terms, now)
        raise
    if ids := [id for (_, id), (_, terms) in ended.items() if terms.has_progress]:
        await app.store.forget_progress(queue, ids)
    if len(ended) == len(settlements) and _ACK.issuperset(map(_action_of, settlements)):
        return outcomes
    now = trio.current_time()
    for settlement, outcome in zip(settlements, outcomes, strict=True):
        key = queue, settlement.id
        if settlement.action == "nack" or settlement.delay_ms is not None:
            app.ticker.tick_within(queue, settlement.delay_ms or 0)
        if settlement.action != "extend":
            if key not in ended:
                app.leases.drop_here(key, settlement.lease)
        elif outcome in ("gone", "stale"):
            app.leases.drop(connection, key, settlement.lease)
        else:
            account.renewed(key, settlement.lease, now)
    return outcomes


async def settle(app: App, connection: Connection, request: wire.Settle) -> Body:
    """End leases. Links to other queues are enqueued before; those to this queue are stored in the same step."""
    queue, settlements = request.queue, request.settlements
    if not any(map(_links_of, settlements)):
        return await _settle(app, connection, queue, settlements)
    _check_attached(connection, queue)
    settlements = await enqueue_links(app, connection, queue, settlements)
    body = await _settle(app, connection, queue, settlements)
    tick_when_due(app, queue, (link.task for each in settlements for link in each.links))
    return body


async def progress(app: App, connection: Connection, request: wire.Progress) -> Body:
    """Record the progress of tasks; leases that the worker does not hold are ignored."""
    _check_attached(connection, request.queue)
    for report in request.reports:
        check_fields(report)
    for report in request.reports:
        key = (request.queue, report.id)
        if connection.account.has(key, report.lease):
            connection.account.report(key)
            await app.store.write_progress(request.queue, report.id, report.lease, report.fraction, report.text)
    return {}


async def idle(app: App, connection: Connection, request: wire.Idle) -> Body:
    """Return whether the worker's queues have no task for it, after one more tick and claim of each."""
    empty: list[bool] = []

    async def look_into(queue: str) -> None:
        for place in await app.store.registry.places(queue):
            async with app.idle_ticks:  # else one worker of 100 queues fills everybody's line to the store
                await app.store.tick(place)
        empty.append(await app.queues.wait_empty(queue))

    await run_all(*(partial(look_into, queue) for queue in connection.queues))
    return {"is_idle": all(empty)}
