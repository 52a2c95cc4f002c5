"""Takes over the leases that a worker brings to a new connection.

If a queue can do nothing now (it is being repaired, or its node is away), the worker still gets its other queues. The
leases of such a queue stay the worker's, unchanged in the store; the answer to their next extension says whether they
are valid. They are not fenced against the server of the old connection: it may still give them back, if it does not see
this worker's name and the queue works again within the grace. Then a task is given once more, under another lease
number: the first run gets `stale` at its next extension or settlement, and only one of the two can settle the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import structlog

from fairq.errors import FairqError, Retryable
from fairq.io.scopes import run_all
from fairq.model.tasks import Taken
from fairq.server.engine.app import App
from fairq.server.engine.leases import Brought
from fairq.wire.frames import HeldLease

log = structlog.get_logger("fairq.server")


async def take_over(app: App, leases: Sequence[HeldLease]) -> tuple[list[str], list[Brought]]:
    """Return the outcome of each lease, and the leases that the worker keeps; all queues are asked at once."""
    by_queue: dict[str, list[int]] = {}
    for i, lease in enumerate(leases):
        by_queue.setdefault(lease.queue, []).append(i)
    outcomes, brought = ["gone"] * len(leases), list[Brought]()

    async def take(queue: str, at: Sequence[int]) -> None:
        some = [leases[i] for i in at]
        try:
            found = await app.store.take(queue, [(each.id, each.lease) for each in some])
        except FairqError as error:
            if not isinstance(error, Retryable):
                raise
            log.warning("leases are not taken over", queue=queue, count=len(at), error=error.message)
            found = _kept(app, some)
        for i, taken in zip(at, found, strict=True):
            outcomes[i] = taken.outcome
            if taken.outcome in ("ok", "cancelled"):
                key = queue, leases[i].id
                brought.append(Brought(key, leases[i].lease, taken.times, taken.lasts_ms / 1000))

    await run_all(*(partial(take, queue, at) for queue, at in by_queue.items()))
    return outcomes, brought


def _kept(app: App, leases: Sequence[HeldLease]) -> list[Taken]:
    """Return what is known here of one queue's leases, as `Store.take` does: of each task the last one is kept.

    How long they last is not known (0).
    """
    last: dict[str, int] = {}
    for each in leases:
        last[each.id] = max(each.lease, last.get(each.id, 0))
    found = []
    for each in leases:
        number, taken = app.leases.known((each.queue, each.id))
        is_kept = each.lease == last[each.id] >= number  # the store's numbers grow
        times = taken if each.lease == number else 0
        found.append(Taken("ok", times, 0) if is_kept else Taken("stale", 0, 0))
    return found
