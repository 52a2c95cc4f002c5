"""When tokens were last used: written once a minute for all of them, never with a request."""

from __future__ import annotations

import time
from collections.abc import Collection

import trio
from attrs import define, field

from fairq.errors import FairqError
from fairq.server.engine.net.connection import Connection
from fairq.store.store import Store

WRITE_S = 60.0


@define(eq=False)
class TokenUses:
    """The tokens used at this server since they were last written; at most as many as there are."""

    store: Store
    connections: Collection[Connection]
    _used: dict[str, int] = field(factory=dict, init=False)  # id -> when, ms

    def note(self, id: str) -> None:
        """Record that a token is used now, by a new client."""
        self._used[id] = round(time.time() * 1000)

    async def write(self) -> None:
        """Write the noted uses, and those of connections that have sent anything since the last time."""
        for connection in self.connections:
            is_used = connection.session.last_received_at >= trio.current_time() - WRITE_S
            if connection.identity.token_id and is_used:
                self.note(connection.identity.token_id)
        used, self._used = self._used, {}
        try:
            await self.store.tokens.write_uses(used)
        except FairqError:  # the next time is soon enough
            self._used = used | self._used

    async def run(self) -> None:
        """Write every WRITE_S, until cancelled."""
        while True:
            await trio.sleep(WRITE_S)
            await self.write()
