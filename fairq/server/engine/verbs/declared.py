"""The schedules that apps declare in their code, as their workers say again and again.

The rules are in lua/features/schedules.lua. A worker schedules for the tenants that its token names, in the queues that
it is attached to. What changes is noted in the audit of tenants. Of many workers that declare the same, few are heard:
while a server has just put it, it knows the answer.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import partial
from hashlib import sha256
from typing import NamedTuple

import orjson
import trio
from attrs import asdict

from fairq.errors import BadRequest, Forbidden, NotFound, QuotaExceeded, StoreFull, TooLarge
from fairq.io.scopes import run_all
from fairq.model.checks import MAX_BATCH
from fairq.model.rules import check_fields
from fairq.server.engine.app import App
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.verbs.audit import note
from fairq.server.engine.verbs.request_scope import Body
from fairq.server.engine.verbs.schedules import put, read
from fairq.wire import messages as wire

_KNOWN_S, _MOST_KNOWN = 4.0, 1_000  # how long an answer holds, and of how many declarations one is known
_REFUSED = (QuotaExceeded, StoreFull, TooLarge, NotFound)  # of one schedule: reported as its outcome


class _Key(NamedTuple):
    queue: str
    tenant: str
    name: str


def _key(schedule: wire.DeclaredSchedule) -> _Key:
    return _Key(schedule.queue, schedule.tenant, schedule.name)


def _check(connection: Connection, schedules: list[wire.DeclaredSchedule]) -> None:
    """Refuse what this worker may not declare. Raises: BadRequest, TooLarge, Forbidden."""
    if len(schedules) > MAX_BATCH:
        raise TooLarge(f"an app declares at most {MAX_BATCH} schedules, not {len(schedules)}", field="schedules")
    for each in schedules:
        check_fields(each)
        read(each)
        if each.queue not in connection.queues:
            raise BadRequest(f"the worker is not attached to queue {each.queue!r:.80}", field="queue")
        try:
            connection.identity.check_tenant(each.tenant)
        except Forbidden:
            remedy = "create one for it: fairq tokens create worker --tenant"
            message = f"this worker's token may not schedule for tenant {each.tenant}; {remedy} {each.tenant}"
            raise Forbidden(message, field="tenant") from None
    if len(set(map(_key, schedules))) < len(schedules):
        raise BadRequest("schedules must not repeat a name of a tenant and a queue", field="schedules")


async def declare(app: App, connection: Connection, request: wire.Declare) -> Body:
    """Put the schedules of an app as its code has them; delete those that no worker of it declares any more."""
    _check(connection, request.schedules)
    said = [request.app, connection.identity.tenants, connection.queues, [asdict(each) for each in request.schedules]]
    key, now = sha256(orjson.dumps(said)).digest(), trio.current_time()
    if now - app.declared.get(key, -_KNOWN_S) < _KNOWN_S:
        return {"outcomes": ["same"] * len(request.schedules), "removed": [], "is_over": not request.schedules}
    outcomes, removed, lasts = dict[_Key, str](), list[Body](), list[_Key]()
    await run_all(*(partial(_put, app, connection, request.app, each, outcomes) for each in request.schedules))
    for queue in connection.queues:
        await _remove(app, connection, queue, request, removed, lasts)
    found = [outcomes[_key(each)] for each in request.schedules]
    if not (removed or lasts or any(outcome != "same" for outcome in found)):
        if len(app.declared) >= _MOST_KNOWN:
            app.declared.clear()
        app.declared[key] = now
    return {"outcomes": found, "removed": removed, "is_over": not (request.schedules or lasts)}


async def _put(
    app: App, connection: Connection, name: str, schedule: wire.DeclaredSchedule, outcomes: dict[_Key, str]
) -> None:
    key = _key(schedule)
    try:
        async with app.producers_calls:
            outcome, *_ = await put(app, key.queue, key.tenant, schedule, maker=key.tenant, declared_by=name)
    except _REFUSED as error:
        outcome = error.code
    outcomes[key] = outcome
    if outcome in ("created", "changed"):
        await note(app, connection, "schedule", *key, {"result": {"outcome": outcome, "app": name}})


async def _remove(
    app: App, connection: Connection, queue: str, request: wire.Declare, removed: list[Body], lasts: list[_Key]
) -> None:
    """Delete what the app has declared in a queue and does not declare now, of tenants that its token names."""
    declared = {_key(each) for each in request.schedules}
    for field in await app.store.declared(queue, request.app):
        key = _Key(queue, *field.split("/", 1))
        if key in declared or not fnmatchcase(key.tenant, connection.identity.tenants):
            continue
        outcome = await app.store.unschedule(queue, key.tenant, key.name, request.app)
        if outcome == "kept":
            lasts.append(key)
        elif outcome == "ok":
            removed.append(key._asdict())
            await note(app, connection, "unschedule", *key, {"result": {"app": request.app}})
