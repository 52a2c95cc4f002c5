"""Forgetting tenants and queues that have had nothing for a day, so that they leave the listings.

The store decides, in one call each (lua/operate/tenants.lua, delete.lua). Every server does it, once in about an hour:
to do it twice does no harm. A queue goes after its last tenant, and not while a worker takes its tasks.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

import structlog
import trio

from fairq.errors import FairqError
from fairq.model.operator_views import Takers
from fairq.store.store import Store

log = structlog.get_logger("fairq.server")

IDLE_MS = 86_400_000
ROUND_S = 3_600.0
_REST_S = 0.02  # between two calls of the store; each looks at about a hundred accounts
_ASKED = 500  # queues in one question to the other servers

TakersOf = Callable[[Sequence[str]], Awaitable[Mapping[str, Takers]]]


class Forgotten(NamedTuple):
    """How many tenants, and which queues, were forgotten."""

    tenants: int
    queues: list[str]


async def forget_idle(store: Store, takers: TakersOf) -> None:
    """Forget idle tenants and queues, again and again, until cancelled; `takers` returns which have workers."""
    while True:
        await trio.sleep(ROUND_S * random.uniform(0.75, 1.0))
        try:
            await forget_once(store, IDLE_MS, takers)
        except FairqError as error:
            log.debug("cannot look for idle queues", error=error.message)


async def forget_once(store: Store, idle_ms: int, takers: TakersOf) -> Forgotten:
    """Look through all queues and their accounts once."""
    tenants, idle = 0, dict[str, bytes]()
    for queue, entry in (await store.registry.entries()).items():
        try:
            for place in await store.registry.places(queue):
                tenants += await _forget_in(store, place, idle_ms)
            if await store.registry.is_idle(queue, entry, idle_ms):
                idle[queue] = entry
        except FairqError as error:
            log.debug("cannot forget tenants", queue=queue, error=error.message)
    return Forgotten(tenants, await _drop_unattended(store, idle, idle_ms, takers))


async def _drop_unattended(store: Store, idle: Mapping[str, bytes], idle_ms: int, takers: TakersOf) -> list[str]:
    """Remove the idle queues without workers, if all servers with workers have answered."""
    names, dropped = list(idle), []
    for start in range(0, len(names), _ASKED):
        taken = await takers(names[start : start + _ASKED])
        for queue in (queue for queue, found in taken.items() if found == "none"):
            try:
                if await store.registry.drop_idle(queue, idle[queue], idle_ms):
                    log.info("forgot an idle queue", queue=queue)
                    dropped.append(queue)
            except FairqError as error:
                log.debug("cannot forget a queue", queue=queue, error=error.message)
            await trio.sleep(_REST_S)
    return dropped


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
