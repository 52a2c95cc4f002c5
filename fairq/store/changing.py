"""One change of what all places of a queue have alike at a time.

Else those of two operators may reach the places in different orders, and these differ from then on. A change has its
turn at the first place, which decides. If its server dies, or a place does not answer, the next change waits until the
turn is over by itself.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import trio

from fairq.errors import FairqError

if TYPE_CHECKING:
    from fairq.store.queue_calls import QueueCalls

TURN_MS = 2_000
_AGAIN_S = 0.02


@asynccontextmanager
async def change_in_turn(store: QueueCalls, first: str) -> AsyncIterator[None]:
    """Wait until no other change of the queue with this first place is under way."""
    change = secrets.token_hex(8)
    while not await store.begin_turn(first, change, TURN_MS):  # noqa: ASYNC110 - another server
        await trio.sleep(random.uniform(0.2, 1.0) * _AGAIN_S)
    try:
        yield
    finally:
        with trio.move_on_after(1.0, shield=True), suppress(FairqError):
            await store.end_turn(first, change)
