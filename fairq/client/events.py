"""A tenant's feed of events, as whoever follows it sees it."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import trio
from attrs import define, field

from fairq.model.checks import check_int, check_name
from fairq.model.events import MAX_EVENT_ID, Event

if TYPE_CHECKING:
    from fairq.client.client import Client


def events_body(queue: str, after: int, tenant: str | None) -> dict[str, Any]:
    """Return what a request for events says. Raises: BadRequest."""
    body = {"queue": check_name(queue, "queue"), "after": check_int(after, "after", 0, MAX_EVENT_ID)}
    return body if tenant is None else body | {"tenant": check_name(tenant, "tenant")}


@define(eq=False)
class Feed(AsyncIterator[Event]):
    """An endless iterator over events, for one task at a time; it may be left and taken up again."""

    _client: Client = field(repr=False)
    _body: dict[str, Any]
    _read: deque[Event] = field(factory=deque, init=False, repr=False)

    @property
    def after(self) -> int:
        """The id of the event that came last: where another feed would go on."""
        return int(self._body["after"])

    async def __anext__(self) -> Event:
        """Wait for the next event, across reconnects. Raises: TooOld, BadRequest, and what ends the client."""
        if self._read:
            await trio.lowlevel.checkpoint()
        else:
            reply = await self._client.ask_until("events", self._body, None, lambda reply: bool(reply["events"]))
            assert reply is not None  # it has no time-out
            self._read.extend(Event(**row) for row in reply["events"])
        event = self._read.popleft()
        self._body["after"] = event.id
        return event
