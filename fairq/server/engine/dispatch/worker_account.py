"""A worker's account at its server: how many tasks it may hold, the leases it holds, and when they expire."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import define, evolve, field

from fairq.model.places import queue_of
from fairq.model.tasks import Lease, Settlement
from fairq.server.engine.dispatch.running_alone import Line

TaskKey = tuple[str, str]  # queue, and a task's full id
OVER_S = 1.0  # a lease counts from when its worker has it: how long it may be on its way
_NEVER = float("inf")


@define(eq=False)
class Terms:
    """The terms of leases that came together: how long they last (0: unknown), when they expire and began."""

    lasts_s: float
    over_at: float = _NEVER
    began_at: float = 0.0
    taken: int = 0  # how often they were taken over
    is_pushed: bool = True  # here, in the order of the account's leases
    has_progress: bool = False  # which was reported
    place: str = ""  # where its tasks are; empty: unknown, and nothing is charged for it
    is_guaranteed: bool = False  # they are within the guarantees of their tenants


Charge = Callable[[Terms, int], None]
Ended = tuple[int, Terms]  # a lease: its number and its terms


@define(eq=False)
class WorkerAccount:
    """The number of leases that a worker may hold, and the leases it holds.

    `credit`: how many leases it may hold; `prefetch`: how many of these it may hold without having begun them; `held`:
    the numbers of those it holds, by queue and id, and `terms` likewise; `reserved`: how many a claim under way may
    bring. `owners` is shared by all accounts of a server: it maps a task to the owner of the account with its lease
    (`owner` is this account's). A lease that is neither settled nor renewed within its time plus OVER_S leaves the
    account by itself, and `is_freed` is set. `charge(terms, leases)`, if there is one, is called with the number of
    leases that begin, and with -1 for each that ends. Leases that the worker has settled, but the store has not,
    take no room, as many as it has credit: their primary may be away for long.
    """

    credit: int = 0
    owner: Any = None
    owners: dict[TaskKey, Any] = field(factory=dict, repr=False)
    prefetch: int = 0
    handed: int = 0  # leases that a worker over HTTP holds: they are not in `held`
    line: Line = field(factory=Line, init=False)  # tasks that run alone: nothing else is pushed meanwhile
    reserved: int = field(default=0, init=False)
    held: dict[TaskKey, int] = field(factory=dict, init=False)
    terms: dict[TaskKey, Terms] = field(factory=dict, init=False)
    most_begun: int = field(default=0, init=False)  # the most leases that it has ever had room to begin at once
    is_freed: bool = field(default=False, init=False)
    lost: int = field(default=0, init=False)  # leases that have expired since its worker was heard of
    charge: Charge | None = field(default=None, init=False)
    over_at: float = field(default=_NEVER, init=False)  # before this time no lease expires
    _unsettled: set[TaskKey] = field(factory=set, init=False)  # leases that the worker has settled, the store not
    _renewing: dict[TaskKey, int] = field(factory=dict, init=False)  # leases being renewed that have not ended since
    _queue_s: dict[str, float] = field(factory=dict, init=False)  # how long leases of each queue last now

    def set_credit(self, credit: int) -> None:
        """Change how many leases the worker may hold."""
        self.credit = credit
        self.most_begun = max(self.most_begun, credit - self.prefetch)

    def charge_to(self, charge: Charge | None) -> None:
        """Set the account that is charged for the leases from now on; None: no account."""
        for each, leases in ((self.charge, -1), (charge, 1)):
            if each:
                for terms in self.terms.values():
                    each(terms, leases)
        self.charge = charge

    @property
    def busy(self) -> int:
        """How many leases the worker holds."""
        return len(self.held) + self.handed

    @property
    def free(self) -> int:
        """How many more leases the worker may hold."""
        if self.line.waiting or self.line.alone in self.held:  # a task runs alone, or waits to do so
            return 0
        free = self.credit - self.reserved - len(self.held) - self.handed
        return max(0, free + min(len(self._unsettled), self.credit) if self._unsettled else free)

    def lease(self, place: str, leases: Sequence[Lease], lease_s: float, now: float) -> None:
        """Add leases that are about to be pushed to the worker."""
        queue = queue_of(place)
        self._queue_s[queue] = lease_s
        terms = Terms(lease_s, now + lease_s + OVER_S, now, place=place)
        self.over_at = min(self.over_at, terms.over_at)
        numbers = {(queue, each.id): each.lease for each in leases}
        self.drop(*self.held.keys() & numbers)  # earlier leases of the tasks, which are lost
        self._put(numbers, terms)
        guaranteed = [(queue, each.id) for each in leases if each.is_guaranteed]
        if guaranteed:
            self.terms |= dict.fromkeys(guaranteed, evolve(terms, is_guaranteed=True))
        if self.charge:
            if len(guaranteed) < len(numbers):
                self.charge(terms, len(numbers) - len(guaranteed))
            if guaranteed:
                self.charge(self.terms[guaranteed[0]], len(guaranteed))

    def _put(self, numbers: Mapping[TaskKey, int], terms: Terms) -> None:
        self.held |= numbers
        self.terms |= dict.fromkeys(numbers, terms)
        self.owners |= dict.fromkeys(numbers, self.owner)

    def add_unsettled(self, key: TaskKey, lease: int, terms: Terms, now: float) -> None:
        """Add a lease back whose settlement failed; its worker settles it again."""
        self.add(key, lease, evolve(terms, place=""), now)
        self._unsettled.add(key)

    def add(self, key: TaskKey, lease: int, terms: Terms, now: float) -> None:
        """Add a lease that was not pushed here: it comes from another connection, for example.

        Its worker may have begun it.
        """
        self._unsettled.discard(key)
        if self.charge:
            self._charge_ends(self.charge, self.terms.keys() & {key})
        self._put({key: lease}, evolve(terms, is_pushed=False, is_guaranteed=False, began_at=now))
        if self.charge:
            self.charge(self.terms[key], 1)
        self._restart(key, now)

    def _restart(self, key: TaskKey, now: float) -> None:
        """Restart the time of a lease: it gets no shorter."""
        terms = self.terms[key]
        lasts_s = max(terms.lasts_s, self._queue_s.get(key[0], 0.0)) or _NEVER
        over_at = now + lasts_s + OVER_S
        self.terms[key] = evolve(terms, over_at=over_at)
        self.over_at = min(self.over_at, over_at)

    @contextmanager
    def renewing(self, leases: Mapping[TaskKey, int]) -> Iterator[None]:
        """Mark leases as being renewed while the context lasts."""
        self._renewing |= leases
        try:
            yield
        finally:
            for key, lease in leases.items():
                if self._renewing.get(key) == lease:
                    del self._renewing[key]

    def renewed(self, key: TaskKey, lease: int, now: float) -> None:
        """Restart the time of a renewed lease, also if it has expired here meanwhile, but not if it has ended."""
        if self.has(key, lease):
            self._restart(key, now)
        elif self._renewing.get(key) == lease:
            self.add(key, lease, Terms(0.0), now)

    def has(self, key: TaskKey, lease: int) -> bool:
        """True if a lease is on the account."""
        return self.held.get(key) == lease

    def held_of(self, queue: str) -> dict[str, int]:
        """Return the leases of one queue: id -> lease number."""
        return {id: lease for (of, id), lease in self.held.items() if of == queue}

    def not_begun(self) -> set[TaskKey]:
        """Return the leases of tasks that have not begun: the worker begins them in the order of their pushes.

        In doubt they have: leases brought from another connection, and those that were about to be settled.
        """
        if not self.prefetch:
            return set()
        pushed = [key for key in self.held if self.terms[key].is_pushed]
        return set(pushed[self.most_begun :])

    def died_alone(self) -> bool:
        """True if one task may have begun: if the worker's process has died now, that one ran alone."""
        return len(self.held) - len(self.not_begun()) == 1

    def report(self, key: TaskKey) -> None:
        """Note that the progress of a task was reported."""
        self.terms[key] = evolve(self.terms[key], has_progress=True)

    def end(self, queue: str, settlements: Iterable[Settlement]) -> dict[TaskKey, Ended]:
        """Remove the leases that these settlements end, and return them."""
        held, terms = self.held, self.terms
        ended: dict[TaskKey, Ended] = {}
        for each in settlements:
            key = queue, each.id
            if held.get(key) == each.lease and each.action != "extend":
                ended[key] = each.lease, terms[key]
        self.drop(*ended)
        return ended

    def drop(self, *keys: TaskKey) -> None:
        """Remove leases from the account: they have ended, or another account has them."""
        for key in self._renewing.keys() & keys:
            del self._renewing[key]
        self._remove(keys)

    def _charge_ends(self, charge: Charge, keys: Iterable[TaskKey]) -> None:
        for key in keys:
            charge(self.terms[key], -1)

    def _remove(self, keys: Collection[TaskKey]) -> None:
        if self.charge:
            self._charge_ends(self.charge, keys)
        held, terms, owners, owner = self.held, self.terms, self.owners, self.owner
        if self._unsettled:
            self._unsettled.difference_update(keys)
        for key in keys:
            del held[key], terms[key]
            if owners.get(key) is owner:
                del owners[key]

    def drop_all(self) -> dict[str, list[tuple[str, int, int]]]:
        """Remove all leases from the account; returns them by queue: id, number, times taken over."""
        by_queue: dict[str, list[tuple[str, int, int]]] = {}
        for (queue, id), lease in self.held.items():
            by_queue.setdefault(queue, []).append((id, lease, self.terms[queue, id].taken))
        self.drop(*self.held)
        return by_queue

    def expire(self, now: float) -> None:
        """Drop the leases that have expired."""
        if now < self.over_at:
            return
        over = [key for key, terms in self.terms.items() if terms.over_at <= now]
        self.lost += len(over)
        self._remove(over)  # an answer that comes late may still renew them
        self.is_freed = self.is_freed or bool(over)
        next_at = min((terms.over_at for terms in self.terms.values()), default=_NEVER)
        self.over_at = max(next_at, now + OVER_S / 4)  # drop several at once
