"""The verb that tells what happened in a queue over a period."""

from __future__ import annotations

from attrs import asdict

from fairq.server.app import App
from fairq.server.net.connection import Connection
from fairq.server.stats.history import read_history
from fairq.server.verbs.request_scope import Body
from fairq.wire import messages as wire


async def history(app: App, connection: Connection, request: wire.History) -> Body:
    """Return counts, waiting times and shares of a queue and its top tenants, as all servers have added them."""
    return asdict(await read_history(app.store, request.queue, request.period, request.tenants, request.since_ms))
