"""Workers of several queues in virtual time, as the server's account of its queues has their slots divided."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, repeat

from attrs import define, field

from fairq.server.engine.dispatch.queue_accounts import QueueAccounts

CLAIM_S = 0.001  # how long a claim takes


@define(eq=False)
class Queue:
    """Tasks of these lengths (s), one after the other; `tasks`: how many there are (None: always more)."""

    lengths: Iterator[float]
    tasks: int | None = None
    given_s: float = field(default=0.0, init=False)
    running: int = field(default=0, init=False)
    claiming: int = field(default=0, init=False)  # slots for which a claim is under way
    starts: list[float] = field(factory=list, init=False)  # when its tasks began
    ends: list[float] = field(factory=list, init=False)


@define(eq=False)
class Workers:
    """So many slots of workers with the same queues."""

    names: Sequence[str]
    slots: int
    used: int = field(default=0, init=False)


@define(eq=False)
class Slots:
    """Workers and queues; `run` goes on in time."""

    queues: Mapping[str, Queue]
    workers: Sequence[Workers]
    claim_s: float = CLAIM_S
    accounts: QueueAccounts = field(factory=QueueAccounts, init=False)
    now: float = field(default=0.0, init=False)
    idle_s: float = field(default=0.0, init=False)  # slots x s, while there were tasks
    _events: list[tuple[float, int, Callable[[], None]]] = field(factory=list, init=False)
    _numbers: count[int] = field(factory=count, init=False)

    def __attrs_post_init__(self) -> None:
        for each in self.workers:
            self.accounts.join(each.names)
        for name, queue in self.queues.items():
            self.accounts.set_waiting(name, queue.tasks != 0, 0.0)

    def at(self, time: float, what: Callable[[], None]) -> None:
        """Do something at a time."""
        heapq.heappush(self._events, (time, next(self._numbers), what))

    def add(self, name: str, tasks: int) -> None:
        """Enqueue tasks."""
        queue = self.queues[name]
        assert queue.tasks is not None
        queue.tasks += tasks
        self.accounts.set_waiting(name, True, self.now)

    def run(self, until: float) -> None:
        """Go on until a time."""
        self._decide()
        while self._events and self._events[0][0] <= until:
            time, _, what = heapq.heappop(self._events)
            self._pass(time)
            what()
            while self._events and self._events[0][0] == time:
                heapq.heappop(self._events)[2]()
            self._decide()
        self._pass(until)

    def _pass(self, time: float) -> None:
        for queue in self.queues.values():
            queue.given_s += (queue.running + queue.claiming) * (time - self.now)
        for each in self.workers:
            if any(self.queues[name].tasks != 0 for name in each.names):
                self.idle_s += (each.slots - each.used) * (time - self.now)
        self.now = time

    def _decide(self) -> None:
        for each in self.workers:
            waiting = self.accounts.waiting(each.names)
            if each.used >= each.slots or not waiting:
                continue
            parts, _ = self.accounts.divide(each.slots - each.used, each.slots, waiting, self.now)
            for name, slots in parts.items():
                queue = self.queues[name]
                if slots and not queue.claiming:
                    queue.claiming = slots
                    self.accounts.reserve(name, slots, self.now)
                    each.used += slots
                    self.at(self.now + self.claim_s, partial(self._claimed, each, name, slots))

    def _claimed(self, workers: Workers, name: str, slots: int) -> None:
        queue = self.queues[name]
        tasks = slots if queue.tasks is None else min(slots, queue.tasks)
        queue.claiming = 0
        self.accounts.reserve(name, 0, self.now)
        workers.used -= slots - tasks
        if tasks < slots:
            self.accounts.set_waiting(name, False, self.now)
        if queue.tasks is not None:
            queue.tasks -= tasks
        for _ in range(tasks):
            began = self.now
            queue.running += 1
            queue.starts.append(began)
            self.accounts.charge(name, 1, began, began)

            def end(began: float = began) -> None:
                queue.running -= 1
                queue.ends.append(self.now)
                workers.used -= 1
                self.accounts.charge(name, -1, began, self.now)

            self.at(self.now + next(queue.lengths), end)


def always(length_s: float) -> Iterator[float]:
    """Return the lengths of tasks that are all as long."""
    return repeat(length_s)
