"""Delivering links: tasks that acknowledgements enqueue in other queues (lua/39_links.lua).

Any server does it. It takes links that are due, enqueues each under its id, and tells the store what came of it. If it
dies in between, the links are due again HOLD_MS later, and the target knows those that have arrived by their ids.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial

import structlog
import trio

from fairq.errors import BadRequest, BatchClosed, FairqError, Forbidden, NotFound, TooLarge, Unavailable
from fairq.model.tasks import Fate, StoredLink
from fairq.scopes import run_all
from fairq.store.store import Store

log = structlog.get_logger("fairq.server")

AT_ONCE = 100  # links that one tick's job delivers
HOLD_MS = 15_000  # a server's time to deliver what it has taken; under the minute for which targets remember ids
_DELIVER_S = 10.0
_BACKOFF_MS, _BACKOFF_CAP_MS = 1_000, 60_000
_NEVER = (BadRequest, TooLarge, BatchClosed, NotFound, Forbidden)  # no later attempt fares better
_LATE = "it would expire before it may start"

Told = tuple[str, Fate, int, str]


async def deliver_links(store: Store, queue: str, tick_within: Callable[[str, float], None]) -> bool:
    """Deliver links of a queue that are due; returns whether there may be more. `tick_within`: of their targets."""
    try:
        links = await store.take_links(queue, AT_ONCE, HOLD_MS)
        groups: dict[tuple[str, str], list[StoredLink]] = defaultdict(list)
        for link in links:
            groups[link.queue, link.tenant].append(link)
        told: list[Told] = []
        with trio.move_on_after(_DELIVER_S):  # what is late is taken again
            await run_all(*(partial(_deliver, store, some, told) for some in groups.values()))
        if told:
            await store.close_links(queue, told)
    except FairqError as error:
        log.warning("cannot deliver links", queue=queue, error=error.message)
        return False
    arrived = {name for name, fate, _, _ in told if fate == "delivered"}
    for link in links:
        if link.name in arrived:
            tick_within(link.queue, link.task.delay_ms)
    lost = [(name, why) for name, fate, _, why in told if fate == "never"]
    for name, why in lost:
        log.warning("a link cannot be delivered", queue=queue, dead_letter=name, error=why)
    return bool(links)


async def _deliver(store: Store, links: Sequence[StoredLink], told: list[Told]) -> None:
    """Enqueue links of one tenant to one queue; those that are refused together are tried one by one."""
    fates = await _enqueue(store, links)
    if fates is None:
        for n, link in enumerate(links):
            alone = await _enqueue(store, [link], is_last=True)
            told += alone or ()
            if alone and alone[0][1] == "later":  # there is no room: the others need not ask
                told += [_later(each, alone[0][3]) for each in links[n + 1 :]]
                return
        return
    told += fates


async def _enqueue(store: Store, links: Sequence[StoredLink], *, is_last: bool = False) -> list[Told] | None:
    """Enqueue links; None: some of several are refused."""
    queue, tenant = links[0].queue, links[0].tenant
    try:
        outcomes = await store.enqueue(queue, tenant, [link.task for link in links])
    except FairqError as error:
        if len(links) > 1 and not is_last and not isinstance(error, Unavailable):
            return None
        if isinstance(error, _NEVER):
            return [(link.name, "never", 0, f"queue {queue}: {error.message}") for link in links]
        return [_later(link, f"queue {queue}: {error.message}") for link in links]
    return [_fate(link, outcome) for link, outcome in zip(links, outcomes, strict=True)]


def _fate(link: StoredLink, outcome: str) -> Told:
    if outcome == "expired":
        return link.name, "never", 0, f"queue {link.queue}: {_LATE}"
    return link.name, "delivered", 0, ""


def _later(link: StoredLink, why: str) -> Told:
    longest = min(_BACKOFF_CAP_MS, _BACKOFF_MS * 2 ** min(link.attempts, 10))
    return link.name, "later", round(longest * random.uniform(0.5, 1.0)), why
