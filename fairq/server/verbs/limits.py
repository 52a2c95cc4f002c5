"""The verbs on limits and windows: what bounds a tenant besides its share, and when it is open."""

from __future__ import annotations

from attrs import asdict

from fairq.limits import Window, check_limits
from fairq.server.app import App
from fairq.server.net.connection import Connection
from fairq.server.verbs.request_scope import Body, mine_or_named, tenant_or_all
from fairq.windows import check_windows, turn
from fairq.wire import messages as wire


async def set_limits(app: App, connection: Connection, request: wire.SetLimits) -> Body:
    """Limit a tenant, or all that have no such limit of their own."""
    queue, tenant = connection.identity.check_queue(request.queue), tenant_or_all(request.tenant)
    before = await app.store.set_limits(queue, tenant, check_limits(request.limits, tenant))
    app.ticker.tick_within(queue, 0)  # a higher rate lets tenants in that are parked
    app.hint(queue)
    return {"before": asdict(before)}


async def limits(app: App, connection: Connection, request: wire.Limits) -> Body:
    """Read what is set for a tenant, what holds for it, and when it is open."""
    queue = connection.identity.check_queue(request.queue)
    tenant = tenant_or_all(mine_or_named(connection, request.tenant))
    own, for_all = await app.store.limits(queue, tenant), await app.store.limits(queue, "")
    holds = {name: value for name, value in asdict(own).items() if value is not None}
    now_ms, windows = await app.store.windows(queue, list(dict.fromkeys(("", tenant))))
    return {
        "limits": asdict(own),
        "holds": {**asdict(for_all), **holds},
        "windows": [_row(window) for window in windows],
        "now_ms": now_ms,
    }


def _row(window: Window) -> Body:
    row = asdict(window)
    return {"of": "tenant" if row.pop("tenant") else "queue", **{k: v for k, v in row.items() if k != "head"}}


async def set_windows(app: App, connection: Connection, request: wire.SetWindows) -> Body:
    """Say when a tenant, or the whole queue, is open."""
    queue, tenant = connection.identity.check_queue(request.queue), tenant_or_all(request.tenant)
    window = Window(tenant, check_windows(request.windows) if request.windows else "", True, 0)
    now_ms, _ = await app.store.windows(queue, [tenant])
    if window.text:
        window.is_open, window.changes_at_ms = turn(window.text, now_ms)
    before = await app.store.set_windows(queue, window)
    if window.text:
        app.ticker.tick_within(queue, window.changes_at_ms - now_ms)
    app.hint(queue)
    return {"before": before, "windows": window.text, "is_open": window.is_open, "changes_at_ms": window.changes_at_ms}
