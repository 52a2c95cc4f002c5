"""Batches of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from attrs import frozen

from fairq.errors import BadRequest
from fairq.model.rules import one_of, whole
from fairq.model.tasks import printable

BatchStage = Literal["open", "closed", "complete"]
STAGES: tuple[str, ...] = get_args(BatchStage)
STAGE = one_of(*STAGES)
CALLBACKS = ("on_complete", "on_success", "on_death")
MAX_CALLBACK_BYTES = 65_535
CALLBACK_NAME = printable(64)
MAX_RUNNING = 1_000_000  # on tasks running at once, of a batch or a tenant
RUNNING = whole(0, MAX_RUNNING)


def check_callback_names(given: Mapping[str, Any]) -> list[str]:
    """Return the names of a batch's callback tasks, in the order of CALLBACKS. Raises: BadRequest."""
    names = []
    for event in CALLBACKS:
        field = f"{event}_name"
        names.append(CALLBACK_NAME.check(given.get(field, ""), field))
        if names[-1] and given.get(event) is None:
            raise BadRequest(f"{field} needs {event}, the payload of the task", field=field)
    return names


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
class MemberResult:
    """The result of a task of a batch; not `is_kept`: its time is over, or its tenant's limit had no room for it."""

    id: str
    result: Any = None
    is_kept: bool = True


@frozen
class BatchPage:
    """Batches of a queue, in no order; `cursor`: where the next page begins, empty at the end."""

    batches: list[BatchState]
    cursor: str
