"""One change of what all places of a queue have alike at a time.

Else those of two operators may reach the places in different orders, and these differ from then on. A change holds a
key at the first place, which decides. If its server dies, or a place does not answer, the next change waits until the
key is gone by itself. A full store has no room for it: there changes take no turns.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio

from fairq.errors import FairqError, StoreFull
from fairq.store import keys

HELD_MS = 2_000
_AGAIN_S = 0.02

Call = Callable[..., Awaitable[Any]]  # a command of the store


@asynccontextmanager
async def change_in_turn(call: Call, first: str) -> AsyncIterator[None]:
    """Wait until no other change of the queue with this first place is under way."""
    key, holder = keys.changing_key(first), secrets.token_hex(8)
    with suppress(StoreFull):
        while not await call("SET", key, holder, "NX", "PX", HELD_MS):  # noqa: ASYNC110 - another server
            await trio.sleep(random.uniform(0.2, 1.0) * _AGAIN_S)
    try:
        yield
    finally:
        with trio.move_on_after(1.0, shield=True), suppress(FairqError):
            if await call("GET", key) == holder.encode():  # else this took too long, and others have their turn
                await call("UNLINK", key)
