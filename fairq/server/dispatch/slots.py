"""Divides a worker's slots between its queues by weight: in worker time, as `claim` does between tenants.

A queue's virtual time is the seconds that it got, divided by its weight; its tasks count while they run (the account of
lua/pick/accounts.lua). A free slot goes to the queue with the lowest virtual time among those that may have work; there
each running task counts as at least its expected time. No slot is kept for a queue without work. A queue without work
saves nothing up: its virtual time is raised to the lowest one of the queues that have work.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping

from attrs import define, field

_FIRST_MEAN_S, _LEAST_S = 0.1, 0.0001
_NEWEST = 0.1  # the weight of the newest task in the means


@define(eq=False)
class _Account:
    """One queue's part of a worker: `base` and `starts` as in lua/pick/accounts.lua, times in seconds."""

    weight: float
    base: float = 0.0
    running: int = 0
    starts: float = 0.0
    reserved: int = 0  # slots set aside for the claim under way
    mean: float = _FIRST_MEAN_S
    mean_sq: float = _FIRST_MEAN_S**2

    @property
    def expected(self) -> float:
        """The expected whole time (s) of a task that is running now: the mean over worker time."""
        return self.mean_sq / self.mean

    def age(self, now: float) -> float:
        """Add up how long the tasks have run."""
        return self.running * now - self.starts

    def time(self, now: float) -> float:
        """Return the virtual time."""
        return self.base + self.age(now) / self.weight

    def tentative(self, now: float) -> float:
        """Return the virtual time that decides on a slot, with the expected time of running and reserved tasks."""
        return (
            self.base + (max(self.running * self.expected, self.age(now)) + self.reserved * self.expected) / self.weight
        )

    def end(self, since: float, took: float) -> None:
        """Book the end of a task."""
        self.running, self.starts, self.base = self.running - 1, self.starts - since, self.base + took / self.weight
        self.mean += _NEWEST * (took - self.mean)
        self.mean_sq += _NEWEST * (took * took - self.mean_sq)


@define(eq=False)
class Slots:
    """One worker's account with its queues. `has_work(queue)`: whether it may have work; `clock()`: seconds."""

    weights: Mapping[str, float]
    has_work: Callable[[str], bool]
    clock: Callable[[], float]
    _accounts: dict[str, _Account] = field(factory=dict, init=False)
    _running: dict[tuple[str, str], float] = field(factory=dict, init=False)  # since when

    def __attrs_post_init__(self) -> None:
        self._accounts = {queue: _Account(weight) for queue, weight in self.weights.items()}

    def share(self, queue: str, free: int) -> int:
        """Return how many of the free slots go to a queue that has work."""
        now = self.clock()
        waiting = {each for each in self.weights if each == queue or self.has_work(each)}
        lowest = min(self._accounts[each].time(now) for each in waiting)
        for each in self._accounts.keys() - waiting:
            account = self._accounts[each]
            account.base += max(0.0, lowest - account.time(now))
        line = [(self._accounts[each].tentative(now), each) for each in waiting]
        heapq.heapify(line)
        share = 0
        for _ in range(free):
            at, each = line[0]
            share += each == queue
            account = self._accounts[each]
            heapq.heapreplace(line, (at + account.expected / account.weight, each))
        return share

    def reserve(self, queue: str, count: int) -> None:
        """Reserve slots for a queue's claim; a queue has one claim at a time."""
        self._accounts[queue].reserved = count

    def unreserve(self, queue: str) -> None:
        """Free the slots reserved for a queue's claim."""
        self._accounts[queue].reserved = 0

    def began(self, queue: str, ids: Iterable[str]) -> None:
        """Note that tasks of a queue start."""
        now, account = self.clock(), self._accounts[queue]
        for id in ids:
            self._running[queue, id] = now
            account.running += 1
            account.starts += now

    def ended(self, token: tuple[str, str]) -> None:
        """Charge a task's time to its queue, if the task began here."""
        since = self._running.pop(token, None)
        if since is not None:
            self._accounts[token[0]].end(since, max(_LEAST_S, self.clock() - since))
