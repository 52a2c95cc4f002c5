"""Feeds of events in plain Python, for tasks that asked for them. Part of the model of a queue (model.py)."""

from __future__ import annotations

from collections import defaultdict

from fairq.model.events import MAX_DETAIL_BYTES

GOING = 10
Told = tuple[int, str, str, float, int, str]  # id, event, task or batch, at, attempt, detail


class Feeds:
    """The feeds of all tenants: what each keeps, and how much it was told in all."""

    def __init__(self) -> None:
        self.kept: defaultdict[str, list[Told]] = defaultdict(list)
        self.newest: defaultdict[str, int] = defaultdict(int)

    def tell(self, keep: int, tenant: str, event: str, of: str, at: float, attempt: int = 0, detail: str = "") -> None:
        """Put an event into a tenant's feed; the last `keep` stay, and others go a few at a time."""
        self.newest[tenant] += 1
        text = detail.encode()[:MAX_DETAIL_BYTES].decode(errors="replace")
        self.kept[tenant].append((self.newest[tenant], event, of, at, attempt, text))
        del self.kept[tenant][: min(GOING, max(0, len(self.kept[tenant]) - keep))]

    def read(self, tenant: str, after: int, count: int) -> tuple[int, int, list[Told]]:
        """Read what came after an event: the reply of `events`."""
        kept, newest = self.kept.get(tenant, []), self.newest.get(tenant, 0)
        return newest - len(kept) + 1, newest, [told for told in kept if told[0] > after][:count]
