"""The bytes that ids of ended tasks count, in plain Python, a part of the model of a queue: lua/pick/remembered.lua."""

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
    """The bytes of a tenant's ids, by periods of a minute and of about an hour; only two of each count."""

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
        """Count an id. Periods that are over, or that the clock goes back from, no longer count."""
        minute = math.floor(now / MINUTE_MS)
        for length, counts in self._counts.items():
            period, last = minute // length, self._minute // length
            for each in [each for each in counts if period < last or each + 1 < period]:
                del counts[each]
        self._minute = minute
        counts, period = self._counts[LONG_MINUTES if is_long else 1], minute // (LONG_MINUTES if is_long else 1)
        counts[period] = counts.get(period, 0) + bytes_of_id(id)
