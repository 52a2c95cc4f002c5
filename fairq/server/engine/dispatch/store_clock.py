"""The store's clock, as a server reads it between two claims."""

from __future__ import annotations

import trio
from attrs import define, field


@define(eq=False)
class StoreClock:
    """The store's time, by the last answer that said it."""

    _ahead_ms: float = field(default=0.0, init=False)  # of this process's clock

    def set(self, now_ms: int, now: float) -> None:
        """Note the store's time at a time of this process."""
        self._ahead_ms = now_ms - now * 1000

    @property
    def now_ms(self) -> int:
        """The store's time now."""
        return round(self._ahead_ms + trio.current_time() * 1000)
