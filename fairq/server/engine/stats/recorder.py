"""Adds what this server has counted to the history in the store, every few seconds (lua/features/history_verbs.lua).

A call that fails is not repeated: its counts are lost, unless only its answer was lost.
"""

from __future__ import annotations

import random

import structlog
import trio
from attrs import define, field

from fairq.errors import FairqError
from fairq.server.engine.stats.tallies import Tallies
from fairq.store.counts import Counts, QueueCounts
from fairq.store.store import Store

log = structlog.get_logger("fairq.server")

INTERVAL_S = 10.0
_REST_S = 0.025  # between two queues' calls: of thousands of active queues each is added less often
_LAST_S = 2.0  # for what is still to be added when the server stops


@define(eq=False)
class Recorder:
    """Adds the counts of one server to the history; `dropped`: starts that were counted and given up."""

    store: Store
    counts: Counts
    tallies: Tallies = field(factory=Tallies, init=False)
    dropped: int = field(default=0, init=False)
    _busy: set[str] = field(factory=set, init=False)  # queues with running tasks: service goes on without counts

    async def run(self) -> None:
        """Add counts until cancelled."""
        await trio.sleep(random.uniform(0.5, 1.0) * INTERVAL_S)  # servers that start together do not call together
        while True:
            next_at = trio.current_time() + INTERVAL_S
            await self.flush()
            await trio.sleep_until(next_at)

    async def flush(self) -> None:
        """Add the counts of each queue."""
        for queue in {*self.counts.queues, *self._busy}:
            await self.flush_queue(queue)
            await trio.sleep(_REST_S)

    async def finish(self) -> None:
        """Add what is left, as far as a short time allows."""
        with trio.move_on_after(_LAST_S):
            await self.flush()

    async def flush_queue(self, queue: str) -> None:
        """Add the counts of a queue."""
        counts = self.counts.take(queue) or QueueCounts()
        self.tallies.add(queue, counts)
        self._busy.discard(queue)
        try:
            if await self.store.add_history(queue, counts):
                self._busy.add(queue)
        except FairqError as error:  # the store is away or full, or the queue was deleted
            log.debug("cannot add to the history", queue=queue, error=error.message)
            self.dropped += sum(tenant.started for tenant in counts.tenants.values())

    def forget(self, queue: str) -> None:
        """Drop the counts of a queue that was deleted."""
        self.counts.queues.pop(queue, None)
        self.tallies.forget(queue)
        self._busy.discard(queue)
