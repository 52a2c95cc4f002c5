"""Batches of tasks."""

from __future__ import annotations

from typing import Literal, get_args

from attrs import frozen

from fairq.model.rules import one_of, whole

BatchStage = Literal["open", "closed", "complete"]
STAGES: tuple[str, ...] = get_args(BatchStage)
STAGE = one_of(*STAGES)
MAX_CALLBACK_BYTES = 65_535
MAX_RUNNING = 1_000_000  # on tasks running at once, of a batch or a tenant
RUNNING = whole(0, MAX_RUNNING)


@frozen
class BatchState:
    """A batch's progress: how many tasks were added, how many run, and how the others ended."""

    id: str
    state: BatchStage
    tenant: str
    max_running: int
    total: int
    running: int
    done: int
    dead: int
    cancelled: int
    created_at_ms: int
    completed_at_ms: int
    expired: int = 0  # of the dead ones

    @property
    def waiting(self) -> int:
        """How many tasks have yet to run, or to run again."""
        return self.total - self.running - self.ended

    @property
    def ended(self) -> int:
        """How many tasks have come to their end."""
        return self.done + self.dead + self.cancelled


@frozen
class BatchPage:
    """Batches of a queue, in no order; `cursor`: where the next page begins, empty at the end."""

    batches: list[BatchState]
    cursor: str
