"""The verbs on tasks: enqueue, show, cancel and reschedule them, and follow their events."""

from __future__ import annotations

from attrs import asdict, evolve

from fairq.errors import TooLarge
from fairq.model.checks import MAX_BATCH, bare_id, check_chosen, full_id
from fairq.model.events import EventPage
from fairq.model.tasks import RARE_COUNTS, RARE_OPTIONS, NewTask, two_starts
from fairq.model.workers import LeaseKey
from fairq.server.engine.app import App
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.verbs.producers import (
    outcomes_part,
    promise_claim,
    refusals_part,
    store_for_tenants,
    tick_when_due,
)
from fairq.server.engine.verbs.request_scope import Body, full_ids, own_tenant, tenant_of, wait_for, with_payload
from fairq.store import keys
from fairq.store.registry import PRODUCER
from fairq.wire import messages as wire


async def enqueue(app: App, connection: Connection, request: wire.Enqueue) -> Body:
    """Store tasks of the token's tenant, or from a producer tasks of any number of tenants."""
    queue = request.queue
    default = connection.identity.tenant
    if request.tenant is not None:
        default = tenant_of(connection, request.tenant)
    tasks = [_named(connection, default, task) for task in request.tasks]
    if sum([task.counts for task in tasks]) > MAX_BATCH:
        raise TooLarge(
            f"too many tasks: at most {MAX_BATCH}; a task counts as {RARE_COUNTS} if it has one of "
            + ", ".join(RARE_OPTIONS),
            field="tasks",
        )
    if connection.tenant_load is not None:
        outcomes, refusals = await store_for_tenants(app, queue, tasks, connection.tenant_load.is_busy, maker=PRODUCER)
        body = outcomes_part(outcomes) | refusals_part(refusals)
    else:
        tenant = connection.identity.tenant
        outcomes = await app.store.enqueue(queue, tenant, tasks, notify=promise_claim(app, queue, tenant, tasks))
        body = outcomes_part([bare_outcome(outcome) for outcome in outcomes])
    tick_when_due(app, queue, request.tasks)
    return body


def _named(connection: Connection, default: str, task: NewTask) -> NewTask:
    """Return a task with its full id and its batch's. Raises: BadRequest, Forbidden."""
    named, _, id = task.id.rpartition("/")
    check_chosen(id)
    owner = default if default and not named else tenant_of(connection, named or None)
    id = full_id(owner, id)
    return task._replace(id=id, batch=full_id(owner, task.batch)) if task.batch else NewTask(id, *task[1:])


def bare_outcome(outcome: str) -> str:
    """Return the outcome with the id behind `duplicate` as the tenant's bare id."""
    word, _, first = outcome.partition(" ")
    return f"{word} {bare_id(first)}" if first else word


async def tasks(app: App, connection: Connection, request: wire.Tasks) -> Body:
    """Return the states of tasks; a tenant sees only its own."""
    queue, ids = request.queue, full_ids(connection, request.ids)
    found = await app.store.tasks_and_leases(queue, ids)
    leases = [LeaseKey(queue, state.id, lease) for state, lease in found if state.state == "leased"]
    workers = await app.lease_holders.names(leases)
    states = [
        evolve(state, worker=workers.get(LeaseKey(queue, state.id, lease), "")) if state.state == "leased" else state
        for state, lease in found
    ]
    rows = [{name: value for name, value in asdict(state).items() if value not in ("", 0)} for state in states]
    return {"tasks": [{**row, "id": id} for row, id in zip(rows, request.ids, strict=True)]}


async def cancel(app: App, connection: Connection, request: wire.Cancel) -> Body:
    """Cancel tasks."""
    return {"outcomes": await app.store.cancel(request.queue, full_ids(connection, request.ids))}


async def reschedule(app: App, connection: Connection, request: wire.Reschedule) -> Body:
    """Change when waiting tasks start."""
    queue, ids = request.queue, full_ids(connection, request.ids)
    delay_ms, start_at_ms = request.delay_ms, request.start_at_ms
    if delay_ms and start_at_ms:
        raise two_starts()
    outcomes = await app.store.reschedule(queue, ids, delay_ms=delay_ms, start_at_ms=start_at_ms)
    if "ok" in outcomes:
        app.ticker.tick_within(queue, delay_ms)
    return {"outcomes": outcomes}


async def peek(app: App, connection: Connection, request: wire.Peek) -> Body:
    """Return a tenant's next tasks; fewer than requested if their payloads are long."""
    waiting = await app.store.peek(request.queue, own_tenant(connection, request.tenant), request.count)
    rows = [with_payload(asdict(task)) for task in waiting]
    if connection.identity.tenant:
        for row in rows:
            row["id"] = bare_id(row["id"])
    return {"tasks": rows}


async def events(app: App, connection: Connection, request: wire.Events) -> Body:
    """Return the events of a tenant's feed after an id, now or when there is one."""
    queue, tenant = request.queue, own_tenant(connection, request.tenant)

    async def read() -> EventPage:
        return await app.store.events(queue, tenant, request.after, request.count)

    page = await wait_for(
        app, connection, queue, [keys.EVENT + tenant], request.timeout_ms, read, lambda page: bool(page.events)
    )
    rows = [{name: value for name, value in asdict(event).items() if value not in ("", 0)} for event in page.events]
    if connection.identity.tenant:
        for row in rows:
            row |= {name: bare_id(row[name]) for name in ("task", "batch") if name in row}
    return {"oldest": page.oldest, "newest": page.newest, "events": rows}
