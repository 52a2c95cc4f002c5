"""A worker's slots between its queues: worker time by weight, and no slot idle while any queue has work."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from itertools import product

import pytest

from fairq.server.dispatch.slots import Slots


class Mill:
    """A worker whose tasks take as long as their queue says; all that is ready may be taken at once."""

    def __init__(self, weights: dict[str, float], credit: int, seconds: dict[str, float]) -> None:
        self.now = 0.0
        self.credit, self.seconds = credit, seconds
        self.ready: Counter[str] = Counter()
        self.running: list[tuple[float, int, str]] = []
        self.given: Counter[str] = Counter()
        self.worked: dict[str, float] = dict.fromkeys(weights, 0.0)
        self.slots = Slots(weights, lambda queue: self.ready[queue] > 0, lambda: self.now)
        self.random_values = random.Random(1)
        self.number = 0

    def fill(self) -> None:
        """Let queues claim, in any order, until no slot is free or nothing is ready."""
        while free := self.credit - len(self.running):
            waiting = [queue for queue in self.ready if self.ready[queue]]
            if not waiting:
                return
            self.random_values.shuffle(waiting)
            for queue in waiting:
                share = min(self.slots.share(queue, free), self.ready[queue])
                if share:
                    self.slots.reserve(queue, share)
                    self.slots.unreserve(queue)
                    self.take(queue, share)
                    break
            else:
                raise AssertionError("a slot is free and tasks wait, but nobody may take it")

    def take(self, queue: str, count: int) -> None:
        """Begin tasks."""
        for _ in range(count):
            self.number += 1
            self.ready[queue] -= 1
            self.given[queue] += 1
            self.slots.began(queue, [str(self.number)])
            took = self.seconds[queue] * self.random_values.uniform(0.5, 1.5)
            heapq.heappush(self.running, (self.now + took, self.number, queue))
            self.worked[queue] += took

    def step(self) -> None:
        """Let the next task end."""
        self.now, number, queue = heapq.heappop(self.running)
        self.slots.ended((queue, str(number)))
        self.fill()

    def held(self, queue: str) -> float:
        """The slot seconds that a queue has had, up to now."""
        ahead = sum(at - self.now for at, _, each in self.running if each == queue)
        return self.worked[queue] - ahead

    def run(self, tasks: int, **ready: int) -> None:
        """Work until so many tasks have ended; `ready` tasks are put in first."""
        self.ready.update(ready)
        self.fill()
        for _ in range(tasks):
            self.step()


def test_worker_time_goes_by_weight_whatever_the_tasks_take() -> None:
    for credit, seconds in product((1, 3, 40), ((1, 1), (0.1, 2), (2, 0.1))):
        mill = Mill({"a": 3, "b": 1}, credit, dict(zip("ab", seconds, strict=True)))
        mill.run(2_000, a=10**6, b=10**6)
        assert mill.worked["a"] / mill.worked["b"] == pytest.approx(3, rel=0.1), (credit, seconds)


def test_many_queues_share_by_weight() -> None:
    weights = {f"q{n}": n + 1.0 for n in range(10)}
    mill = Mill(weights, 7, dict.fromkeys(weights, 0.5))
    mill.run(3_000, **dict.fromkeys(weights, 10**6))
    total = sum(mill.worked.values())
    for queue, weight in weights.items():
        assert mill.worked[queue] / total == pytest.approx(weight / 55, rel=0.1)


def test_slots_are_shared_from_the_first_moment_on() -> None:
    mill = Mill({"a": 3, "b": 1}, 40, {"a": 5, "b": 5})
    mill.run(0, a=100, b=100)
    assert (mill.given["a"], mill.given["b"]) == (30, 10)


def test_one_queue_has_all_slots_while_the_other_has_no_work() -> None:
    mill = Mill({"a": 3, "b": 1}, 8, {"a": 1, "b": 1})
    mill.run(0, b=8)
    assert mill.given["b"] == 8


def test_short_tasks_first_do_not_buy_long_ones_a_larger_share() -> None:
    mill = Mill({"a": 1, "b": 1}, 10, {"a": 0.1, "b": 0.001})
    mill.run(2_000, a=10**6, b=1000)
    mill.seconds["b"] = 15
    mill.ready["b"] = 1000
    began, held = mill.now, mill.held("b")
    while mill.now < began + 60:
        mill.step()
    share = (mill.held("b") - held) / (10 * (mill.now - began))
    assert share == pytest.approx(0.5, abs=0.1)


def test_a_queue_that_was_idle_banks_nothing() -> None:
    mill = Mill({"a": 1, "b": 1}, 4, {"a": 1, "b": 1})
    mill.run(2_000, a=10**6)
    worked = mill.worked["a"]
    mill.run(400, b=10**6)
    assert mill.worked["a"] - worked == pytest.approx(mill.worked["b"], rel=0.1)


def test_what_a_claim_did_not_bring_is_not_charged() -> None:
    slots = Slots({"a": 1, "b": 1}, lambda queue: True, lambda: 0.0)
    before = slots.share("a", 4)
    slots.reserve("a", 4)
    assert slots.share("a", 4) < before
    slots.unreserve("a")
    slots.unreserve("a")
    assert slots.share("a", 4) == before


def test_a_task_that_was_not_begun_here_is_not_charged() -> None:
    slots = Slots({"a": 1, "b": 1}, lambda queue: True, lambda: 0.0)
    slots.ended(("a", "brought along"))
    assert (slots.share("a", 4), slots.share("b", 4)) == (2, 2)
