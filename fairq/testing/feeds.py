"""Feeds in memory: what is told of a tenant's tasks and batches in one queue."""

from __future__ import annotations

from collections import Counter, defaultdict

from attrs import define, evolve, field

from fairq.model.events import MAX_DETAIL_BYTES, Event, EventPage


@define
class Feeds:
    """The feeds of a queue, by tenant; each keeps the newest `keep` events."""

    keep: int
    _events: defaultdict[str, list[Event]] = field(factory=lambda: defaultdict(list), init=False)
    _newest: Counter[str] = field(factory=Counter, init=False)  # ids

    def tell(self, tenant: str, event: Event) -> None:
        """Add an event, which gets the next id and a detail that is not too long."""
        self._newest[tenant] += 1
        detail = event.detail.encode()[:MAX_DETAIL_BYTES].decode(errors="replace")
        feed = self._events[tenant]
        feed.append(evolve(event, id=self._newest[tenant], detail=detail))
        del feed[: max(0, len(feed) - self.keep)]

    def read(self, tenant: str, after: int, count: int) -> EventPage:
        """Read events after one of them. Raises: TooOld, BadRequest."""
        feed, newest = self._events.get(tenant, []), self._newest[tenant]
        page = EventPage(newest - len(feed) + 1, newest, [event for event in feed if event.id > after][:count])
        page.check(after)
        return page
