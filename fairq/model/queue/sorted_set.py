"""Members by score, as the store's sorted sets have them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from typing import TypeVar

Member = TypeVar("Member", bound=str | bytes)


class SortedSet(dict[Member, float]):
    """The score of each member; set by `[]` only, so that the first ones are found without a look at all."""

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[float, Member]] = []  # some have left, or have other scores by now

    def __setitem__(self, member: Member, score: float) -> None:
        if self.get(member) != score:
            heapq.heappush(self._heap, (score, member))
            super().__setitem__(member, score)

    def first(self, limit: int, highest: float = math.inf) -> list[Member]:
        """List the members up to a score, lowest first, at most `limit`."""
        found: list[tuple[float, Member]] = []
        while len(found) < limit and self.lowest <= highest and self._heap:
            entry = heapq.heappop(self._heap)
            if entry not in found[-1:]:  # it may have left and come back
                found.append(entry)
        for entry in found:
            heapq.heappush(self._heap, entry)
        return [member for _, member in found]

    @property
    def lowest(self) -> float:
        """The lowest score; infinite if there is no member."""
        while self._heap and self.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf


def first_by_score(scores: Mapping[Member, float], limit: int, highest: float = math.inf) -> list[Member]:
    """List the members of a few up to a score, lowest first, at most `limit`."""
    due = sorted((score, member) for member, score in scores.items() if score <= highest)
    return [member for _, member in due[:limit]]
