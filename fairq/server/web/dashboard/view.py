"""The argument of a page's function: the request, its identity, and a way to send frames to the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from attrs import define, frozen

from fairq.errors import NotFound
from fairq.server.engine.app import App
from fairq.server.engine.net.origin import Origin
from fairq.server.web.dashboard.sessions import Session
from fairq.wire import messages as wire
from fairq.wire.decode import structure
from fairq.wire.raw_payloads import RawPayload, decode_payload

if TYPE_CHECKING:
    from fairq.model.simulation.comparison import Comparison
    from fairq.model.waiting import Report
    from fairq.server.web.admin.health import Health
    from fairq.server.web.admin.operators import Operators
    from fairq.server.web.dashboard.finding import Finder
    from fairq.server.web.dashboard.recent import Recent
    from fairq.server.web.http.shared import Shared

Context = dict[str, Any]
T = TypeVar("T")


def rows_of(kind: type[T], rows: Iterable[Mapping[str, Any]]) -> list[T]:
    """Read the rows of a reply: frames leave out empty fields, and payloads may follow them."""
    return [structure(_with_payload(row), kind) for row in rows]


def _with_payload(row: Mapping[str, Any]) -> Mapping[str, Any]:
    raw, inline = row.get("payload_bytes"), row.get("payload")
    if isinstance(raw, RawPayload):
        return {**row, "payload": decode_payload(raw.text)}
    return {**row, "payload": orjson.loads(orjson.dumps(inline))} if isinstance(inline, orjson.Fragment) else row


@frozen
class Site:
    """The state that all pages share."""

    operators: Operators
    health: Health
    recent: Recent
    finder: Finder
    simulations: Shared[Comparison]
    waits: Shared[dict[str, Report]]  # by queue


@define(eq=False)
class View:
    """One look at a page by one operator."""

    site: Site
    session: Session
    origin: Origin
    path: str
    params: Mapping[str, str]  # of the path
    query: Mapping[str, str]

    @property
    def app(self) -> App:
        """The server."""
        return self.site.operators.app

    @property
    def queue(self) -> str:
        """The queue that the page is about."""
        return self.params.get("queue") or self.query.get("queue", "")

    async def ask(self, request: Any) -> dict[str, Any]:
        """Carry out a frame as this operator; returns the reply's body. Raises: FairqError."""
        return await self.site.operators.ask(self.session.identity, self.origin, request)

    async def queues(self) -> list[dict[str, Any]]:
        """Return the rows of all queues, by name."""
        rows: list[dict[str, Any]] = (await self.ask(wire.Queues(0)))["queues"]
        return rows

    async def queue_row(self) -> dict[str, Any]:
        """Return the row of the page's queue. Raises: NotFound."""
        rows: list[dict[str, Any]] = (await self.ask(wire.Queues(0, self.queue)))["queues"]
        if not rows:
            raise NotFound(f"there is no queue {self.queue!r:.80}", field="queue")
        return rows[0]


@frozen
class Page:
    """A page: where it is, what is asked for it, and the name of its place in the navigation.

    `gather_slowly`: what takes long, and comes when the page is there, in place of its changing part.
    """

    path: str
    template: str
    place: str
    gather: Callable[[View], Awaitable[Context]]
    is_live: bool = True
    gather_slowly: Callable[[View], Awaitable[Context]] | None = None
