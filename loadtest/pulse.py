"""The pulse of a server: a small request again and again, to find the longest time in which it answered nobody."""

from __future__ import annotations

from contextlib import suppress

import trio
from attrs import define, field

import fairq
from fairq.errors import Forbidden

PERIOD_S = 0.02
PATIENCE_S = 600.0


@define(eq=False)
class Pulse:
    """Asks for what a tenant may not have: the server refuses that at once, without its store."""

    client: fairq.Client  # of a tenant, with a connection of its own
    longest_s: float = field(default=0.0, init=False)  # from one answer to the next

    async def run(self) -> None:
        """Ask every PERIOD_S, one request at a time, until cancelled."""
        answered_at = trio.current_time()
        try:
            while True:
                asked_at = trio.current_time()
                with suppress(Forbidden):
                    await self.client.request("queues", timeout=PATIENCE_S)
                self._note(answered_at)
                answered_at = trio.current_time()
                await trio.sleep_until(asked_at + PERIOD_S)
        finally:
            self._note(answered_at)

    def _note(self, answered_at: float) -> None:
        self.longest_s = max(self.longest_s, trio.current_time() - answered_at)
