"""The verbs on batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import orjson
from attrs import asdict

from fairq.errors import NotFound, TooLarge
from fairq.model.batches import CALLBACKS, MAX_CALLBACK_BYTES, BatchPage, BatchState, check_callback_names
from fairq.model.checks import bare_id, owner_of
from fairq.model.refusals import missing_ids
from fairq.server.engine.app import App
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.verbs.request_scope import Body, full_id_of, full_ids, wait_for
from fairq.store import keys
from fairq.store.registry import PRODUCER
from fairq.store.routes import Away
from fairq.wire import messages as wire
from fairq.wire import terms


@contextmanager
def _named(id: str) -> Iterator[None]:
    """Raise NotFound with the batch's id as the request names it."""
    try:
        yield
    except NotFound:
        raise NotFound(f"there is no batch {id}", field="id") from None


async def open_batch(app: App, connection: Connection, request: wire.OpenBatch) -> Body:
    """Open a batch."""
    queue, id = request.queue, full_id_of(connection, request.id)
    callbacks = []
    names = check_callback_names(asdict(request, recurse=False))
    for name in CALLBACKS:
        payload = getattr(request, name)
        callbacks.append(b"" if payload is None else orjson.dumps(payload))
        if len(callbacks[-1]) > MAX_CALLBACK_BYTES:
            raise TooLarge(f"{name} has {len(callbacks[-1])} bytes; the limit is {MAX_CALLBACK_BYTES}", field=name)
    is_new = await app.store.open_batch(
        queue, owner_of(id), id, request.max_running, callbacks, names, events=request.events,
        maker=connection.identity.tenant or PRODUCER,
    )  # fmt: skip
    return {"outcome": "ok" if is_new else "duplicate"}


async def close_batch(app: App, connection: Connection, request: wire.CloseBatch) -> Body:
    """Add no more tasks to a batch."""
    queue, id = request.queue, full_id_of(connection, request.id)
    with _named(request.id):
        previous = await app.store.close_batch(queue, id)
    return {"previous": previous}


async def cancel_batch(app: App, connection: Connection, request: wire.CancelBatch) -> Body:
    """Close a batch and cancel its tasks."""
    queue, id = request.queue, full_id_of(connection, request.id)
    with _named(request.id):
        previous = await app.store.close_batch(queue, id, cancel=True)
    app.ticker.tick_within(queue, 0)
    return {"previous": previous}


async def batch(app: App, connection: Connection, request: wire.Batch) -> Body:
    """Return a batch's state, now or when it is complete."""
    queue, id = request.queue, full_id_of(connection, request.id)

    async def read() -> BatchState:
        (state,) = await app.store.batches(queue, [id])
        if state is None:
            raise NotFound(f"there is no batch {request.id}", field="id")
        return state

    state = await wait_for(
        app, connection, queue, [keys.BATCH + id], request.timeout_ms, read, lambda state: state.state == "complete"
    )
    first = None if state.state == "complete" else await app.store.first_of_batch(queue, id)
    if first and connection.identity.tenant:
        first = bare_id(first)
    return {"batch": {**asdict(state), "id": request.id}, "waits_for": first}


async def batches(app: App, connection: Connection, request: wire.Batches) -> Body:
    """Return the states of the named batches, or a page of all."""
    away = Away()
    if request.ids is None:
        if connection.identity.role is terms.Role.PRODUCER:
            raise missing_ids()
        tenant, cursor = connection.identity.tenant or request.tenant, request.cursor or ""
        state, count = request.state, request.count
        page = await app.store.list_batches(request.queue, tenant, state, cursor, count, away=away)
    else:
        states = await app.store.batches(request.queue, full_ids(connection, request.ids))
        page = BatchPage([state for state in states if state], "")
    is_bare = bool(connection.identity.tenant)
    rows = [{**asdict(state), "id": bare_id(state.id) if is_bare else state.id} for state in page.batches]
    return {"batches": rows, "cursor": page.cursor or None, "away": app.store.away_rows(away)}
