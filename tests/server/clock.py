"""A store's clock that stands until a test moves it, for servers that run inside the test."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fairq.server.run import Served
from fairq.store import keys
from fairq.store.connection import Connection
from tests import stores

_NOW = 4  # the place of the time in the words of a call: FCALL, function, 1, prefix, time, random_values, ...


class StoreClock:
    """The time of one queue. Only a store that was prepared for it (`govern`) takes it; see lua/base/prelude.lua.

    `ahead_ms`: by how much it is ahead of the servers' clocks.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, queue: str = "q") -> None:
        self.now_ms = int(time.time() * 1000)
        self.ahead_ms = 0
        self._queue, self._prefix = queue, keys.queue_prefix(queue)
        call = Connection.call

        async def call_at(connection: Connection, *words: Any, **hold: Any) -> Any:
            if words[0] in ("FCALL", "FCALL_RO") and words[3] == self._prefix:
                words = (*words[:_NOW], self.now_ms, *words[_NOW + 1 :])
            return await call(connection, *words, **hold)

        monkeypatch.setattr(Connection, "call", call_at)
        monkeypatch.setattr("fairq.store.queue_calls.wall_ms", lambda: self.now_ms - self.ahead_ms)

    def govern(self, url: str) -> None:
        """Have a store take the time of this queue from its callers."""
        client = stores.connect(url)
        client.set(f"{self._prefix}:test", 1)
        client.close()

    def move(self, now_ms: float, *servers: Served) -> None:
        """Set the time, and have servers look at once for what is due now."""
        self.now_ms = int(now_ms)
        for served in servers:
            served.app.ticker.tick_within(self._queue, 0)
