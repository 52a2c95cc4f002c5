"""Tenants by a part of their name: one search at a time, and what it found is kept a while.

A search looks at all names of a queue, in the store (fairq/store/overview.py). The answer is kept for RESTS times
as long as that took, at most MAX_S: so however many pages and streams ask for the same text, the store searches for it
a small part of the time, and in a queue with few tenants nothing told is old.
"""

from __future__ import annotations

from collections import OrderedDict

import trio
from attrs import define, field

from fairq.store.overview import find_tenants
from fairq.store.store import Store

MAX_KEPT, RESTS, MAX_S = 64, 50, 5.0
_Key = tuple[str, str, int]
_Found = tuple[list[str], bool]


@define(eq=False)
class Finder:
    """The searches of one server."""

    store: Store
    _turn: trio.Lock = field(factory=trio.Lock, init=False)
    _kept: OrderedDict[_Key, tuple[float, _Found]] = field(factory=OrderedDict, init=False)

    async def find(self, queue: str, text: str, count: int) -> _Found:
        """Return up to `count` tenants with a text in their name, sorted, and whether that is all of them."""
        key = queue, text, count
        if (found := self._known(key)) is None:
            async with self._turn:
                found = self._known(key) or await self._search(key)
        return found

    def _known(self, key: _Key) -> _Found | None:
        until, found = self._kept.get(key, (float("-inf"), None))
        return found if until > trio.current_time() else None

    async def _search(self, key: _Key) -> _Found:
        began = trio.current_time()
        found = await find_tenants(self.store, *key)
        ended = trio.current_time()
        self._kept[key] = ended + min(MAX_S, RESTS * (ended - began)), found
        self._kept.move_to_end(key)
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return found
