"""The verb by which a worker enqueues for the handler of a task that it runs."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from fairq.errors import BadRequest, Forbidden, TooLarge
from fairq.model.checks import MAX_BATCH, check_name, full_id, owner_of
from fairq.model.tasks import NewTask
from fairq.server.app import App
from fairq.server.net.connection import Connection
from fairq.server.verbs.producers import covered
from fairq.server.verbs.request_scope import Body
from fairq.server.verbs.tasks import bare_outcome
from fairq.wire import frames
from fairq.wire import messages as wire

_DIGEST_BYTES = 8


def _digest(queue: str, id: str) -> bytes:
    return sha256(f"{queue}\n{id}".encode()).digest()[:_DIGEST_BYTES]


def _not_held(lease: frames.HeldLease) -> Forbidden:
    return Forbidden(f"this worker does not hold lease {lease.lease} of task {lease.id}", field="lease")


def _may_hold(app: App, connection: Connection, lease: frames.HeldLease) -> bool:
    """Return whether to ask the store about a lease: over HTTP leases are on no account, so its number tells."""
    place = check_name(lease.queue, "lease"), lease.id
    if connection.keeps_leases:
        return connection.account.has(place, lease.lease)
    return lease.queue in connection.queues and not app.is_of_another(connection, place, lease.lease)


def _named(owner: str, task: NewTask) -> NewTask:
    if owner_of(task.id):
        raise Forbidden("a handler enqueues for the tenant of its task only", field="tenant")
    return task._replace(id=full_id(owner, task.id), batch=task.batch and full_id(owner, task.batch))


async def enqueue_from(app: App, connection: Connection, request: wire.EnqueueFrom) -> Body:
    """Store tasks of the tenant of a lease that the worker holds; what the task has enqueued already is a duplicate."""
    lease, queue = request.lease, connection.identity.check_queue(request.queue)
    if not _may_hold(app, connection, lease):
        raise _not_held(lease)
    tasks = [_named(owner_of(lease.id), task) for task in request.tasks]
    if sum(task.places for task in tasks) > MAX_BATCH:
        raise TooLarge(f"too many tasks: a request has {MAX_BATCH} places", field="tasks")
    if len({task.id for task in tasks}) < len(tasks):
        raise BadRequest("tasks must not repeat an id", field="tasks")
    digests = [_digest(queue, task.id) for task in tasks]
    made = await app.store.made_by(lease.queue, lease.id, lease.lease, digests)
    if made is None:
        raise _not_held(lease)
    outcomes = await _enqueue_new(app, lease, queue, tasks, made)
    stored = [digest for digest, outcome in zip(digests, outcomes, strict=True) if outcome != "expired"]
    if fresh := [digest for digest, was_made in zip(digests, made, strict=True) if not was_made and digest in stored]:
        await app.store.note_made(lease.queue, lease.id, lease.lease, fresh)
    return {"outcomes": [bare_outcome(outcome) for outcome in outcomes]}


async def _enqueue_new(
    app: App, lease: frames.HeldLease, queue: str, tasks: Sequence[NewTask], made: Sequence[bool]
) -> list[str]:
    new = [task for task, was_made in zip(tasks, made, strict=True) if not was_made]
    if not new:
        return ["duplicate"] * len(tasks)
    told = iter(await app.store.enqueue(queue, owner_of(lease.id), new, notify=covered(app, queue, new)))
    for task in new:
        if task.delay_ms or task.start_at_ms:
            app.ticker.tick_within(queue, task.delay_ms)
    return ["duplicate" if was_made else next(told) for was_made in made]
