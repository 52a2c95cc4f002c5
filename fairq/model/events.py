"""Events: what happened to a tenant's tasks."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from fairq.errors import BadRequest, TooOld
from fairq.model.rules import whole

EventName = Literal["failed", "done", "dead", "expired", "cancelled", "batch_completed"]
EVENT_ID = whole(0, 1 << 50)
MAX_DETAIL_BYTES = 256  # of an event


@frozen
class Event:
    """An event of a task or batch that asked for events.

    `detail`: of a failed attempt its error, or `lease_lost`; of a dead letter its reason. The counts are those of a
    complete batch: how its tasks ended; `expired`: of the dead ones.
    """

    id: int
    event: EventName
    at_ms: int
    task: str = ""
    batch: str = ""
    attempt: int = 0
    detail: str = ""
    done: int = 0
    dead: int = 0
    cancelled: int = 0
    expired: int = 0


@frozen
class EventPage:
    """Events of a feed, oldest first.

    `oldest` and `newest`: the ids that the feed keeps; when it keeps none, the next that will be given and the last
    that was (0: none yet).
    """

    oldest: int
    newest: int
    events: list[Event]

    def check(self, after: int) -> None:
        """Refuse to go on after an event if the next has gone, or if there was none. Raises: TooOld, BadRequest."""
        if after > self.newest:
            raise BadRequest(f"the newest event is {self.newest}; there is no event {after}", field="after")
        if 0 < after < self.oldest - 1:
            gone = f"events after {after} are no longer kept"
            raise TooOld(f"{gone}; the feed continues from event {self.oldest}, which `after` 0 reads", field="after")
