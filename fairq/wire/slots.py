"""A worker's slots, shared out between its queues by weight: in worker time, as `claim` does between tenants.

A queue's virtual time is the seconds that it got, divided by its weight. A free slot goes to the queue with the lowest,
among those that may have work; none is kept for a queue that has none. A task counts with the mean of its queue's tasks
while it runs, and with what it took when it has ended. A queue without work banks nothing: its virtual time is lifted
to the lowest of those that have some, less what runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping

from attrs import define, field

_FIRST_MEAN_S, _LEAST_S = 0.1, 0.0001
_NEWEST = 0.1  # what the newest task counts in the mean


@define(eq=False)
class Slots:
    """One worker's account with its queues. `has_work(queue)`: whether it may have work."""

    weights: Mapping[str, float]
    has_work: Callable[[str], bool]
    _times: dict[str, float] = field(factory=dict, init=False)
    _means: dict[str, float] = field(factory=dict, init=False)
    _reserved: dict[str, float] = field(factory=dict, init=False)  # charged for the claim under way
    _charged: dict[str, float] = field(factory=dict, init=False)  # for the tasks that run
    _running: dict[tuple[str, str], tuple[float, float]] = field(factory=dict, init=False)  # since when; charged

    def __attrs_post_init__(self) -> None:
        self._times, self._means = dict.fromkeys(self.weights, 0.0), dict.fromkeys(self.weights, _FIRST_MEAN_S)
        self._charged = dict.fromkeys(self.weights, 0.0)

    def share(self, queue: str, free: int) -> int:
        """Tell how many of the free slots are a queue's, which has work."""
        line = [(self._times[each], each) for each in self.weights if each == queue or self.has_work(each)]
        heapq.heapify(line)
        waiting = {each for _, each in line}
        lowest = min(at - self._charged[each] for at, each in line)
        for each in self._times.keys() - waiting:
            self._times[each] = max(self._times[each], lowest)
        share = 0
        for _ in range(free):
            at, each = line[0]
            share += each == queue
            heapq.heapreplace(line, (at + self._cost(each), each))
        return share

    def _cost(self, queue: str) -> float:
        return self._means[queue] / self.weights[queue]

    def reserve(self, queue: str, count: int) -> None:
        """Charge a queue for a claim, of which it has one at a time."""
        self._reserved[queue] = count * self._cost(queue)
        self._times[queue] += self._reserved[queue]

    def unreserve(self, queue: str) -> None:
        """Take the charge back."""
        self._times[queue] -= self._reserved.pop(queue, 0.0)

    def began(self, queue: str, ids: Iterable[str], now: float) -> None:
        """Charge a queue for tasks that begin."""
        cost = self._cost(queue)
        for id in ids:
            self._running[queue, id] = (now, cost)
            self._times[queue] += cost
            self._charged[queue] += cost

    def ended(self, token: tuple[str, str], now: float) -> None:
        """Put a task's charge right, if it was charged."""
        since, charged = self._running.pop(token, (now, None))
        if charged is not None:
            queue, took = token[0], max(_LEAST_S, now - since)
            self._charged[queue] -= charged
            self._times[queue] += took / self.weights[queue] - charged
            self._means[queue] += _NEWEST * (took - self._means[queue])
