"""Forgetting tenants that have had nothing for a day, so that they leave the listings (lua/47_tenants.lua).

Every server does it, once in about an hour: to do it twice does no harm.
"""

from __future__ import annotations

import random

import structlog
import trio

from fairq.errors import FairqError
from fairq.store.store import Store

log = structlog.get_logger("fairq.server")

IDLE_MS = 86_400_000
ROUND_S = 3_600.0
_REST_S = 0.02  # between two calls of the store, each of which looks at about a hundred accounts


async def forget_idle_tenants(store: Store) -> None:
    """Forget idle tenants of all queues, again and again, until cancelled."""
    while True:
        await trio.sleep(ROUND_S * random.uniform(0.75, 1.0))
        try:
            await forget_once(store, IDLE_MS)
        except FairqError as error:
            log.debug("cannot list queues", error=error.message)


async def forget_once(store: Store, idle_ms: int) -> int:
    """Look through the accounts of all queues once; returns how many tenants were forgotten."""
    forgotten = 0
    for queue in await store.queues():
        try:
            forgotten += await _forget_in(store, queue, idle_ms)
        except FairqError as error:
            log.debug("cannot forget tenants", queue=queue, error=error.message)
    return forgotten


async def _forget_in(store: Store, queue: str, idle_ms: int) -> int:
    cursor, forgotten = "0", 0
    while True:
        cursor, dropped = await store.forget_tenants(queue, cursor, idle_ms)
        forgotten += dropped
        await trio.sleep(_REST_S)
        if cursor == "0":
            break
    if forgotten:
        log.info("forgot idle tenants", queue=queue, tenants=forgotten)
    return forgotten
