"""The System page: this server, its store, and the tokens that open it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fairq.server.dashboard.view import Context, View
from fairq.wire import messages as wire

_INFO = ("server", "memory", "persistence", "clients", "stats")


async def _info(view: View) -> dict[str, Any]:
    """Return what the store says of itself; of a cluster, its first node."""
    node = view.app.store.connection.nodes()[0]
    found: dict[str, Any] = {}
    for section in _INFO:
        for line in (await node.call("INFO", section)).decode().splitlines():
            name, colon, value = line.partition(":")
            if colon:
                found[name] = value
    return found


async def system(view: View) -> Context:
    """How this server and its store are."""
    app = view.app
    found = await view.site.health.look()
    info = await _info(view) if not found.troubles else {}
    roles = Counter(each.identity.role.value for each in app.connections)
    servers = Counter(each["server"] for each in (await view.ask(wire.Workers(0)))["workers"])
    return {"found": found, "info": info, "roles": dict(roles), "servers": servers, "lag_s": app.ticker.lag_s}


async def tokens(view: View) -> Context:
    """The tokens that there are."""
    return {"rows": (await view.ask(wire.ListTokens(0)))["tokens"]}
