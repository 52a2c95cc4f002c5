"""What the ids of ended tasks count, in plain Python, a part of the model of a queue: lua/pick/remembered.lua."""

from __future__ import annotations

import math

from attrs import define, field

from fairq.model.checks import DERIVED

MINUTE_MS, LONG_MINUTES = 60_000, 62


def bytes_of_id(id: str) -> int:
    """Return the bytes that an id counts while it is remembered."""
    return 55 + 3 * len(id)


def is_long(id: str) -> bool:
    """True if an id is remembered for an hour."""
    return f"/{DERIVED}" in id


@define
class Remembered:
    """What a tenant's ids count: by period, of a minute and of an hour or so; periods before the last count nothing."""

    _counts: dict[int, dict[int, int]] = field(factory=lambda: {1: {}, LONG_MINUTES: {}}, init=False)
    _minute: int = field(default=0, init=False)

    def bytes(self, now: float) -> int:
        """Add up what counts at a time."""
        minute = math.floor(now / MINUTE_MS)
        return sum(
            count
            for length, counts in self._counts.items()
            for period, count in counts.items()
            if period + 1 >= minute // length >= self._minute // length >= period
        )

    def add(self, now: float, id: str, *, is_long: bool) -> None:
        """Count an id; what the clock has passed, or goes back from, counts no more."""
        minute = math.floor(now / MINUTE_MS)
        for length, counts in self._counts.items():
            period, last = minute // length, self._minute // length
            for each in [each for each in counts if period < last or each + 1 < period]:
                del counts[each]
        self._minute = minute
        counts, period = self._counts[LONG_MINUTES if is_long else 1], minute // (LONG_MINUTES if is_long else 1)
        counts[period] = counts.get(period, 0) + bytes_of_id(id)
