"""A stream of a tenant's events."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from attrs import define, field

from fairq.client import lazy
from fairq.client.requests import named

if TYPE_CHECKING:
    from fairq.client.requests import Requests
    from fairq.model.events import Event


@define(eq=False)
class EventStream(AsyncIterator["Event"]):
    """An endless iterator over events, for one task at a time; it may be left and taken up again.

    `after`: the id of the event that came last, where another stream would go on.
    """

    _client: Requests = field(repr=False)
    queue: str
    after: int
    tenant: str | None = None
    _read: deque[Event] = field(factory=deque, init=False, repr=False)

    async def __anext__(self) -> Event:
        """Wait for the next event, across reconnects. Raises: TooOld, BadRequest, and what ends the client."""
        if self._read:
            await self._client._caller.pass_turn()
        else:
            body = named(self.queue, self.tenant) | {"after": self.after}
            page = await self._client.request_until("events", body, lambda page: bool(page["events"]))
            self._read.extend(lazy.bodies.rows(lazy.events.Event, page["events"]))
        event = self._read.popleft()
        self.after = event.id
        return event
