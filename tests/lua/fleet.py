"""Workers and tenants as an event loop on the test clock, over the real library: who gets what of the worker time."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .calls import Queue, random_values

Length = Callable[[int, random.Random], float]  # of a tenant's task of this number, in ms


def about(ms: float) -> Length:
    """Tasks that take so long, ten per cent more or less."""
    return lambda _, source: ms * source.uniform(0.9, 1.1)


@dataclass(eq=False)
class Sender:
    """A tenant of the fleet: how long its tasks take, and what it has got so far."""

    name: str
    length: Length
    weight: float = 1
    ends: str = "ack"  # how its leases end; `nack` with no delay gives them back at once
    endless: bool = False
    queued: int = 0
    started: int = 0
    served: float = 0
    running: dict[str, float] = field(default_factory=dict)  # id -> when it began
    arrived: deque[float] = field(default_factory=deque)  # when the tasks that wait did; not of an endless one
    waits: list[float] = field(default_factory=list)

    def held(self, now: float) -> float:
        """Return the worker time that it has had, up to now."""
        return self.served + sum(now - began for began in self.running.values())


class Fleet:
    """So many slots, which claim whenever one is free. Claims say how many there are, or `claimed_slots`, in turn."""

    def __init__(self, queue: Queue, slots: int, seed: int = 0, claimed_slots: Sequence[int] = ()) -> None:
        self.queue, self.slots, self.random = queue, slots, random.Random(seed)
        self.claimed_slots = itertools.cycle(claimed_slots)
        self.seeds = itertools.count(seed * 1_000_003)
        self.senders: dict[str, Sender] = {}
        self.events: list[tuple[int, int, Sender, str, int]] = []  # at, order, of whom, id ("": an arrival), attempt
        self.order = itertools.count()
        self.began = queue.now
        self.free = slots
        self.honest: list[Sender] = []  # the lags of these are followed
        self.lowest: dict[str, float] = {}
        self.worst_lag = 0.0
        queue.configure(lease_ms=86_400_000, max_attempts=1000)

    @property
    def now(self) -> int:
        """Ms since the beginning."""
        return self.queue.now - self.began

    def tenant(
        self, name: str, length: Length, ready: int = 0, at: int = 0, *, weight: float = 1, endless: bool = False,
        ends: str = "ack", **limits: float,
    ) -> Sender:  # fmt: skip
        """Add a tenant with so many tasks from then on, or without end."""
        sender = self.senders[name] = Sender(name, length, weight, ends, endless)
        if weight != 1:
            self.queue.call("set_weight", name, round(weight * 1000))
        if limits:
            self.queue.set_limits(name, **limits)
        if ready or endless:
            self.arrive(at, sender, ready)
        return sender

    def arrive(self, at: int, sender: Sender, count: int) -> None:
        """Have tasks come at a time."""
        heapq.heappush(self.events, (at, next(self.order), sender, "", count))

    def arrive_by_chance(self, sender: Sender, mean: float, since: int, until: int) -> None:
        """Have a task come now and then."""
        at: float = since
        while (at := at + self.random.expovariate(1 / mean)) < until:
            self.arrive(round(at), sender, 1)

    def resize(self, slots: int) -> None:
        """Have workers come or go; those that go finish what they have."""
        self.free, self.slots = self.free + slots - self.slots, slots
        self.claim()
        self.queue.tick()
        self.claim()

    def keep(self, percent: int) -> None:
        """Set the reserve."""
        self.queue.configure(reserve=percent)
        self.queue.tick()
        self.claim()

    def enqueue(self, sender: Sender, count: int) -> None:
        numbers = range(sender.started + sender.queued, sender.started + sender.queued + count)
        for first in range(0, count, 500):
            self.queue.enqueue(sender.name, *(f"{sender.name}/{n}" for n in numbers[first : first + 500]))
        sender.queued += count
        if not sender.endless:
            sender.arrived.extend([self.now] * count)

    def claim(self) -> None:
        """Fill the free slots."""
        for sender in self.senders.values():
            if sender.endless and (sender.started or sender.queued) and sender.queued < self.slots:
                self.enqueue(sender, 20 * self.slots)
        if self.free <= 0:
            return
        rolled = random_values(next(self.seeds), 80 * self.free + 80)
        for lease in self.queue.claim(self.free, rolled=rolled, slots=next(self.claimed_slots, self.slots)):
            sender = self.senders[lease.id.split("/")[0]]
            number = int(lease.id.split("/")[1])
            took = max(1, round(sender.length(number, self.random)))
            sender.queued, sender.started, self.free = sender.queued - 1, sender.started + 1, self.free - 1
            sender.running[lease.id] = self.now
            if sender.arrived:
                sender.waits.append(self.now - sender.arrived.popleft())
            heapq.heappush(self.events, (self.now + took, next(self.order), sender, lease.id, lease.lease))

    def follow_lags(self) -> None:
        """From now on follow by how much tenants that always wait get less than their share of all tenants' weights.

        `worst_lag` is the largest such deficit over any window, in ms of worker time.
        """
        self.honest = [sender for sender in self.senders.values() if sender.endless]
        self.lowest = {sender.name: self.lag(sender) for sender in self.honest}

    def lag(self, sender: Sender) -> float:
        """Return a tenant's due since the beginning, less what it has had."""
        weights = sum(each.weight for each in self.senders.values())
        return self.now * self.slots * sender.weight / weights - sender.held(self.now)

    def note_lags(self) -> None:
        """See how far behind the followed tenants are."""
        for sender in self.honest:
            lag = self.lag(sender)
            self.lowest[sender.name] = min(self.lowest[sender.name], lag)
            self.worst_lag = max(self.worst_lag, lag - self.lowest[sender.name])

    def run(self, until: int) -> None:
        """Let time pass up to then."""
        self.claim()
        while self.events and self.events[0][0] <= until:
            self.queue.now = self.began + self.events[0][0]
            self.note_lags()
            ended = []
            while self.events and self.events[0][0] <= self.now:
                _, _, sender, id, count = heapq.heappop(self.events)
                if not id:
                    self.enqueue(sender, count or 20 * self.slots)
                    continue
                ended.append((sender.ends, id, count, 0 if sender.ends == "nack" else ""))
                sender.served += self.now - sender.running.pop(id)
                sender.queued += sender.ends in ("nack", "release")
                self.free += 1
            if ended:
                assert set(self.queue.settle(*ended)) == {"ok"}
            self.claim()
        self.queue.now = self.began + until

    def share(self, sender: Sender, seconds: float) -> float:
        """Return how many slots the tenant holds on average for so long from now on."""
        began, before = self.now, sender.held(self.now)
        self.run(began + round(1000 * seconds))
        return (sender.held(self.now) - before) / (self.now - began)
