"""What a queue must say of its webhooks after random changes of them."""

from __future__ import annotations

from typing import NamedTuple

from .calls import Queue, pairs, unpack


class Webhook(NamedTuple):
    """A registration."""

    url: str
    name: str
    fan_out: int
    paused: int
    created_at: float


class ExpectedWebhooks(dict[str, Webhook]):
    """The webhooks of a queue, by their ids: at most so many, and so many with fan-out."""

    def __init__(self, most: int = 64, fan_outs: int = 15) -> None:
        super().__init__()
        self.most, self.fan_outs = most, fan_outs

    def add(self, now: float, id: str, url: str, name: str, fan_out: int) -> str:
        """Register a webhook, or change it."""
        known = self.get(id)
        if not known and len(self) >= self.most:
            return "FAIRQ too_large url"
        others = sum(each.fan_out for other, each in self.items() if other != id)
        if fan_out > (known.fan_out if known else 0) and others >= self.fan_outs:
            return "FAIRQ too_large fan_out"
        self[id] = Webhook(url, name, fan_out, known.paused if known else 0, known.created_at if known else now)
        return "created" if not known else "same" if self[id] == known else "changed"

    def pause(self, id: str, paused: int) -> int:
        """Pause a webhook or resume it; returns whether it was paused, -1 if there is none."""
        if not (known := self.get(id)):
            return -1
        self[id] = known._replace(paused=paused)
        return known.paused

    def check(self, queue: Queue) -> None:
        """Compare them with those of a queue."""
        found = {id.decode(): unpack("WEBHOOK", packed) for id, packed in pairs(queue.call("webhooks"))}
        assert {id: Webhook(*(getattr(row, name) for name in Webhook._fields)) for id, row in found.items()} == self
