"""An account that is charged for slots, and the division of free slots among several accounts.

queue_accounts.py has the theory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace

from attrs import define, field

_Place = tuple[float, int, str, float, int]  # virtual time, when it began to wait, name, a lease's time, how many a row
GRAIN_S = 0.01
_SHORTEST_S = 0.001  # how long a lease counts at least
_SOON = 1.5
_LATEST = 0.1  # the weight of a queue's latest lease in its usual length


@define(eq=False)
class Account:
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
    guaranteed: int = 0  # of a partition: leases within guarantees, which its account is not charged for
    owed: int = 0  # how many more are due in it
    given: int = 0  # of a queue with partitions: how many slots it was given
    is_exempt: bool = False  # all tenants that wait in it are within their guarantees
    sets: list[Sequence[str]] = field(factory=list)  # the queues of each set of workers that serve it
    _mean: float = 0.0  # of the lengths of its leases, the latest counting most
    _square: float = 0.0  # and of their squares

    def at(self, now: float) -> float:
        """Return its virtual time."""
        return self.vtime + (self.running + self.reserved) * (now - self.moved_at) / self.weight

    def move(self, now: float) -> None:
        """Charge the time that has passed."""
        self.vtime, self.moved_at = self.at(now), now

    def raise_to(self, vtime: float, now: float) -> None:
        """Let its virtual time be no less than this."""
        self.move(now)
        self.vtime = max(self.vtime, vtime)

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
            self.learn(max(now - began_at, 1e-6))

    def note_guaranteed(self, leases: int, began_at: float, now: float) -> None:
        """Count leases within guarantees, for which the whole queue pays; one that ends is due again."""
        self.guaranteed += leases
        if leases < 0:
            self.owed -= leases
            self.learn(max(now - began_at, 1e-6))

    def learn(self, length: float) -> None:
        """Note how long a lease was."""
        part = _LATEST if self._mean else 1.0
        self._mean += part * (length - self._mean)
        self._square += part * (length * length - self._square)


def share_owed(free: int, accounts: Mapping[str, Account]) -> Counter[str]:
    """Divide slots among partitions with tenants below their guarantees: they go to the one that has the fewest."""
    parts = Counter[str]()
    for _ in range(free):
        due = [place for place, each in accounts.items() if each.owed > parts[place]]
        if not due:
            break
        parts[min(due, key=lambda place: accounts[place].guaranteed + parts[place])] += 1
    return parts


def share(free: int, slots: int, accounts: Mapping[str, Account], now: float) -> dict[str, int]:
    """Divide the free ones of some slots among accounts: they go to the one furthest behind by then."""
    longest_s = max((each.usual_s(now) for each in accounts.values()), default=0.0)
    least = min((each.at(now) for each in accounts.values() if not each.is_exempt), default=0.0)
    line = []
    for name, each in accounts.items():
        one_s = (each.usual_s(now) if each.is_known else longest_s) or _SHORTEST_S
        in_a_row = int(slots * GRAIN_S / one_s) if each.is_known else 1
        by_then = each.expected_vtime(now, one_s)
        if each.is_exempt:
            by_then = max(by_then, least) + each.guaranteed * one_s / 2 / each.weight  # half of each is left
        line.append((by_then, each.waits, name, one_s / each.weight, max(1, in_a_row)))
    parts = dict.fromkeys(accounts, 0)
    free -= _take_soon(free, line, accounts, parts)
    heapify(line)
    while free > 0 and line:
        by_then, waits, name, one, in_a_row = line[0]
        second = min(line[1:3])[0] if len(line) > 1 else by_then + free * one
        some = min(free, max(int((second - by_then) / one), in_a_row))  # until it is no longer the last
        parts[name] += some
        free -= some
        heapreplace(line, (by_then + some * one, waits, name, one, in_a_row))
    return parts


def _take_soon(free: int, line: list[_Place], accounts: Mapping[str, Account], parts: dict[str, int]) -> int:
    """Give queues that are to be served out of turn a slot each, those that are further behind first.

    Returns how many slots that takes.
    """
    least, taken = min(line)[0] if line else 0.0, 0
    soon = [(each, n) for n, each in enumerate(line) if accounts[each[2]].is_soon]
    for (by_then, waits, name, one, in_a_row), n in sorted(soon):
        if taken < free and by_then < least + _SOON * one * in_a_row:
            line[n] = by_then + one, waits, name, one, in_a_row
            parts[name], taken = 1, taken + 1
    return taken
