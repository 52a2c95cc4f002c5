"""The verb that cancels all waiting tasks of a tenant, or those that match: at a pace that others do not feel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from fairq.model.cancelling import WaitingFilter
from fairq.server.engine.app import App
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.verbs.request_scope import Body, own_tenant
from fairq.wire import messages as wire

_WORK_S = 1.0  # how long one request works
_RESTS = 3.0  # after a call of the store, times as long as that took: it has a quarter of the store's time
_LEAST_S = 0.002  # that it rests
_AT_ONCE = 16  # tasks that a call cancels: others wait behind it


async def cancel_all(app: App, connection: Connection, request: wire.CancelAll) -> Body:
    """Cancel waiting tasks of a tenant that match, for about _WORK_S; a cursor says where the next request goes on."""
    queue, tenant = request.queue, own_tenant(connection, request.tenant)
    which = WaitingFilter(request.older_than_ms, request.error)
    cursor = request.cursor or ""
    locks = _locks_of(app, connection.identity.tenant)
    deadline = trio.current_time() + _WORK_S
    found = cancelled = looked = waiting = 0
    while True:
        async with _slice(*locks):
            page = await app.store.waiting_tasks(queue, tenant, which, cursor)
        found, looked, cursor = found + len(page.ids), looked + page.looked, page.cursor
        done = 0 if request.dry_run else await _cancel(app, locks, queue, page.ids)
        cancelled, waiting = cancelled + done, page.waiting - done
        if not cursor or trio.current_time() >= deadline or app.is_draining:
            break
    return {"cursor": cursor or None, "found": found, "cancelled": cancelled, "looked": looked, "waiting": waiting}


async def _cancel(app: App, locks: Sequence[trio.Lock], queue: str, ids: Sequence[str]) -> int:
    """Cancel tasks slice by slice; returns how many of them waited."""
    cancelled = 0
    for start in range(0, len(ids), _AT_ONCE):
        async with _slice(*locks):
            cancelled += await app.store.cancel_waiting(queue, ids[start : start + _AT_ONCE])
    return cancelled


def _locks_of(app: App, tenant: str | None) -> tuple[trio.Lock, trio.Lock]:
    """Return the locks to take: the tenant's own, then the common one."""
    own = app.own_cancels.setdefault(tenant or "", trio.Lock())
    return own, app.tenants_cancel if tenant else app.operators_cancel


@asynccontextmanager
async def _slice(own: trio.Lock, common: trio.Lock) -> AsyncIterator[None]:
    """Take the locks, make a call of the store, and rest before the next request gets them."""
    async with own, common:
        began = trio.current_time()
        yield
        await trio.sleep(max(_LEAST_S, _RESTS * (trio.current_time() - began)))
