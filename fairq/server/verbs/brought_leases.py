"""Takes over the leases that a worker brings to a new connection.

A queue that can do nothing now (it is being repaired, or its node is away) keeps the worker out of none of its others.
Its leases stay the worker's, unchanged in the store, and their next extension tells what has become of them. They are
not fenced against the server of the old connection: that one may still give them back, if it hears nothing of this
worker's name and the queue is well again within the grace. Then a task is given once more, under another lease number:
the first run hears `stale` at its next extension or settlement, and only one of the two can settle the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import structlog

from fairq.errors import RETRYABLE, FairqError
from fairq.model.queues import SETTING_RANGES
from fairq.scopes import run_all
from fairq.server.app import App, Brought
from fairq.wire.frames import HeldLease

log = structlog.get_logger("fairq.server")

_LONGEST_S = SETTING_RANGES["lease_ms"][1] / 1000


async def take_over(app: App, leases: Sequence[HeldLease]) -> tuple[list[str], list[Brought]]:
    """Return the outcome of each lease, and those that the worker keeps; all queues are asked at the same time."""
    by_queue: dict[str, list[int]] = {}
    for i, lease in enumerate(leases):
        by_queue.setdefault(lease.queue, []).append(i)
    outcomes, brought = ["gone"] * len(leases), list[Brought]()

    async def take(queue: str, at: Sequence[int]) -> None:
        some, lease_s = [leases[i] for i in at], _LONGEST_S  # its account may have a lost lease for as long as this
        try:
            lease_s = (await app.store.queue(queue)).settings.lease_ms / 1000
            told = await app.store.take(queue, [(each.id, each.lease) for each in some])
        except FairqError as error:
            if error.code not in RETRYABLE:
                raise
            log.warning("leases are not taken over", queue=queue, count=len(at), error=error.message)
            told = _kept(app, some)
        for i, (outcome, taken) in zip(at, told, strict=True):
            outcomes[i] = outcome
            if outcome in ("ok", "cancelled"):
                brought.append(Brought((queue, leases[i].id), leases[i].lease, taken, lease_s))

    await run_all(*(partial(take, queue, at) for queue, at in by_queue.items()))
    return outcomes, brought


def _kept(app: App, leases: Sequence[HeldLease]) -> list[tuple[str, int]]:
    """Return what is known here of one queue's leases, as `Store.take` does: of each task the last one is kept."""
    last: dict[str, int] = {}
    for each in leases:
        last[each.id] = max(each.lease, last.get(each.id, 0))
    told = []
    for each in leases:
        number, taken = app.known_lease((each.queue, each.id))
        is_kept = each.lease == last[each.id] >= number  # the store's numbers grow
        told.append(("ok", taken if each.lease == number else 0) if is_kept else ("stale", 0))
    return told
