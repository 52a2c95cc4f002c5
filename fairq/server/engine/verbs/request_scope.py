"""Helpers of the verbs: the tenant that a request means, its ids, and waiting."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import trio

from fairq.errors import BadRequest, Draining, Forbidden
from fairq.model.checks import full_id, owner_of
from fairq.model.refusals import missing_tenant, needless_tenant, other_tenant
from fairq.model.rules import check_fields
from fairq.server.engine.app import App
from fairq.server.engine.net.connection import Connection
from fairq.wire import messages as wire
from fairq.wire.raw_payloads import payload_field

Body = dict[str, Any]
T = TypeVar("T")
_OF_ATTACHED = (wire.Settle, wire.Progress)  # the worker must be attached to their queue


def full_id_of(connection: Connection, id: str, field: str = "id") -> str:
    """Return the full id of an id in a request: tenants send bare ids, the others full ones.

    Raises: BadRequest; Forbidden if a producer may not act for its tenant.
    """
    mine, owner = connection.identity.tenant, owner_of(id)
    if bool(mine) == bool(owner):
        raise BadRequest(f"{field} must be {'without its tenant' if mine else 'a full id, <tenant>/<id>'}", field=field)
    if mine:
        return full_id(mine, id)
    connection.identity.check_tenant(owner, field)
    return id


def full_ids(connection: Connection, ids: Sequence[str]) -> list[str]:
    """Return the full ids of ids in a request."""
    return [full_id_of(connection, id, "ids") for id in ids]


def check_request(connection: Connection, request: Any) -> None:
    """Check what a request names and holds. Raises: Forbidden, BadRequest, TooLarge."""
    mine = connection.identity.tenant
    if mine and getattr(request, "tenant", None) not in (None, mine):
        raise other_tenant()
    check_fields(request)
    if connection.identity.queues is None or isinstance(request, _OF_ATTACHED):
        return
    if (queue := getattr(request, "queue", None)) is not None:
        connection.identity.check_queue(queue)


def tenant_of(connection: Connection, tenant: str | None) -> str:
    """Return the tenant that a producer names for new tasks. Raises: Forbidden, BadRequest."""
    if connection.identity.tenant:
        raise needless_tenant()
    if tenant is None:
        raise missing_tenant()
    return connection.identity.check_tenant(tenant)


def own_tenant(connection: Connection, tenant: str | None) -> str:
    """Return the token's tenant, or else the one that an operator or a producer must name.

    Raises: BadRequest; Forbidden if a producer may not act for it.
    """
    if connection.identity.tenant:
        return connection.identity.tenant
    if tenant:
        return connection.identity.check_tenant(tenant)
    raise BadRequest("tenant is missing: operators and producers name it", field="tenant")


def check_all_queues(connection: Connection) -> None:
    """Check that an operator's token is for all queues. Raises: Forbidden."""
    if connection.identity.queues is not None:
        raise Forbidden("operator tokens limited to some queues may not manage tokens or drain workers", field="type")


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
    deadline = trio.current_time() + timeout_ms / 1000

    async def read_in_turn() -> T:
        async with connection.long_answer():  # one message wakes many requests, and each answer may be long
            return await read()

    if not timeout_ms:
        return await read_in_turn()
    long_polls = await app.queues.long_polls_of(queue, connection.identity.account)
    with connection.waiting([message.partition(" ")[2] for message in messages]):
        found = await long_polls.wait(messages, read_in_turn, lambda it: is_enough(it) or app.is_draining, deadline)
    if app.is_draining and not is_enough(found):
        raise stopping()
    return found


def stopping() -> Draining:
    """Make the refusal of a request that waits while the server stops."""
    return Draining("the server is stopping; connect again")


def with_payload(row: Body) -> Body:
    """Put a row's payload, which is JSON text or lost (None), into the reply or after it."""
    name, payload = payload_field(row.pop("payload") or b"")
    return {**row, name: payload}
