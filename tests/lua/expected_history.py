"""What the history of a queue must say after random calls: the tasks and times of each interval."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fairq.model.history import STEPS
from fairq.model.queue.model import Model
from fairq.store.records import unpack_slot
from tests import reports

from .calls import Queue

NEW_MS = 600_000  # for how long a queue that was never counted is new
OF_QUEUE = ("enqueued", "done", "dead", "expired", "cancelled", "lost")
OF_ROWS = ("enqueued", "started", "failed", "done", "delivered", "entitled")
RINGS = tuple(STEPS.values())
Interval = tuple[int, Counter[Any], Counter[Any]]  # its number, the queue's counts, the sums of its rows
EMPTY: Interval = (0, Counter(), Counter())


class ExpectedHistory:
    """The intervals of all rings, by their places."""

    def __init__(self) -> None:
        self.slots: dict[tuple[int, int], Interval] = {}
        self.last: Counter[Any] | None = None
        self.epoch = 0  # of the unit of service

    def add(self, model: Model, now: float, lost: int, reported: Counter[Any]) -> None:
        """Add a server's report, summed over tenants, and what the queue has done since the last call."""
        everyone = [*(reports.share(model, name) for name in model.tenants), model.dropped]
        new = Counter[Any](model.counts | {"dead": model.counts["buried"]})
        new |= Counter({of: sum(share[of] for share in everyone) for of in ("delivered", "entitled")})
        is_new = now - model.call_origin < NEW_MS
        last = self.last if self.last is not None else Counter() if is_new else new
        if self.last is not None and self.epoch != model.epoch:  # totals before the first count are no growth
            last = Counter({**last, "delivered": 0, "entitled": 0})
        grown = {name: new[name] - last[name] for name in (*OF_QUEUE[:-1], "delivered", "entitled")}
        self.last, self.epoch = new, model.epoch
        counts = Counter({name: grown[name] for name in OF_QUEUE[:-1]} | {"lost": lost})
        rows = reported | {name: reported[name] + grown[name] for name in ("done", "delivered", "entitled")}
        for step, length in RINGS:
            number = int(now // 1000 // step)
            slot = self.slots.get((step, number % length), EMPTY)
            _, before, others = slot if slot[0] == number else EMPTY
            sums = Counter(others)
            sums.update(rows)
            self.slots[step, number % length] = number, before + counts, sums

    def check(self, queue: Queue, now: float) -> None:
        """Compare the last intervals of each ring."""
        for step, length in RINGS:
            last = int(now // 1000 // step)
            numbers = range(last - 239, last + 1)
            found = (self.slots.get((step, number % length), EMPTY) for number in numbers)
            expected = [slot for slot, number in zip(found, numbers, strict=True) if slot[0] == number]
            slots = [unpack_slot(packed) for packed in queue.call("history", step, -1, 240)[2:]]
            assert [slot.number for slot in slots] == [number for number, *_ in expected]
            for slot, (_, counts, sums) in zip(slots, expected, strict=True):
                assert {name: getattr(slot, name) for name in OF_QUEUE} == {name: counts[name] for name in OF_QUEUE}
                rows = Counter[Any](dict.fromkeys(OF_ROWS, 0))
                for row in slot.rows:
                    rows.update({name: getattr(row, name) for name in OF_ROWS})
                    rows.update(row.waits)
                assert len(slot.rows) <= 21
                assert dict(rows) == pytest.approx(dict.fromkeys(OF_ROWS, 0) | dict(sums), abs=0.1)
