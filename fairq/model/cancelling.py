"""Cancels a tenant's waiting tasks: all of them, or those that match a filter."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from attrs import frozen

from fairq.model.dead_letters import SEARCH
from fairq.model.rules import SPAN


@frozen
class WaitingFilter:
    """A filter of waiting tasks: None and 0 mean any.

    `older_than_ms`: enqueued longer ago, by the store's clock, when a walk over the tasks begins. `error`: text that
    the error of the last attempt contains.
    """

    older_than_ms: Annotated[int, SPAN] = 0
    error: Annotated[str | None, SEARCH] = None


class WaitingPage(NamedTuple):
    """Ids of waiting tasks that match, of so many that were looked at; `waiting`: how many of the tenant's wait."""

    cursor: str
    looked: int
    waiting: int
    ids: list[str]


@frozen
class CancelProgress:
    """Tasks that were found to match, cancelled and looked at so far; `waiting`: the tenant's that wait now.

    `cursor`: where to go on; empty at the end.
    """

    cursor: str = ""
    found: int = 0
    cancelled: int = 0
    looked: int = 0
    waiting: int = 0

    def plus(self, step: CancelProgress) -> CancelProgress:
        """Return the progress after one more step."""
        return CancelProgress(
            step.cursor,
            self.found + step.found,
            self.cancelled + step.cancelled,
            self.looked + step.looked,
            step.waiting,
        )
