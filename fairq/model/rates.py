"""Rate limits that are kept in one number. The caller brings the time."""

from __future__ import annotations

import math

from attrs import define, field


@define(eq=False)
class Rate:
    """A rate limit with a burst of `most` (GCRA: keeps the time at which everything taken is paid for)."""

    per_second: float
    most: float
    _paid_at: float = field(default=-math.inf, init=False)

    def _paid_with(self, amount: float, now: float) -> float:
        return max(self._paid_at, now - self.most / self.per_second) + amount / self.per_second

    def take(self, amount: float, now: float) -> float:
        """Take an amount; returns the seconds to wait for it."""
        self._paid_at = self._paid_with(amount, now)
        return max(0.0, self._paid_at - now)

    def take_now(self, amount: float, now: float) -> bool:
        """Take an amount if that needs no wait; returns whether it was taken."""
        paid_at = self._paid_with(amount, now)
        if paid_at > now:
            return False
        self._paid_at = paid_at
        return True

    def has(self, amount: float, now: float) -> bool:
        """True if an amount can be taken now."""
        return self._paid_with(amount, now) <= now

    @property
    def paid_at(self) -> float:
        """When everything taken is paid for."""
        return self._paid_at

    def is_whole(self, now: float) -> bool:
        """True if the whole burst is available again."""
        return self._paid_at <= now - self.most / self.per_second
