"""Requests of a worker for its handlers: to enqueue follow-up tasks, and to read results of a batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from orjson import Fragment

from fairq.errors import BadRequest, FairqError, Forbidden, Retryable, TooLarge
from fairq.io.scopes import run_all
from fairq.model.checks import MAX_BATCH, bare_id, full_id, owner_of
from fairq.model.options import check_in_time
from fairq.model.places import is_partition
from fairq.model.refusals import not_held
from fairq.model.rules import QUEUE
from fairq.model.tasks import Link, NewTask, Settlement
from fairq.server.engine.app import App
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.verbs.producers import (
    outcomes_part,
    promise_claim,
    refusals_part,
    store_for_tenants,
    tick_when_due,
)
from fairq.server.engine.verbs.request_scope import Body
from fairq.server.engine.verbs.tasks import bare_outcome
from fairq.wire import frames
from fairq.wire import messages as wire
from fairq.wire.calls import REFUSED


def _may_hold(app: App, connection: Connection, lease: frames.HeldLease) -> bool:
    """Return whether to ask the store about a lease: leases over HTTP are on no account."""
    key = QUEUE.check(lease.queue, "leases"), lease.id
    if connection.tracks_leases:
        return connection.account.has(key, lease.lease)
    return lease.queue in connection.queues and not app.leases.is_of_another(connection, key, lease.lease)


def _named(origin: str, task: NewTask) -> NewTask:
    """Return a task with its full id: it is for the tenant of the task from which it comes."""
    owner = owner_of(origin)
    return task._replace(id=full_id(owner, task.id), batch=task.batch and full_id(owner, task.batch))


async def enqueue_from(app: App, connection: Connection, request: wire.EnqueueFrom) -> Body:
    """Store tasks of the tenants of leases that the worker holds.

    Where one of a tenant's leases is not held, or one of its tasks is refused, all of that tenant's are.
    """
    queue, leases = request.queue, request.leases
    _check(request)
    tasks = [_named(lease.id, task) for lease, task in zip(leases, request.tasks, strict=True)]
    refusals = await _refusals(app, connection, leases)
    held = [n for n, lease in enumerate(leases) if owner_of(lease.id) not in refusals]
    outcomes = [REFUSED] * len(tasks)
    if held:
        stored, refused = await store_for_tenants(app, queue, [tasks[n] for n in held])
        refusals |= refused
        for n, outcome in zip(held, stored, strict=True):
            outcomes[n] = bare_outcome(outcome)
            tick_when_due(app, queue, [tasks[n]])
    if len({owner_of(lease.id) for lease in leases}) == 1:
        for error in refusals.values():
            if not isinstance(error, Retryable):  # else the partition is away, and other tenants' frames need not wait
                raise error
    return outcomes_part(outcomes) | refusals_part(refusals)


def _check(request: wire.EnqueueFrom) -> None:
    if any(owner_of(task.id) for task in request.tasks):
        raise Forbidden("a handler enqueues for the tenant of its task only", field="tenant")
    if sum(task.counts for task in request.tasks) > MAX_BATCH:
        raise TooLarge(f"too many tasks: at most {MAX_BATCH}; some options count as more", field="tasks")
    if len(request.leases) != len(request.tasks):
        raise BadRequest("leases must have one lease for each task", field="leases")


async def _refusals(app: App, connection: Connection, leases: Sequence[frames.HeldLease]) -> dict[str, FairqError]:
    """Return why tenants are refused: the worker does not hold a lease, it has ended, or its partition is away."""
    by_place, refusals = defaultdict[str, list[frames.HeldLease]](list), dict[str, FairqError]()
    for lease in leases:
        if _may_hold(app, connection, lease):
            by_place[app.queues.place_of(lease.queue, lease.id)].append(lease)
        else:
            refusals[owner_of(lease.id)] = not_held(lease.id, lease.lease)

    async def look(place: str, some: Sequence[frames.HeldLease]) -> None:
        try:
            are_open = await app.store.are_leased(place, [(lease.id, lease.lease) for lease in some])
        except Retryable as error:
            if not is_partition(place):
                raise
            refusals.update((owner_of(lease.id), error) for lease in some)
            return
        refusals.update(
            (owner_of(lease.id), not_held(lease.id, lease.lease))
            for lease, is_open in zip(some, are_open, strict=True)
            if not is_open
        )

    await run_all(*(partial(look, *each) for each in by_place.items()))
    return refusals


async def batch_results(app: App, connection: Connection, request: wire.BatchResults) -> Body:
    """Read a page of the results of a batch, for the task that calls back for it, under a lease that the worker holds.

    The store looks at that lease in the same step.
    """
    held = frames.HeldLease(request.queue, request.id, request.lease)
    if not _may_hold(app, connection, held):
        raise not_held(held.id, held.lease, "lease")
    results, cursor = await app.store.batch_results(request.queue, request.id, request.lease, request.cursor)
    rows = [{"id": id} | ({"result": Fragment(text)} if text else {}) for id, text in results]
    return {"results": rows, "cursor": cursor}


async def enqueue_links(
    app: App, connection: Connection, queue: str, settlements: Sequence[Settlement]
) -> list[Settlement]:
    """Enqueue what acknowledgements link to in other queues, of leases that are open.

    Returns the settlements with the other links: these are stored with them. Raises: what refuses a link.
    """
    for each in settlements:
        for link in each.links:
            _check_link(connection, queue, each, link)
    named = [each._replace(links=tuple(_link(each, link) for link in each.links)) for each in settlements]
    leaving = [
        each
        for each in named
        if any(link.queue != queue for link in each.links)
        and not app.leases.is_of_another(connection, (queue, each.id), each.lease)  # it is stale
    ]
    jobs = []
    if leaving:
        are_open = await app.store.are_leased(queue, [(each.id, each.lease) for each in leaving])
        for each in (each for each, is_open in zip(leaving, are_open, strict=True) if is_open):
            for target in {link.queue for link in each.links} - {queue}:
                jobs.append(partial(_enqueue, app, target, [link.task for link in each.links if link.queue == target]))
    await run_all(*jobs)
    return [each._replace(links=tuple(link for link in each.links if link.queue == queue)) for each in named]


def _check_link(connection: Connection, queue: str, settlement: Settlement, link: Link) -> None:
    if (link.queue, link.task.id) == (queue, bare_id(settlement.id)):
        raise BadRequest("a link must not have the id of the task that it follows", field="links")
    try:
        connection.identity.check_queue(link.queue, "links")
    except Forbidden as error:  # it is fatal to no worker
        raise BadRequest(error.message, field="links") from None


def _link(settlement: Settlement, link: Link) -> Link:
    return Link(link.queue, _named(settlement.id, link.task))


async def _enqueue(app: App, queue: str, tasks: Sequence[NewTask]) -> None:
    """Store what follows one task in another queue. Raises: also if one would expire before it may start."""
    async with app.producers_calls:
        tenant = owner_of(tasks[0].id)
        outcomes = await app.store.enqueue(queue, tenant, tasks, notify=promise_claim(app, queue, tenant, tasks))
    tick_when_due(app, queue, tasks)
    check_in_time(outcomes)
