"""Tenants by a part of their name, also in a queue with 100,000 of them, and while many pages and streams ask.

A search in the store looks at all names, some thousand a step (fairq/store/overview.py); one is under way at a time. In
a queue where that takes more than one step, the names are then kept here and looked through here: for MAX_AGE_S, and
read anew meanwhile, while somebody searches: after RESTS times as long as reading them took, and half of MAX_AGE_S at
most. So searching takes a small part of the store's time, whatever asks, unless reading takes seconds. Names of
MAX_QUEUES queues are kept, of each MAX_BYTES at most; where they are longer, all searches go to the store.
"""

from __future__ import annotations

from contextlib import suppress

import trio
from attrs import define, field, frozen

from fairq.errors import FairqError
from fairq.store.overview import STEP, all_names, count_tenants, find_tenants
from fairq.store.store import Store

MAX_QUEUES, MAX_BYTES = 4, 1 << 24
RESTS, MAX_AGE_S = 50, 30.0


@frozen
class _Names:
    """The names of a queue's tenants, a line each; None: they are too long."""

    lines: bytes | None
    read_at: float
    anew_at: float


@define(eq=False)
class Finder:
    """The searches of one server."""

    store: Store
    nursery: trio.Nursery
    _kept: dict[str, _Names] = field(factory=dict, init=False)
    _is_reading: bool = field(default=False, init=False)
    _turn: trio.Lock = field(factory=trio.Lock, init=False)

    async def find(self, queue: str, text: str, count: int) -> tuple[list[str], bool]:
        """Return up to `count` tenants with a text in their name, sorted, and whether that is all of them."""
        if await count_tenants(self.store, queue) <= STEP:
            return await find_tenants(self.store, queue, text, count)
        now, names = trio.current_time(), self._kept.get(queue)
        if not self._is_reading and (names is None or names.anew_at < now):
            self._is_reading = True
            self.nursery.start_soon(self._read, queue)
        if names is None or names.lines is None or names.read_at + MAX_AGE_S < now:
            async with self._turn:
                return await find_tenants(self.store, queue, text, count)
        return look_through(names.lines, text, count)

    async def _read(self, queue: str) -> None:
        """Read the names of a queue."""
        try:
            began = trio.current_time()
            with suppress(FairqError):  # the page's own requests tell that the store does not answer
                lines = await all_names(self.store, queue, MAX_BYTES)
                ended = trio.current_time()
                self._kept.pop(queue, None)
                if len(self._kept) >= MAX_QUEUES:
                    del self._kept[next(iter(self._kept))]
                self._kept[queue] = _Names(lines, began, ended + min(MAX_AGE_S / 2, RESTS * (ended - began)))
        finally:
            self._is_reading = False


def look_through(lines: bytes, text: str, count: int) -> tuple[list[str], bool]:
    """Return up to `count` of the lines with a text in them, sorted, and whether that is all of them."""
    part, found, at = text.encode(errors="replace"), set[str](), 0
    if b"\n" in part:
        return [], True
    while len(found) <= count and (at := lines.find(part, at)) >= 0:
        end = lines.index(b"\n", at)
        found.add(lines[lines.rfind(b"\n", 0, at) + 1 : end].decode())
        at = end + 1
    return sorted(found)[:count], len(found) <= count
