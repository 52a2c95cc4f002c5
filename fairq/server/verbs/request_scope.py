"""Helpers of the verbs: the tenant a request means, its ids, and waiting."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import trio

from fairq.errors import BadRequest, Draining, Forbidden
from fairq.model.checks import (
    MAX_CURSOR_CHARS,
    WORKER_PATTERN,
    check_full_id,
    check_int,
    check_known_id,
    check_tenant,
    full_id,
    owner_of,
)
from fairq.server.app import App
from fairq.server.net.connection import Connection
from fairq.wire import terms
from fairq.wire.beside import payload_field

Body = dict[str, Any]
T = TypeVar("T")


def full_id_of(connection: Connection, id: str, field: str = "id") -> str:
    """Return the full id of an id in a request: tenants send bare ids, the others full ones. Raises: Forbidden."""
    mine = connection.identity.tenant
    return full_id(mine, check_known_id(id, field)) if mine else reachable(connection, check_full_id(id, field), field)


def reachable(connection: Connection, id: str, field: str) -> str:
    """Return a full id if a producer may act for its tenant. Raises: Forbidden."""
    connection.identity.check_tenant(owner_of(id), field)
    return id


def full_ids(connection: Connection, ids: Sequence[str]) -> list[str]:
    """Return the full ids of ids in a request."""
    return [full_id_of(connection, id, "ids") for id in ids]


def check_once(ids: list[str]) -> list[str]:
    """Return the ids if none is repeated. Raises: BadRequest."""
    if len(set(ids)) < len(ids):
        raise BadRequest("ids must not repeat a task", field="ids")
    return ids


def mine_or_named(connection: Connection, tenant: str | None) -> str | None:
    """Return the token's tenant, or else the tenant that the operator names, if any. Raises: Forbidden."""
    mine = connection.identity.tenant
    if mine and tenant not in (None, mine):
        raise Forbidden("tenant tokens may use their own tenant only", field="tenant")
    return mine or tenant


def tenant_of(connection: Connection, tenant: str | None) -> str:
    """Return the tenant that a producer names for new tasks. Raises: Forbidden, BadRequest."""
    if connection.identity.tenant:
        raise Forbidden("only producers name the tenant of a task", field="tenant")
    if tenant is None:
        raise BadRequest("tenant is missing: a producer names it, for all tasks or for each", field="tenant")
    return connection.identity.check_tenant(check_tenant(tenant))


def own_tenant(connection: Connection, tenant: str | None) -> str:
    """Return the token's tenant, or else the tenant that the operator must name. Raises: Forbidden, BadRequest."""
    return check_tenant(mine_or_named(connection, tenant))


def check_cursor(cursor: str | None, of: str) -> str:
    """Return the cursor of the previous page or reply, empty to begin. Raises: BadRequest."""
    if cursor is not None and not 1 <= len(cursor) <= MAX_CURSOR_CHARS:
        raise BadRequest(f"invalid cursor: use the cursor of the previous {of}", field="cursor")
    return cursor or ""


def tenant_or_all(tenant: str | None) -> str:
    """Return the tenant that an operator names, or the empty name for all."""
    return "" if tenant is None else check_tenant(tenant)


def check_worker_name(name: str) -> None:
    """Check the name of a worker. Raises: BadRequest."""
    if not WORKER_PATTERN.match(name):
        raise BadRequest("worker must be 1 to 64 characters of A-Z, a-z, 0-9, '.', '_', '-'", field="worker")


def check_unlimited(connection: Connection) -> None:
    """Check that an operator's token is for all queues. Raises: Forbidden."""
    if connection.identity.queues is not None:
        raise Forbidden("operator tokens limited to some queues may not manage tokens or drain workers", field="type")


def deadline_of(timeout_ms: int) -> float:
    """Return until when a request waits. Raises: BadRequest."""
    return trio.current_time() + check_int(timeout_ms, "timeout_ms", 0, terms.MAX_WAIT_MS) / 1000


async def wait_for(
    app: App,
    connection: Connection,
    queue: str,
    messages: Sequence[str],
    timeout_ms: int,
    read: Callable[[], Awaitable[T]],
    is_enough: Callable[[T], bool],
) -> T:
    """Read until `is_enough`, at most `timeout_ms`; returns the last value. Raises: Draining if the server stops."""
    deadline = deadline_of(timeout_ms)

    async def read_in_turn() -> T:
        async with connection.long_answer():  # one message wakes many requests, and each answer may be long
            return await read()

    if not timeout_ms:
        return await read_in_turn()
    long_polls = await app.queues.watch(queue, connection.identity.account)
    with connection.waiting([message.partition(" ")[2] for message in messages]):
        found = await long_polls.wait(messages, read_in_turn, lambda it: is_enough(it) or app.is_draining, deadline)
    if app.is_draining and not is_enough(found):
        raise Draining("the server is stopping; connect again")
    return found


def with_payload(row: Body) -> Body:
    """Let a row's payload, which is JSON text or lost (None), travel in the reply or beside it."""
    name, payload = payload_field(row.pop("payload") or b"")
    return {**row, name: payload}
