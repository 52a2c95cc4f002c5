"""The verbs on dead letters."""

from __future__ import annotations

from attrs import NOTHING, asdict, fields

from fairq.errors import NotFound
from fairq.model.checks import bare_id
from fairq.model.dead_letters import DeadFilter, DeadLetter
from fairq.server.engine.app import App
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.verbs.request_scope import Body, full_id_of, full_ids, with_payload
from fairq.store.routes import Away
from fairq.wire import messages as wire

_BRIEF = tuple(field.name for field in fields(DeadLetter) if field.default is NOTHING)


async def dead(app: App, connection: Connection, request: wire.Dead) -> Body:
    """List dead letters; a tenant sees only its own."""
    tenant = connection.identity.tenant or request.tenant
    ages = (request.older_than_ms, request.younger_than_ms)
    which = DeadFilter(tenant, request.reason, request.error, *ages)
    which.check()
    cursor, away = request.cursor or "", Away()
    page = await app.store.dead(request.queue, which, cursor, request.count, brief=request.brief, away=away)
    rows = [_letter(connection, letter, brief=request.brief) for letter in page.letters]
    return {"dead": rows, "cursor": page.cursor or None, "left": page.left, "away": app.store.away_rows(away)}


def _letter(connection: Connection, letter: DeadLetter, *, brief: bool = False) -> Body:
    row = asdict(letter)
    if connection.identity.tenant:
        row["id"], row["traceback"] = bare_id(letter.id), ""  # which shows the workers' code
    return {name: row[name] for name in _BRIEF} if brief else with_payload(row)


async def dead_letter(app: App, connection: Connection, request: wire.DeadLetter) -> Body:
    """Read one dead letter."""
    queue, id = request.queue, full_id_of(connection, request.id)
    found = await app.store.dead_letter(queue, id)
    if found is None:
        raise NotFound(f"there is no dead letter {request.id} in queue {queue}", field="id")
    return {"dead_letter": _letter(connection, found)}


async def replay(app: App, connection: Connection, request: wire.Replay) -> Body:
    """Give dead letters a fresh set of attempts."""
    outcomes = await app.store.replay(request.queue, full_ids(connection, request.ids))
    return {"outcomes": outcomes}


async def purge(app: App, connection: Connection, request: wire.Purge) -> Body:
    """Delete dead letters."""
    return {"outcomes": await app.store.purge(request.queue, full_ids(connection, request.ids))}
