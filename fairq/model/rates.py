"""Rate limits that are kept in one number. The caller brings the time."""

from __future__ import annotations

import math

from attrs import define, field

MAX_KNOWN = 10_000  # names that are remembered


@define(eq=False)
class Rate:
    """A rate limit with a burst of `most` (GCRA: keeps the time at which everything taken is paid for)."""

    per_second: float
    most: float
    paid_at: float = field(default=-math.inf, init=False)  # when everything taken is paid for

    def take(self, amount: float, now: float) -> float:
        """Take an amount; returns the seconds to wait for it."""
        self.paid_at = paid_at = max(self.paid_at, now - self.most / self.per_second) + amount / self.per_second
        return paid_at - now if paid_at > now else 0.0

    def has_one(self, now: float) -> bool:
        """True if one can be taken without a wait; `most` is at least one."""
        return self.paid_at + 1 / self.per_second <= now

    def take_one(self, now: float) -> bool:
        """Take one if that needs no wait; returns whether it was taken."""
        is_there = self.has_one(now)
        if is_there:
            self.take(1, now)
        return is_there

    def is_whole(self, now: float) -> bool:
        """True if the whole burst is available again."""
        return self.paid_at <= now - self.most / self.per_second


@define(eq=False)
class Rates:
    """A rate for each of many names, such as addresses; of over MAX_KNOWN those that are whole are forgotten."""

    per_second: float
    most: float
    _known: dict[str, Rate] = field(factory=dict, init=False)

    def __len__(self) -> int:
        return len(self._known)

    def of(self, name: str, now: float) -> Rate:
        """Return the rate of a name."""
        if len(self._known) >= MAX_KNOWN:
            self.forget_whole(now)
        return self._known.setdefault(name, Rate(self.per_second, self.most))

    def forget_whole(self, now: float) -> None:
        """Forget the rates that were not used lately."""
        self._known = {name: rate for name, rate in self._known.items() if not rate.is_whole(now)}

    def spent(self, now: float) -> list[str]:
        """Name those that have to wait now."""
        self.forget_whole(now)
        return [name for name, rate in self._known.items() if not rate.has_one(now)]
