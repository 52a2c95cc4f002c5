"""Dead letters: tasks that failed for good."""

from __future__ import annotations

from typing import Annotated, Any

from attrs import field, frozen

from fairq.errors import BadRequest
from fairq.model.places import AwayPartition
from fairq.model.rules import SOME_SPAN, SPAN, TENANT, check_fields, one_of, text

REASONS = ("exhausted", "rejected", "expired", "lease_lost")
REASON = one_of(*REASONS)
MAX_SEARCH_CHARS = 100  # of the text to search errors for
SEARCH = text(1, MAX_SEARCH_CHARS)


@frozen
class DeadLetter:
    """A task that will not run again unless it is replayed; brief listings end with `lost_leases`."""

    id: str
    tenant: str
    reason: str
    attempts: int
    died_at_ms: int
    error: str
    lost_leases: int = 0
    enqueued_at_ms: int = 0
    start_at_ms: int = 0
    expires_at_ms: int = 0
    payload: Any = None
    name: str = ""
    webhook: str = ""
    traceback: str = ""  # of the exception that its handler raised, as operators read it


@frozen
class DeadFilter:
    """A filter of dead letters: None means any. Ages are by the store's clock, when a walk over the letters begins."""

    tenant: Annotated[str | None, TENANT] = None
    reason: Annotated[str | None, REASON] = None
    error: Annotated[str | None, SEARCH] = None
    older_than_ms: Annotated[int, SPAN] = 0
    younger_than_ms: Annotated[int | None, SOME_SPAN] = None

    def check(self) -> None:
        """Refuse a filter that can match nothing, or is empty by mistake. Raises: BadRequest, naming the field."""
        check_fields(self)
        if self.younger_than_ms and self.younger_than_ms <= self.older_than_ms:
            raise BadRequest("no dead letter can be both older and younger than that", field="younger_than_ms")


@frozen
class DeadPage:
    """A page of dead letters, oldest first; `left` are still to be looked at, from `cursor` on (empty at the end).

    `away`: partitions that do not answer; their letters are left out, and not counted.
    """

    letters: list[DeadLetter]
    cursor: str
    left: int
    away: list[AwayPartition] = field(factory=list)


@frozen
class Sweep:
    """The progress of a sweep. `gone`: settled by another call or an earlier try; `left`: to look at.

    `batch_gone`: how many replayed tasks belong to no batch any more, because their batch is no longer known.
    """

    changed: int
    gone: int
    left: int
    batch_gone: int = 0
