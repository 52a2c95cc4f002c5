"""The verb by which a worker enqueues for the handlers of tasks that it runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from hashlib import sha256

from attrs import define

from fairq.errors import BadRequest, FairqError, Forbidden, TooLarge
from fairq.model.checks import MAX_BATCH, check_name, full_id, owner_of
from fairq.model.tasks import NewTask
from fairq.server.app import App
from fairq.server.net.connection import Connection
from fairq.server.verbs.producers import store_for_tenants, told
from fairq.server.verbs.request_scope import Body
from fairq.server.verbs.tasks import bare_outcome
from fairq.wire import frames
from fairq.wire import messages as wire
from fairq.wire.calls import REFUSED

_DIGEST_BYTES = 8


def _digest(queue: str, id: str) -> bytes:
    return sha256(f"{queue}\n{id}".encode()).digest()[:_DIGEST_BYTES]


def _not_held(lease: frames.HeldLease) -> Forbidden:
    return Forbidden(f"this worker does not hold lease {lease.lease} of task {lease.id}", field="leases")


def _may_hold(app: App, connection: Connection, lease: frames.HeldLease) -> bool:
    """Return whether to ask the store about a lease: over HTTP leases are on no account, so its number tells."""
    place = check_name(lease.queue, "leases"), lease.id
    if connection.keeps_leases:
        return connection.account.has(place, lease.lease)
    return lease.queue in connection.queues and not app.is_of_another(connection, place, lease.lease)


def _named(lease: frames.HeldLease, task: NewTask) -> NewTask:
    owner = owner_of(lease.id)
    return task._replace(id=full_id(owner, task.id), batch=task.batch and full_id(owner, task.batch))


@define(eq=False)
class _Derived:
    """A task, the lease from which it is enqueued, and what becomes of it."""

    lease: frames.HeldLease
    task: NewTask
    digest: bytes
    outcome: str = ""

    @property
    def owner(self) -> str:
        """The tenant."""
        return owner_of(self.lease.id)


def _derive(queue: str, request: wire.EnqueueFrom) -> list[_Derived]:
    """Read what is to be enqueued from which lease. Raises: BadRequest, Forbidden, TooLarge."""
    if not request.tasks:
        raise BadRequest("tasks must have at least 1 item", field="tasks")
    if any(owner_of(task.id) for task in request.tasks):
        raise Forbidden("a handler enqueues for the tenant of its task only", field="tenant")
    if sum(task.places for task in request.tasks) > MAX_BATCH:
        raise TooLarge(f"too many tasks: a request has {MAX_BATCH} places", field="tasks")
    if len(request.leases) != len(request.tasks):
        raise BadRequest("leases must have one lease for each of tasks", field="leases")
    tasks = [_named(lease, task) for lease, task in zip(request.leases, request.tasks, strict=True)]
    return [_Derived(lease, task, _digest(queue, task.id)) for lease, task in zip(request.leases, tasks, strict=True)]


async def enqueue_from(app: App, connection: Connection, request: wire.EnqueueFrom) -> Body:
    """Store tasks of the tenants of leases that the worker holds; what a task has enqueued already is a duplicate.

    Where one of a tenant's leases is not held, or one of its tasks is refused, all of that tenant's are.
    """
    queue = connection.identity.check_queue(request.queue)
    derived = _derive(queue, request)
    refusals: dict[str, FairqError] = {
        each.owner: _not_held(each.lease) for each in derived if not _may_hold(app, connection, each.lease)
    }
    await _find_made(app, [each for each in derived if each.owner not in refusals], refusals)
    new = [each for each in derived if not each.outcome and each.owner not in refusals]
    if new:
        refusals |= await _store(app, queue, new)
    if refusals and len({each.owner for each in derived}) == 1:
        raise next(iter(refusals.values()))
    outcomes = [REFUSED if each.owner in refusals else each.outcome for each in derived]
    return {"outcomes": outcomes} | told(refusals)


def _by_queue(derived: Sequence[_Derived]) -> Iterable[tuple[str, list[_Derived]]]:
    """Part tasks by the queues of their leases."""
    found = defaultdict[str, list[_Derived]](list)
    for each in derived:
        found[each.lease.queue].append(each)
    return found.items()


async def _find_made(app: App, derived: Sequence[_Derived], refusals: dict[str, FairqError]) -> None:
    """Set the outcome of tasks that were enqueued before; refuse the tenants of leases that are over."""
    for source, some in _by_queue(derived):
        asked = [(each.lease.id, each.lease.lease, each.digest) for each in some]
        for each, was_made in zip(some, await app.store.made_by(source, asked), strict=True):
            if was_made is None:
                refusals[each.owner] = _not_held(each.lease)
            elif was_made:
                each.outcome = "duplicate"


async def _store(app: App, queue: str, new: Sequence[_Derived]) -> dict[str, FairqError]:
    """Store tasks, and have their leases' tasks remember that; returns why some tenants' are refused."""
    outcomes, refusals = await store_for_tenants(app, queue, [each.task for each in new])
    for each, outcome in zip(new, outcomes, strict=True):
        each.outcome = bare_outcome(outcome)
        if each.task.delay_ms or each.task.start_at_ms:
            app.ticker.tick_within(queue, each.task.delay_ms)
    for source, some in _by_queue([each for each in new if each.outcome not in ("expired", REFUSED)]):
        await app.store.note_made(source, [(each.lease.id, each.digest) for each in some])
    return refusals
