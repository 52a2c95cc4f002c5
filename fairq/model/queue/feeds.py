"""Feeds of events in plain Python, for tasks that asked for them. Part of the model of a queue (model.py)."""

from __future__ import annotations

from collections import defaultdict

from fairq.model.events import MAX_DETAIL_BYTES

GOING = 10
Event = tuple[int, str, str, float, int, str]  # id, event, task or batch, at, attempt, detail


class Feeds:
    """The feeds of all tenants: the events that each keeps, and how many it was given in all."""

    def __init__(self) -> None:
        self.kept: defaultdict[str, list[Event]] = defaultdict(list)
        self.newest: defaultdict[str, int] = defaultdict(int)

    def tell(self, keep: int, tenant: str, event: str, of: str, at: float, attempt: int = 0, detail: str = "") -> None:
        """Put an event into a tenant's feed; the last `keep` stay, and others go a few at a time."""
        self.newest[tenant] += 1
        text = detail.encode()[:MAX_DETAIL_BYTES].decode(errors="replace")
        self.kept[tenant].append((self.newest[tenant], event, of, at, attempt, text))
        del self.kept[tenant][: min(GOING, max(0, len(self.kept[tenant]) - keep))]

    def read(self, tenant: str, after: int, count: int) -> tuple[int, int, list[Event]]:
        """Read the events after an event: the reply of `events`."""
        kept, newest = self.kept.get(tenant, []), self.newest.get(tenant, 0)
        return newest - len(kept) + 1, newest, [event for event in kept if event[0] > after][:count]
