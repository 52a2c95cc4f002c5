"""The verb that tells what happened in a queue over a period."""

from __future__ import annotations

from attrs import asdict

from fairq.model.checks import MAX_TIME_MS, check_int
from fairq.model.history import check_period, check_tenants
from fairq.server.app import App
from fairq.server.net.connection import Connection
from fairq.server.stats.history import read_history
from fairq.server.verbs.request_scope import Body
from fairq.wire import messages as wire


async def history(app: App, connection: Connection, request: wire.History) -> Body:
    """Return counts, waiting times and shares of a queue and its top tenants, as all servers have added them."""
    queue, period = connection.identity.check_queue(request.queue), check_period(request.period)
    tenants = None if request.tenants is None else check_tenants(request.tenants)
    since_ms = check_int(request.since_ms, "since_ms", 0, MAX_TIME_MS)
    return asdict(await read_history(app.store, queue, period, tenants, since_ms))
