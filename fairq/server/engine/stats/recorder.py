"""Adds what this server has counted to the history in the store, every few seconds (lua/features/history_verbs.lua).

A call that fails is not repeated: its counts are lost, unless only its answer was lost.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import groupby

import structlog
import trio
from attrs import define, field

from fairq.errors import FairqError
from fairq.model.places import queue_of
from fairq.server.engine.stats.tallies import Tallies
from fairq.store.counts import Counts, QueueCounts, joined
from fairq.store.store import Store

log = structlog.get_logger("fairq.server")

INTERVAL_S = 10.0
_REST_S = 0.025  # between two queues' calls: of thousands of active queues each is added less often
_LAST_S = 2.0  # for what is still to be added when the server stops


@define(eq=False)
class Recorder:
    """Adds the counts of one server to the history; `dropped`: starts that were counted and given up.

    The history has them by place, /metrics by queue.
    """

    store: Store
    counts: Counts
    tallies: Tallies = field(factory=Tallies, init=False)
    dropped: int = field(default=0, init=False)
    _busy: set[str] = field(factory=set, init=False)  # places with running tasks: service goes on without counts

    async def run(self) -> None:
        """Add counts until cancelled."""
        await trio.sleep(random.uniform(0.5, 1.0) * INTERVAL_S)  # servers that start together do not call together
        while True:
            next_at = trio.current_time() + INTERVAL_S
            await self.flush()
            await trio.sleep_until(next_at)

    async def flush(self) -> None:
        """Add the counts of each queue."""
        for queue, places in groupby(sorted({*self.counts.queues, *self._busy}), queue_of):
            await self._flush_queue(queue, places)

    async def finish(self) -> None:
        """Add what is left, as far as a short time allows."""
        with trio.move_on_after(_LAST_S):
            await self.flush()

    async def _flush_queue(self, queue: str, places: Iterable[str]) -> None:
        """Add the counts of a queue."""
        counts = {place: self.counts.take(place) or QueueCounts() for place in places}
        self.tallies.add(queue, joined(counts.values()))
        for place, own in counts.items():
            await self._flush_place(place, own)
            await trio.sleep(_REST_S)

    async def _flush_place(self, place: str, counts: QueueCounts) -> None:
        self._busy.discard(place)
        try:
            if await self.store.add_history(place, counts):
                self._busy.add(place)
        except FairqError as error:  # the store is away or full, or the queue was deleted
            log.debug("cannot add to the history", queue=place, error=error.message)
            self.dropped += sum(tenant.started for tenant in counts.tenants.values())

    def forget(self, queue: str) -> None:
        """Drop the counts of a queue that was deleted."""
        for place in [each for each in self.counts.queues if queue_of(each) == queue]:
            del self.counts.queues[place]
        self._busy = {place for place in self._busy if queue_of(place) != queue}
        self.tallies.forget(queue)
