"""Pauses of a client: it holds back frames of a kind and queue that the server refused for now; others go on.

A pause grows with each refusal in a row. Refusals during it have the same cause and change nothing.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable

from attrs import define, field

Key = tuple[str, ...]  # kind of frame, queue, and which of its tenants
REMEMBERED_S = 60.0  # how long a refusal counts; longer than any pause


@define(eq=False)
class Pauses:
    """The pauses of a client; `seconds(refusals, retry_in_ms)` returns the length of one.

    It remembers only the keys that were refused in the last REMEMBERED_S.
    """

    seconds: Callable[[int, int | None], float]
    has_any: bool = field(default=False, init=False)  # frames are held back, or were refused when last answered
    _until: dict[Key, float] = field(factory=dict, init=False)
    _ends: list[tuple[float, Key]] = field(factory=list, init=False)  # the same, as a heap
    _refusals: OrderedDict[Key, tuple[int, float]] = field(factory=OrderedDict, init=False)  # in a row; when the last

    def begin(self, key: Key, now: float, retry_in_ms: int | None) -> None:
        """Begin a pause after a refusal, unless there is one."""
        if key in self._until:
            return
        while self._refusals and next(iter(self._refusals.values()))[1] <= now - REMEMBERED_S:
            self._refusals.popitem(last=False)
        refusals = self._refusals.pop(key, (0, now))[0] + 1
        self._refusals[key] = refusals, now
        self._until[key] = until = now + self.seconds(refusals, retry_in_ms)
        heapq.heappush(self._ends, (until, key))
        self.has_any = True

    def served(self, key: Key) -> None:
        """Reset the length of the next pause after an answer, unless part of it began one."""
        if key not in self._until:
            self._refusals.pop(key, None)
        self.has_any = bool(self._refusals or self._until)

    def end(self, now: float) -> None:
        """End the pauses that are over."""
        while self._ends and self._ends[0][0] <= now:
            del self._until[heapq.heappop(self._ends)[1]]
        self.has_any = bool(self._refusals or self._until)

    def until(self, key: Key) -> float | None:
        """Return when the pause of these frames ends, if there is one."""
        return self._until.get(key)

    def refusals(self, key: Key) -> int:
        """Return how many times in a row these frames were refused, each after a pause."""
        return self._refusals[key][0] if key in self._refusals else 0

    def deadline(self) -> float:
        """Return when the next pause ends."""
        return self._ends[0][0] if self._ends else float("inf")
