"""Batches of tasks."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

MAX_CALLBACK_BYTES = 65_535
MAX_RUNNING = 1_000_000  # on tasks running at once, of a batch or a tenant


@frozen
class BatchState:
    """How far a batch is: the tasks that were added, those that run, and how the others ended."""

    id: str
    state: Literal["open", "closed", "complete"]
    tenant: str
    max_running: int
    total: int
    running: int
    done: int
    dead: int
    cancelled: int
    created_at_ms: int
    completed_at_ms: int

    @property
    def waiting(self) -> int:
        """How many tasks have yet to run, or to run again."""
        return self.total - self.running - self.done - self.dead - self.cancelled
