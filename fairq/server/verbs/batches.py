"""The verbs on batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import orjson
from attrs import asdict

from fairq.errors import BadRequest, NotFound, TooLarge
from fairq.model.batches import MAX_CALLBACK_BYTES, MAX_RUNNING, STAGES, BatchPage, BatchState
from fairq.model.checks import (
    MAX_BATCH,
    bare_id,
    check_batch_id,
    check_full_id,
    check_int,
    check_tenant,
    full_id,
    owner_of,
)
from fairq.server.app import App
from fairq.server.net.connection import Connection
from fairq.server.verbs.request_scope import Body, check_cursor, check_once, mine_or_named, reachable, wait_for
from fairq.store import keys
from fairq.wire import messages as wire
from fairq.wire import terms


def _own_batch(connection: Connection, id: str, field: str = "id") -> str:
    if mine := connection.identity.tenant:
        return full_id(mine, check_batch_id(id, field))
    return reachable(connection, check_full_id(id, field), field)


@contextmanager
def _named(id: str) -> Iterator[None]:
    """Raise NotFound with the batch's id as the request names it."""
    try:
        yield
    except NotFound:
        raise NotFound(f"there is no batch {id}", field="id") from None


async def open_batch(app: App, connection: Connection, request: wire.OpenBatch) -> Body:
    """Open a batch."""
    queue, id = connection.identity.check_queue(request.queue), _own_batch(connection, request.id)
    check_batch_id(bare_id(id))
    check_int(request.max_running, "max_running", 0, MAX_RUNNING)
    callbacks = []
    for name in ("on_complete", "on_success", "on_death"):
        payload = getattr(request, name)
        callbacks.append(b"" if payload is None else orjson.dumps(payload))
        if len(callbacks[-1]) > MAX_CALLBACK_BYTES:
            raise TooLarge(f"{name} has {len(callbacks[-1])} bytes; the limit is {MAX_CALLBACK_BYTES}", field=name)
    is_new = await app.store.open_batch(
        queue, owner_of(id), id, request.max_running, callbacks, events=request.events, maker=connection.identity.tenant
    )
    return {"outcome": "ok" if is_new else "duplicate"}


async def close_batch(app: App, connection: Connection, request: wire.CloseBatch) -> Body:
    """Add no more tasks to a batch."""
    queue, id = connection.identity.check_queue(request.queue), _own_batch(connection, request.id)
    with _named(request.id):
        previous = await app.store.close_batch(queue, id)
    app.queues.notify(queue)
    return {"previous": previous}


async def cancel_batch(app: App, connection: Connection, request: wire.CancelBatch) -> Body:
    """Close a batch and cancel its tasks."""
    queue, id = connection.identity.check_queue(request.queue), _own_batch(connection, request.id)
    with _named(request.id):
        previous = await app.store.cancel_batch(queue, id)
    app.ticker.tick_within(queue, 0)
    return {"previous": previous}


async def batch(app: App, connection: Connection, request: wire.Batch) -> Body:
    """Return a batch's state, now or when it is complete."""
    queue, id = connection.identity.check_queue(request.queue), _own_batch(connection, request.id)

    async def read() -> BatchState:
        (state,) = await app.store.batches(queue, [id])
        if state is None:
            raise NotFound(f"there is no batch {request.id}", field="id")
        return state

    def is_complete(state: BatchState) -> bool:
        return state.state == "complete"

    state = await wait_for(app, connection, queue, [keys.BATCH + id], request.timeout_ms, read, is_complete)
    return {"batch": {**asdict(state), "id": request.id}}


async def batches(app: App, connection: Connection, request: wire.Batches) -> Body:
    """Return the states of the named batches, or a page of all."""
    queue = connection.identity.check_queue(request.queue)
    page_of = _check_page(connection, request)
    if request.ids is None:
        if connection.identity.role is terms.Role.PRODUCER:
            raise BadRequest("ids are required: producers may not list batches", field="ids")
        page = await app.store.list_batches(queue, *page_of)
    else:
        ids = [_own_batch(connection, id, "ids") for id in request.ids]
        states = await app.store.batches(queue, check_once(ids))
        page = BatchPage([state for state in states if state], "")
    is_bare = bool(connection.identity.tenant)
    rows = [{**asdict(state), "id": bare_id(state.id) if is_bare else state.id} for state in page.batches]
    return {"batches": rows, "cursor": page.cursor or None}


def _check_page(connection: Connection, request: wire.Batches) -> tuple[str | None, str | None, str, int]:
    """Return the tenant, state, cursor and count of a listing, all of them checked."""
    tenant = mine_or_named(connection, request.tenant)
    if tenant is not None:
        check_tenant(tenant)
    if request.state not in (None, *STAGES):
        raise BadRequest(f"state must be one of {', '.join(STAGES)}, not {request.state!r:.80}", field="state")
    cursor = check_cursor(request.cursor, "page")
    return tenant, request.state, cursor, check_int(request.count, "count", 1, MAX_BATCH)
