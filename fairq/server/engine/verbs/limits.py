"""The verbs on limits and opening hours."""

from __future__ import annotations

from attrs import asdict

from fairq.model.limits import OpeningHours
from fairq.model.opening_hours import check_opening_hours, next_change
from fairq.model.refusals import guaranteed_to_all
from fairq.model.versions import hours_version, limits_version
from fairq.server.engine.app import App
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.verbs.request_scope import Body
from fairq.wire import messages as wire


async def set_limits(app: App, connection: Connection, request: wire.SetLimits) -> Body:
    """Set limits of a tenant, or the defaults for all tenants."""
    queue, tenant = request.queue, request.tenant or ""
    if "guaranteed" in request.limits and not tenant:
        raise guaranteed_to_all()
    previous = await app.store.set_limits(queue, tenant, request.limits, if_version=request.if_version or "")
    app.ticker.tick_within(queue, 0)  # a higher rate admits parked tenants
    return {"previous": asdict(previous)}


async def limits(app: App, connection: Connection, request: wire.Limits) -> Body:
    """Return a tenant's own limits, the limits in force where it is, and its opening hours."""
    tenant = connection.identity.tenant or request.tenant or ""
    queue = await app.store.place_of(request.queue, tenant) if tenant else request.queue
    own, for_all = await app.store.limits(queue, tenant), await app.store.limits(queue, "")
    holds = {name: value for name, value in asdict(own).items() if value is not None}
    now_ms, hours = await app.store.opening_hours(queue, list(dict.fromkeys(("", tenant))))
    return {
        "limits": asdict(own),
        "holds": {**asdict(for_all), **holds},
        "opening_hours": [_row(hours) for hours in hours],
        "now_ms": now_ms,
        "version": limits_version(own),
        "hours_version": hours_version(next((each.text for each in hours if each.tenant == tenant), "")),
    }


def _row(hours: OpeningHours) -> Body:
    row = asdict(hours)
    return {"of": "tenant" if row.pop("tenant") else "queue", **{k: v for k, v in row.items() if k != "revision"}}


async def set_opening_hours(app: App, connection: Connection, request: wire.SetOpeningHours) -> Body:
    """Set the opening hours of a tenant, or of the whole queue."""
    queue, tenant = request.queue, request.tenant or ""
    hours = OpeningHours(tenant, check_opening_hours(request.opening_hours) if request.opening_hours else "", True, 0)
    now_ms, _ = await app.store.opening_hours(queue, [tenant])
    if hours.text:
        hours.is_open, hours.changes_at_ms = next_change(hours.text, now_ms)
    previous = await app.store.set_opening_hours(queue, hours, if_version=request.if_version or "")
    if hours.text:
        app.ticker.tick_within(queue, hours.changes_at_ms - now_ms)
    return {
        "previous": previous,
        "opening_hours": hours.text,
        "is_open": hours.is_open,
        "changes_at_ms": hours.changes_at_ms,
    }
