"""Batches in memory, by the rules of lua/tasks/batches.lua: how far one is, and which of its tasks wait for a slot."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Generic, TypeVar

from attrs import define, field

from fairq.model.batches import BatchStage, BatchState

KEEP_MS = 86_400_000  # how long complete batches are remembered
_WITH_SLOT = ("ready", "leased")
_ENDED = ("done", "dead", "cancelled")
R = TypeVar("R")


@define(eq=False)
class MemoryBatch(Generic[R]):
    """A batch, whose id is a full one, and its pending records.

    `callbacks`: payloads by `complete`, `success` and `death`. `counts`: its tasks by their state.
    """

    id: str
    tenant: str
    max_running: int
    callbacks: dict[str, bytes]
    has_events: bool
    created_at_ms: int
    state: BatchStage = field(default="open", init=False)
    completed_at_ms: int = field(default=0, init=False)
    counts: Counter[str] = field(factory=Counter, init=False)
    expired: int = field(default=0, init=False)
    _pending: list[tuple[int, int, R]] = field(factory=list, init=False)

    def is_kept(self, now: int) -> bool:
        """Tell whether it is still remembered."""
        return not self.completed_at_ms or now < self.completed_at_ms + KEEP_MS

    def has_slot(self, state: str) -> bool:
        """Tell whether a task that is in this state may become ready; it may if it holds a slot itself."""
        others = sum(self.counts[each] for each in _WITH_SLOT) - (state in _WITH_SLOT)
        return self.max_running == 0 or others < self.max_running

    def add_pending(self, priority: int, order: int, record: R) -> None:
        """Have a record wait for a slot, behind those that are as urgent."""
        heapq.heappush(self._pending, (priority, order, record))

    def pop_pending(self) -> R | None:
        """Return the first record that waits for a slot, if there is a slot; it may be pending no more."""
        return heapq.heappop(self._pending)[2] if self._pending and self.has_slot("pending") else None

    @property
    def is_over(self) -> bool:
        """True if it is closed and all its tasks have ended."""
        return self.state == "closed" and sum(self.counts[each] for each in _ENDED) == sum(self.counts.values())

    def told(self, id: str) -> BatchState:
        """Tell how far it is, under this id."""
        ended = {state: self.counts[state] for state in _ENDED}
        return BatchState(
            id, self.state, self.tenant, self.max_running, self.counts.total(), self.counts["leased"],
            created_at_ms=self.created_at_ms, completed_at_ms=self.completed_at_ms, expired=self.expired,
            **ended,
        )  # fmt: skip
