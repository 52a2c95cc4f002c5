"""Dead letters: tasks that failed for good."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from fairq.errors import BadRequest
from fairq.model.checks import MAX_SPAN_MS, check_int, check_tenant

MAX_SEARCH_CHARS = 100  # of the error text to search dead letters for
REASONS = ("exhausted", "rejected", "expired", "lease_lost")


@frozen
class DeadLetter:
    """A task that will not run again unless it is replayed; brief listings end with `error`."""

    id: str
    tenant: str
    reason: str
    attempts: int
    died_at_ms: int
    error: str
    enqueued_at_ms: int = 0
    start_at_ms: int = 0
    expires_at_ms: int = 0
    payload: Any = None
    name: str = ""
    webhook: str = ""
    traceback: str = ""  # of the exception that its handler raised, as operators read it


@frozen
class DeadFilter:
    """Which dead letters: None and 0 mean any. Ages are by the store's clock, when a walk over the letters begins."""

    tenant: str | None = None
    reason: str | None = None
    error: str | None = None
    older_than_ms: int = 0
    younger_than_ms: int = 0

    def check(self) -> None:
        """Refuse what can match nothing, and what is empty by mistake. Raises: BadRequest, naming the field."""
        if self.tenant is not None:
            check_tenant(self.tenant)
        if self.reason not in (None, *REASONS):
            raise BadRequest(f"reason must be one of {', '.join(REASONS)}, not {self.reason!r:.80}", field="reason")
        if self.error is not None and not (isinstance(self.error, str) and 1 <= len(self.error) <= MAX_SEARCH_CHARS):
            raise BadRequest(f"error must be text of 1 to {MAX_SEARCH_CHARS} characters", field="error")
        check_int(self.older_than_ms, "older_than_ms", 0, MAX_SPAN_MS)
        check_int(self.younger_than_ms, "younger_than_ms", 0, MAX_SPAN_MS)
        if 0 < self.younger_than_ms <= self.older_than_ms:
            raise BadRequest("no dead letter is older and younger than that", field="younger_than_ms")


@frozen
class DeadPage:
    """A page of dead letters, oldest first; `left` are still to be looked at, from `cursor` on (empty at the end)."""

    letters: list[DeadLetter]
    cursor: str
    left: int


@frozen
class Sweep:
    """How far a sweep has come. `gone`: others, or a try without an answer, were faster; `left`: to look at."""

    changed: int
    gone: int
    left: int
