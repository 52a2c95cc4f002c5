"""Chooses the queue for the next free slot of a worker with several: a server's account of its queues, without I/O.

A queue's virtual time is the worker time that it was given here, divided by its weight: running leases count as they
run, and slots that are reserved for a claim as long as it is under way. Of the queues that wait, the one with the least
is next. Two rules keep that fair:

- A queue that begins to wait starts no lower than the least of those that wait with it, or, if none does, the most of
  all. So a queue without tasks saves nothing up, one that returns is still charged for what it had while others waited,
  and a queue with nothing running gets the next slot that falls free. Nothing is preempted.
- Expected time counts, too: a lease will run for as long as its queue's leases usually do, unless it already has. So
  a queue of long tasks gets no second slot before its first one counts. This only guides: what is charged is the time
  that passes.

A queue in which a tenant has just begun to wait, and for which this server is to act, is served once out of turn: it
gets one slot before those that are further behind, unless it is ahead of them by _SOON of its turns: a lease, or what
it gets in a row. That slot is charged like any other, so it has fewer later.

A queue that is next gets so many short tasks in a row that they fill all slots for GRAIN_S: else each claim of many
queues would bring one. Before any of its tasks has ended it gets one, and counts as the longest of all.

Where workers differ in their queues, one queue's other workers may give it more than the rest can ever have. It leaves
the slots that it shares with them to them, which is fair; but when those other workers have gone, it would wait until
the rest had caught up. So when slots go, and when a weight changes, all accounts start anew.

The partitions of a queue (fairq/store/partitions.py) share its workers just so: each has an account, and the part of
the queue's weight that its competing tenants have. That changes with every claim, and starts nothing anew. Until the
first claim brings it, a partition counts as the mean of the others. Where tenants share tasks and not time, a weight
counts as many times as the partition's tasks are long: so the partitions get as many tasks as their tenants weigh.

The slots of workers with one queue are that queue's own: they are not counted. A server counts what it gave itself.
Each server does so alone: over all servers a queue may be behind by a lease for each.

A queue *waits* from the first notice of work until a claim has found fewer tasks than it asked for. While its claim is
under way, its slots stay free for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heapreplace
from itertools import count

from attrs import define, field

from fairq.model.places import is_partition, queue_of
from fairq.server.engine.dispatch.claiming import SharedPace

_Place = tuple[float, int, str, float, int]  # virtual time, when it began to wait, name, a lease's time, how many a row
GRAIN_S = 0.01
_SHORTEST_S = 0.001  # how long a lease counts at least
_SOON = 1.5
_LATEST = 0.1  # the weight of a queue's latest lease in its usual length


@define(eq=False)
class _Queue:
    """The account of a queue or partition; `vtime` is its virtual time at `moved_at`."""

    weight: float = 1.0
    competing: float = 0.0  # of a partition: the weight of its tenants that compete; 0: not known yet
    vtime: float = 0.0
    moved_at: float = 0.0
    running: int = 0
    starts: float = 0.0  # the sum of the times at which the running leases began
    reserved: int = 0  # slots for which a claim is under way
    is_by_count: bool = False  # of a partition: its tenants share tasks
    waits: int = 0  # since which of all beginnings to wait; 0: it does not wait
    is_soon: bool = False  # it is to be served once out of turn
    sets: list[Sequence[str]] = field(factory=list)  # the queues of each set of workers that serve it
    _mean: float = 0.0  # of the lengths of its leases, the latest counting most
    _square: float = 0.0  # and of their squares

    def at(self, now: float) -> float:
        """Return its virtual time."""
        return self.vtime + (self.running + self.reserved) * (now - self.moved_at) / self.weight

    def move(self, now: float) -> None:
        """Charge the time that has passed."""
        self.vtime, self.moved_at = self.at(now), now

    def _ages(self, now: float) -> float:
        return self.running * now - self.starts

    @property
    def length(self) -> float:
        """How long its leases are on average; 0: unknown."""
        return self._mean

    @property
    def is_known(self) -> bool:
        """True if a lease of it has ended."""
        return self._mean > 0

    def usual_s(self, now: float) -> float:
        """Return how long the lease lasts that runs at a random moment, or has lasted until now; 0: unknown."""
        known = max(self._square / self._mean, _SHORTEST_S) if self._mean else 0.0
        return max(known, self._ages(now) / self.running) if self.running else known

    def expected_vtime(self, now: float, usual_s: float) -> float:
        """Return its virtual time when all tasks that run, or are about to, will have run as long as usual."""
        left = max(0.0, self.running * usual_s - self._ages(now)) + self.reserved * usual_s
        return self.at(now) + left / self.weight

    def charge(self, leases: int, began_at: float, now: float) -> None:
        """Count leases that began at a time as running, or with a negative number no longer."""
        self.move(now)
        self.running += leases
        self.starts = self.starts + leases * began_at if self.running else 0.0
        if leases < 0:
            part, length = (_LATEST if self._mean else 1.0), max(now - began_at, 1e-6)
            self._mean += part * (length - self._mean)
            self._square += part * (length * length - self._square)


def _mean_of(numbers: Iterable[float]) -> float:
    """Return the mean of the known ones, which are not 0; 1 if none is."""
    known = [number for number in numbers if number]
    return sum(known) / len(known) if known else 1.0


@define(eq=False)
class QueueAccounts:
    """The accounts of all queues that share workers of one server, those of partitions by their places.

    `now`: in seconds, and never less than before.
    """

    pace: SharedPace = field(factory=SharedPace, init=False)
    changes: int = field(default=0, init=False)  # how many; an answer from before the last is outdated
    _queues: dict[str, _Queue] = field(factory=dict, init=False)
    _beginnings: count[int] = field(factory=lambda: count(1), init=False)

    def join(self, queues: Sequence[str]) -> None:
        """Add a set of queues that the same workers serve."""
        for name in queues:
            self._queues.setdefault(name, _Queue()).sets.append(queues)

    def leave(self, queues: Sequence[str]) -> None:
        """Remove a set of queues after its last worker has left; queues that share no other workers are forgotten."""
        self.changes += 1
        for name in queues:
            self._queues[name].sets.remove(queues)
            if not self._queues[name].sets:
                del self._queues[name]

    def set_weight(
        self, place: str, weight: float, now: float, competing: float = 0, *, is_by_count: bool = False
    ) -> None:
        """Set a queue's weight; `competing`: that of the tenants of this partition that compete, 0: as before.

        `is_by_count`: these tenants share tasks, not time.
        """
        account = self._queues.get(place)
        if account and is_partition(place):
            account.competing, account.is_by_count = competing or account.competing, is_by_count
            account.move(now)
            account.weight = weight * self.part(place)
        elif account and account.weight != weight:
            account.weight = weight
            self._restart(now)

    def part(self, place: str) -> float:
        """Return which part of its queue's slots a place is to have, 0 to 1."""
        if not is_partition(place) or not (account := self._queues.get(place)):
            return 1.0
        queue = queue_of(place)
        places = {name: each for name, each in self._queues.items() if queue_of(name) == queue}
        weight = _mean_of(each.competing for each in places.values())
        needs = {name: each.competing or weight for name, each in places.items()}
        if account.is_by_count:
            length = _mean_of(each.length for each in places.values())
            needs = {name: need * (places[name].length or length) for name, need in needs.items()}
        return needs[place] / sum(needs.values())

    def shrink(self, queues: Sequence[str], now: float) -> None:
        """Reduce the slots of workers with these queues."""
        if any(len(self._queues[name].sets) > 1 for name in queues):
            self._restart(now)

    def _restart(self, now: float) -> None:
        self.changes += 1
        for each in self._queues.values():
            each.vtime, each.moved_at = 0.0, now

    def charge(self, place: str, leases: int, began_at: float, now: float) -> None:
        """Count leases as running that began at a time, or with a negative number no longer."""
        if account := self._queues.get(place):
            self.changes += 1
            account.charge(leases, began_at, now)

    def reserve(self, place: str, slots: int, now: float) -> None:
        """Set for how many slots a queue's claim is under way; 0: none is."""
        if account := self._queues.get(place):
            self.changes += 1
            account.move(now)
            account.reserved = slots
            account.is_soon = account.is_soon and not slots

    def set_waiting(self, place: str, is_waiting: bool, now: float) -> None:
        """Set whether a queue waits for slots."""
        account = self._queues.get(place)
        if account is None or bool(account.waits) == is_waiting:
            return
        self.changes += 1
        if is_waiting:
            account.move(now)
            beside = [self._queues[name] for names in account.sets for name in names if name != place]
            waiting = [each.at(now) for each in beside if each.waits]
            level = min(waiting) if waiting else max((each.at(now) for each in beside), default=0.0)
            account.vtime = max(account.vtime, level)
        account.waits = next(self._beginnings) if is_waiting else 0
        account.is_soon = False

    def serve_soon(self, place: str) -> None:
        """Serve a queue that waits once out of turn."""
        if (account := self._queues.get(place)) and account.waits:
            self.changes += 1
            account.is_soon = True

    def waiting(self, queues: Iterable[str]) -> list[str]:
        """Return which of these queues wait."""
        return [name for name in queues if self._queues[name].waits]

    def lags(self, queue: str, now: float) -> dict[str, float]:
        """Return by how much worker time each partition of a queue that waits is behind its part, in seconds.

        Together they are 0: those that are ahead have negative ones.
        """
        accounts = {name: each for name, each in self._queues.items() if each.waits and queue_of(name) == queue}
        weight = sum(each.weight for each in accounts.values())
        mean = sum(each.at(now) * each.weight for each in accounts.values()) / weight if accounts else 0.0
        return {name: (mean - each.at(now)) * each.weight for name, each in accounts.items()}

    def divide(self, free: int, slots: int, queues: Sequence[str], now: float) -> dict[str, int]:
        """Divide the free ones of some slots among queues that wait: they go to the one furthest behind by then."""
        accounts = {name: self._queues[name] for name in queues}
        longest_s = max((each.usual_s(now) for each in accounts.values()), default=0.0)
        line = []
        for name, each in accounts.items():
            one_s = (each.usual_s(now) if each.is_known else longest_s) or _SHORTEST_S
            in_a_row = int(slots * GRAIN_S / one_s) if each.is_known else 1
            line.append((each.expected_vtime(now, one_s), each.waits, name, one_s / each.weight, max(1, in_a_row)))
        parts = dict.fromkeys(queues, 0)
        free -= self._take_soon(free, line, parts)
        heapify(line)
        while free > 0 and line:
            by_then, waits, name, one, in_a_row = line[0]
            second = min(line[1:3])[0] if len(line) > 1 else by_then + free * one
            some = min(free, max(int((second - by_then) / one), in_a_row))  # until it is no longer the last
            parts[name] += some
            free -= some
            heapreplace(line, (by_then + some * one, waits, name, one, in_a_row))
        return parts

    def _take_soon(self, free: int, line: list[_Place], parts: dict[str, int]) -> int:
        """Give queues that are to be served out of turn a slot each, those that are further behind first.

        Returns how many slots that takes.
        """
        least, taken = min(line)[0] if line else 0.0, 0
        soon = [(each, n) for n, each in enumerate(line) if self._queues[each[2]].is_soon]
        for (by_then, waits, name, one, in_a_row), n in sorted(soon):
            if taken < free and by_then < least + _SOON * one * in_a_row:
                line[n] = by_then + one, waits, name, one, in_a_row
                parts[name], taken = 1, taken + 1
        return taken
