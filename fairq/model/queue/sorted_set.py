"""Members by score, as the store's sorted sets have them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from typing import TypeVar

STEP, SPREAD_MS = 2**-10, 16  # between the scores of tasks with one start; the ms that they may spread over

Member = TypeVar("Member", bound=str | bytes)


class SortedSet(dict[Member, float]):
    """The score of each member; set by `[]` only, so that a heap finds the first ones."""

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


class Delayed(SortedSet[str]):
    """Delayed tasks by their start in ms, and a fraction for the order in which those of one start came."""

    def __init__(self) -> None:
        super().__init__()
        self._of_ms: dict[int, list[tuple[float, str]]] = {}  # heaps of negative scores; some have left

    def __setitem__(self, id: str, score: float) -> None:
        super().__setitem__(id, score)
        heapq.heappush(self._of_ms.setdefault(math.floor(score), []), (-score, id))

    def next_score(self, start_at: int) -> float:
        """Return the score of a task of that start."""
        score: float = start_at
        for ms in range(start_at, start_at + SPREAD_MS):
            last = self._last_within(ms)
            score = ms if last is None else last + STEP
            if score < ms + 1:
                break
        return score

    @property
    def first_at(self) -> float:
        """When the first of them starts; infinite if there is none."""
        lowest = self.lowest
        return lowest if lowest == math.inf else math.floor(lowest)

    def due(self, limit: int, now: float) -> list[str]:
        """List those that start by now, in their order, at most `limit`."""
        return self.first(limit, math.floor(now) + 1 - STEP)

    def _last_within(self, ms: int) -> float | None:
        heap = self._of_ms.get(ms, [])
        while heap and self.get(heap[0][1]) != -heap[0][0]:
            heapq.heappop(heap)
        if not heap:
            self._of_ms.pop(ms, None)
            return None
        return -heap[0][0]


def first_by_score(scores: Mapping[Member, float], limit: int, highest: float = math.inf) -> list[Member]:
    """List the members of a few up to a score, lowest first, at most `limit`."""
    due = sorted((score, member) for member, score in scores.items() if score <= highest)
    return [member for _, member in due[:limit]]
