"""The verbs on schedules."""

from __future__ import annotations

import orjson
import trio
from attrs import asdict, evolve

from fairq.errors import FairqError, NotFound, TooLarge
from fairq.model.cron import check_timing, next_fire, next_fires
from fairq.model.schedules import MAX_SCHEDULES, Timing
from fairq.model.tasks import SCHEDULED, NewTask
from fairq.server.engine.app import App
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.verbs.request_scope import Body, own_tenant
from fairq.store.registry import PRODUCER
from fairq.store.routes import Away
from fairq.store.store import Schedule
from fairq.wire import messages as wire
from fairq.wire.terms import Role

_SHOWN = 3  # next fires that `schedule` returns


def _target(
    connection: Connection, request: wire.Schedule | wire.Unschedule | wire.SetSchedulePaused
) -> tuple[str, str, str]:
    return request.queue, own_tenant(connection, request.tenant), request.name


def read(terms: wire.ScheduleTerms) -> tuple[Timing, NewTask]:
    """Return when a schedule fires, and its task, to which its fires give ids. Raises: BadRequest."""
    options = {name: getattr(terms, name) for name in SCHEDULED}
    task = NewTask(terms.name, orjson.dumps(terms.payload), name=terms.task_name or terms.name, **options)
    task.check()
    return check_timing(terms.cron, terms.zone, terms.every_ms), task


async def put(
    app: App, queue: str, tenant: str, terms: wire.ScheduleTerms, *, maker: str, declared_by: str = ""
) -> tuple[str, Timing, int]:
    """Create or change a schedule, for the app that declares it if there is one; returns the outcome, when it fires."""
    name, (timing, task) = terms.name, read(terms)
    now_ms, _ = await app.store.schedules(queue, tenant, name)
    next_at = await trio.to_thread.run_sync(next_fire, timing, now_ms, now_ms, limiter=app.searches)
    try:
        outcome, next_at = await app.store.schedule(
            queue, tenant, name, timing, next_at, terms.misfire, task, maker=maker, app=declared_by
        )
    except TooLarge as error:
        raise TooLarge(f"a tenant has at most {MAX_SCHEDULES} schedules in a queue", field=error.field) from None
    app.ticker.tick_within(queue, max(0, next_at - now_ms))
    return outcome, timing, next_at


async def schedule(app: App, connection: Connection, request: wire.Schedule) -> Body:
    """Create or change a schedule; returns its next fires."""
    queue, tenant, _ = _target(connection, request)
    maker = PRODUCER if connection.identity.role is Role.PRODUCER else connection.identity.tenant
    outcome, timing, next_at = await put(app, queue, tenant, request, maker=maker)
    return {"outcome": outcome, "fires_at_ms": [next_at, *next_fires(timing, next_at, next_at, _SHOWN - 1)]}


async def unschedule(app: App, connection: Connection, request: wire.Unschedule) -> Body:
    """Delete a schedule."""
    queue, tenant, name = _target(connection, request)
    return {"previous": await app.store.unschedule(queue, tenant, name) == "ok"}


async def set_paused(app: App, connection: Connection, request: wire.SetSchedulePaused) -> Body:
    """Stop a schedule from firing, or let it fire again, at its next time from now."""
    queue, tenant, name = _target(connection, request)
    while True:
        now_ms, found = await app.store.schedules(queue, tenant, name)
        if not found:
            raise _none(queue, tenant, name)
        state = found[0].state
        if state.is_paused == request.paused:
            return {"previous": request.paused}
        next_at = None if request.paused else next_fire(state.timing, now_ms, state.next_at_ms)
        if await app.store.pause_schedule(queue, found[0], next_at):
            if next_at is not None:
                app.ticker.tick_within(queue, next_at - now_ms)
            return {"previous": not request.paused}


def _none(queue: str, tenant: str, name: str) -> FairqError:
    return NotFound(f"tenant {tenant} has no schedule {name} in queue {queue}", field="name")


async def schedules(app: App, connection: Connection, request: wire.Schedules) -> Body:
    """List schedules, the next to fire first; a named one comes with its task."""
    queue, role = request.queue, connection.identity.role
    if role in (Role.OPERATOR, Role.VIEWER) and request.tenant is None and request.name is None:
        away = Away()
        _, found = await app.store.schedules(queue, offset=request.offset, count=request.count, away=away)
        return {"schedules": [_row(one) for one in found], "away": app.store.away_rows(away)}
    tenant = own_tenant(connection, request.tenant)
    if request.name is not None:
        _, found = await app.store.schedules(queue, tenant, request.name)
        if not found:
            raise _none(queue, tenant, request.name)
        return {"schedules": [_row(found[0])]}
    _, found = await app.store.schedules(queue, tenant)
    found.sort(key=lambda one: (one.state.is_paused, one.state.next_at_ms, one.state.name))
    return {"schedules": [_row(one) for one in found[request.offset : request.offset + request.count]]}


def _row(schedule: Schedule) -> Body:
    state = evolve(schedule.state, next_at_ms=0) if schedule.state.is_paused else schedule.state
    return asdict(state, filter=lambda field, value: value != field.default)
