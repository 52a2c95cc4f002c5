"""Tenants by a part of their name, also in a queue with 100,000 of them, and while many pages and streams ask.

A search in the store looks at all names, some thousand a step (fairq/store/overview.py). One is under way at a time,
and after it the store rests RESTS times as long as it took: so searching takes a small part of the store's time.
"""

from __future__ import annotations

import trio
from attrs import define, field

from fairq.store.overview import find_tenants
from fairq.store.store import Store

RESTS = 4


@define(eq=False)
class Finder:
    """The searches of one server."""

    store: Store
    _turn: trio.Lock = field(factory=trio.Lock, init=False)
    _rests_until: float = field(default=float("-inf"), init=False)

    async def find(self, queue: str, text: str, count: int) -> tuple[list[str], bool]:
        """Return up to `count` tenants with a text in their name, sorted, and whether that is all of them."""
        async with self._turn:
            await trio.sleep_until(self._rests_until)
            began = trio.current_time()
            try:
                return await find_tenants(self.store, queue, text, count)
            finally:
                now = trio.current_time()
                self._rests_until = now + RESTS * (now - began)
