"""The System page: this server, its store, and the tokens that open it."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from typing import Any

from fairq.errors import StoreRefused
from fairq.model.audit import Change
from fairq.model.operator_views import TokenRow
from fairq.server.web.dashboard.view import Context, View, rows_of
from fairq.store.migrations import data_state
from fairq.store.node import read_info
from fairq.wire import messages as wire

_INFO = ("server", "memory", "persistence", "clients", "stats")


async def _info(view: View) -> dict[str, Any]:
    """Return what the store says of itself; of a cluster, its first node. `ahead_ms`: of this server's clock."""
    node = view.app.store.connection.nodes()[0]
    fsync = b""
    with suppress(StoreRefused):  # a managed store hides its settings
        (_, fsync) = await node.call("CONFIG", "GET", "appendfsync")
    began = time.time()
    seconds, micros = await node.call("TIME")
    middle = (began + time.time()) / 2
    ahead_ms = (int(seconds) + int(micros) / 1e6 - middle) * 1_000
    found: dict[str, Any] = {"appendfsync": fsync.decode(), "ahead_ms": ahead_ms}
    for section in _INFO:
        found |= read_info(await node.call("INFO", section))
    return found | {"data": await data_state(view.app.store.connection.call)}


async def system(view: View) -> Context:
    """The state of this server and its store."""
    app = view.app
    found = await view.site.health.look()
    info = await _info(view) if not found.troubles else {}
    roles = Counter(each.identity.role.value for each in app.connections)
    servers = Counter(each["server"] for each in (await view.ask(wire.Workers(0)))["workers"])
    nodes = app.store.connection.nodes()
    return {
        "found": found, "info": info, "roles": dict(roles), "servers": servers, "lag_s": app.ticker.lag_s,
        "nodes": len(nodes), "node": nodes[0].address.place,
    }  # fmt: skip


async def tokens(view: View) -> Context:
    """All tokens."""
    return {"rows": rows_of(TokenRow, (await view.ask(wire.ListTokens(0)))["tokens"])}


async def audit(view: View) -> Context:
    """The changes by operators, the newest first; or those by tenants and producers."""
    asked = {name: view.query.get(name) or None for name in ("token", "verb", "queue", "tenant", "cursor")}
    by_tenants = view.query.get("by") == "tenants"
    page = await view.ask(wire.Audit(0, **asked, by_tenants=by_tenants))  # type: ignore[arg-type]  # texts, all of them
    begun, changes = (rows_of(Change, page[name]) for name in ("begun", "changes"))
    return {"changes": [*begun, *changes], "cursor": page["cursor"], "asked": asked, "by_tenants": by_tenants}
