"""Adds what this server has counted to the history in the store, every few seconds (lua/84_history.lua).

A call whose outcome is unknown is repeated under its number, and the store adds it once. What is counted meanwhile goes
with the next one. So of each queue at most one call is pending; after KEEP_S it is given up, since its counts would
belong to another time.
"""

from __future__ import annotations

import random

import structlog
import trio
from attrs import define, field

from fairq.errors import FairqError, OutcomeUnknown, Repairing, StoreFull, Unavailable
from fairq.server.stats.tallies import Tallies
from fairq.store.counts import Counts, QueueCounts
from fairq.store.store import Store

log = structlog.get_logger("fairq.server")

INTERVAL_S = 10.0
KEEP_S = 300.0
_REST_S = 0.025  # between two queues' calls: of thousands of active queues each is added less often
_LAST_S = 2.0  # for what is still to be added when the server stops


@define(eq=False)
class _Pending:
    """A call that was not answered yet, and when it was first made."""

    number: int
    counts: QueueCounts
    since: float


@define(eq=False)
class Recorder:
    """Adds the counts of one server to the history; `dropped`: starts that were counted and given up."""

    store: Store
    server: str
    counts: Counts
    tallies: Tallies = field(factory=Tallies, init=False)
    dropped: int = field(default=0, init=False)
    _number: int = field(default=0, init=False)
    _pending: dict[str, _Pending] = field(factory=dict, init=False)
    _busy: set[str] = field(factory=set, init=False)  # queues whose tasks were running: service goes on without counts

    async def run(self) -> None:
        """Add counts until cancelled."""
        await trio.sleep(random.uniform(0.5, 1.0) * INTERVAL_S)  # servers that start together do not call together
        while True:
            next_at = trio.current_time() + INTERVAL_S
            await self.flush()
            await trio.sleep_until(next_at)

    async def flush(self) -> None:
        """Add the counts of each queue."""
        for queue in {*self.counts.queues, *self._pending, *self._busy}:
            await self.flush_queue(queue)
            await trio.sleep(_REST_S)

    async def finish(self) -> None:
        """Add what is left, as far as a short time allows."""
        with trio.move_on_after(_LAST_S):
            await self.flush()

    async def flush_queue(self, queue: str) -> None:
        """Add the counts of a queue, or those that the last call may not have added."""
        call = self._pending.get(queue) or self._next(queue)
        self._pending[queue] = call
        try:
            is_busy = await self.store.add_history(queue, self.server, call.number, call.counts)
        except (Unavailable, OutcomeUnknown, StoreFull, Repairing) as error:
            log.debug("cannot add to the history", queue=queue, error=error.message)
            if trio.current_time() > call.since + KEEP_S:
                self._drop(queue, call)
        except FairqError as error:  # the queue was deleted, or not made yet
            log.debug("the history is not kept", queue=queue, error=error.message)
            self._drop(queue, call)
        else:
            self._done(queue, call)
            if is_busy:
                self._busy.add(queue)

    def forget(self, queue: str) -> None:
        """Drop the counts of a queue that was deleted."""
        self.counts.queues.pop(queue, None)
        self._pending.pop(queue, None)
        self.tallies.forget(queue)
        self._busy.discard(queue)

    def _next(self, queue: str) -> _Pending:
        self._number += 1
        counts = self.counts.take(queue) or QueueCounts()
        self.tallies.add(queue, counts)
        return _Pending(self._number, counts, trio.current_time())

    def _done(self, queue: str, call: _Pending) -> None:
        self._busy.discard(queue)
        if self._pending.get(queue) is call:  # not forgotten meanwhile
            del self._pending[queue]

    def _drop(self, queue: str, call: _Pending) -> None:
        self._done(queue, call)
        self.dropped += sum(counts.started for counts in call.counts.tenants.values())
