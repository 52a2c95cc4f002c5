"""Finds workers of a queue with room, without looking at all of them: thousands may be attached, idle or full.

Workers that may have room stand in a line. The line is read from its front until there is enough room. A worker that
gets tasks moves to the end. A worker without room leaves the line when it is read, and returns when its credit changes.

Workers with the same queues have a line of their own, a *pool*. A queue that shares a pool with others gets of its free
slots what the account of the queues (queue_accounts.py) gives it; slots of workers that serve it alone come first.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from math import inf
from operator import itemgetter
from typing import Protocol

from attrs import define, field

from fairq.io.turns import turn_time
from fairq.model.tasks import MAX_LEASES, Lease
from fairq.server.engine.dispatch.queue_accounts import QueueAccounts
from fairq.server.engine.dispatch.worker_account import WorkerAccount

_room_of = itemgetter(1)


class Worker(Protocol):
    """An attached worker, as dispatching sees it."""

    account: WorkerAccount
    name: str
    tracks_leases: bool  # on its account: what it holds is known, so that a task can run alone

    @property
    def may_take(self) -> bool:
        """True if it may be given tasks at all."""

    def push(self, place: str, lease_ms: int, leases: Sequence[Lease], run_timeout_ms: int, claimed_at: float) -> None:
        """Give leased tasks to the worker; they were claimed at this time or later."""

    def stop_tasks(self, queue: str, leases: Mapping[str, int]) -> None:
        """Send the worker that these tasks were cancelled; id -> lease number."""


def free_of(worker: Worker) -> int:
    """Return how many more tasks a worker may be given."""
    free = worker.account.free
    return free if free and worker.may_take else 0


@define(eq=False)
class Capacity:
    """Workers with the same queues, and their credit."""

    workers: dict[Worker, int] = field(factory=dict, init=False)  # -> its credit when it last changed
    offered: int = field(default=0, init=False)  # all credit
    _line: dict[Worker, None] = field(factory=dict, init=False)

    def join(self, worker: Worker) -> None:
        """Add a worker that was attached."""
        self.workers[worker] = 0
        self.changed(worker)

    def leave(self, worker: Worker) -> None:
        """Remove a worker that is no longer attached."""
        self.offered -= self.workers.pop(worker, 0)
        self._line.pop(worker, None)

    def changed(self, worker: Worker) -> None:
        """Note that a worker's credit or room has changed."""
        if worker in self.workers:
            self.offered += worker.account.credit - self.workers[worker]
            self.workers[worker] = worker.account.credit
            self._line[worker] = None

    def free(self, enough: int) -> int:
        """Count the free slots, up to about `enough`."""
        return sum(map(_room_of, self._with_room(enough, enough)))

    def share(self, tasks: int) -> dict[Worker, int]:
        """Divide `tasks` among workers, as evenly as their room allows; those with a share move to the line's end."""
        line, left = sorted(self._with_room(tasks), key=_room_of), tasks
        shares: dict[Worker, int] = {}
        for n, (worker, room) in enumerate(line):  # the least room first: the others take the rest
            shares[worker] = share = min(room, -(-left // (len(line) - n)))
            left -= share
        for worker in shares:
            self._line[worker] = self._line.pop(worker)
        return shares

    def find_idle(self) -> Worker | None:
        """Find a worker that holds nothing, and may be given tasks."""
        idle = (each for each in self._line if not each.account.busy and free_of(each) and each.tracks_leases)
        return next(idle, None)

    def _with_room(self, workers: int, slots: float = inf) -> list[tuple[Worker, int]]:
        """Find so many workers of the line with room, or fewer with so many slots; full ones leave the line."""
        found: list[tuple[Worker, int]] = []
        full: list[Worker] = []
        for worker in self._line:
            if (room := worker.account.free) and worker.may_take:  # as `free_of`, three times for each task
                found.append((worker, room))
                slots -= room
                if slots <= 0 or len(found) >= workers:
                    break
            else:
                full.append(worker)
        for worker in full:
            del self._line[worker]
        return found


@define(eq=False)
class Pool(Capacity):
    """The workers that serve the same places, which are sorted by name: several queues, or partitions."""

    places: tuple[str, ...]
    accounts: QueueAccounts
    on_change: dict[str, Callable[[], None]] = field(factory=dict, init=False)  # place -> look at the free slots again
    _parts: dict[str, int] = field(factory=dict, init=False)  # of the free slots, by place
    _owed: Mapping[str, int] = field(factory=dict, init=False)  # of these parts, those for leases that are owed
    _parts_of: tuple[float, int] = field(default=(-1.0, 0), init=False)  # when, and after how many changes

    def part(self, place: str) -> int:
        """Return how many of the free slots a place may use now."""
        now = turn_time()
        if self._parts_of != (now, self.accounts.changes):
            waiting = self.accounts.waiting(self.places)
            free = self.free(MAX_LEASES * len(waiting)) if waiting else 0
            self._parts, self._owed = self.accounts.divide(free, self.offered, waiting, now) if free else ({}, {})
            self._parts_of = now, self.accounts.changes
        return self._parts.get(place, 0)

    def reserve(self, place: str, tasks: int, reserved: int) -> tuple[dict[Worker, int], int]:
        """Reserve slots of a place's part for up to `tasks` tasks, beside those that other pools have for its claim.

        Returns each worker's share, and how many slots are for leases that are owed.
        """
        shares = self.share(min(tasks, self.part(place)))
        slots = sum(shares.values())
        owed = min(slots, self._owed.get(place, 0))
        self.accounts.reserve(place, reserved + slots, turn_time(), owed)
        return shares, owed

    def changed(self, worker: Worker) -> None:
        """Note that a worker's credit or room has changed."""
        credit = self.workers.get(worker, 0)
        super().changed(worker)
        self._parts_of = (-1.0, 0)
        if self.workers.get(worker, 0) < credit:
            self.accounts.shrink(self.places, turn_time())

    def leave(self, worker: Worker) -> None:
        """Remove a worker that is no longer attached."""
        super().leave(worker)
        self.accounts.shrink(self.places, turn_time())

    def wake(self) -> None:
        """Let all queues look at the free slots again."""
        for look in self.on_change.values():
            look()


@define(eq=False)
class QueueCapacity:
    """The room of a queue, or a partition, at its workers: those that serve it alone, and its part of shared pools."""

    place: str = ""
    accounts: QueueAccounts = field(factory=QueueAccounts)
    own: Capacity = field(factory=Capacity, init=False)
    shared: list[Pool] = field(factory=list, init=False)
    reserved: dict[Worker, int] = field(factory=dict, init=False)  # slots for the claim under way
    owed: int = field(default=0, init=False)  # of these, those for tenants below their guarantees alone

    @property
    def workers(self) -> MutableMapping[Worker, int]:
        """Return all workers, each with its credit."""
        if not self.shared:
            return self.own.workers
        maps = [pool.workers for pool in (self.own, *self.shared) if pool.workers]
        return maps[0] if len(maps) == 1 else ChainMap(*maps)

    @property
    def offered(self) -> int:
        """Return all credit, whichever queue uses it."""
        return self.own.offered + sum(pool.offered for pool in self.shared) if self.shared else self.own.offered

    def free(self, enough: int) -> int:
        """Count the slots that the queue may use, up to about `enough`."""
        free = self.own.free(enough)
        for pool in self.shared:
            if free < enough:
                free += pool.part(self.place)
        return free

    def reserve(self, tasks: int) -> None:
        """Reserve slots for up to `tasks` tasks, so that no other queue uses them."""
        self.reserved, self.owed = self.own.share(tasks), 0
        for worker, share in self.reserved.items():
            worker.account.reserved += share
        if self.shared:
            self._reserve_shared(tasks, self.reserved)

    def _reserve_shared(self, tasks: int, shares: dict[Worker, int]) -> None:
        """Add to shares of the queue's own workers those of shared ones, up to `tasks` in all."""
        reserved = 0
        for pool in self.shared:
            some, owed = pool.reserve(self.place, tasks - sum(shares.values()), reserved)
            for worker, share in some.items():
                worker.account.reserved += share
            reserved += sum(some.values())
            self.owed += owed
            shares |= some
        if reserved:
            self.accounts.forget_owed(self.place)

    def release(self) -> dict[Worker, int]:
        """Release the reserved slots, and return them: call `freed` once the tasks are on workers' accounts."""
        shares, self.reserved, self.owed = self.reserved, {}, 0
        for worker, share in shares.items():
            worker.account.reserved -= share
        return shares

    def unreserve(self, worker: Worker) -> None:
        """Free the slots of a worker that leaves: it may serve other places before the claim under way is answered."""
        worker.account.reserved -= self.reserved.pop(worker, 0)

    def changed(self, worker: Worker) -> None:
        """Note that a worker's room has changed."""
        for pool in (self.own, *self.shared):
            pool.changed(worker)

    def find_idle(self) -> Worker | None:
        """Find a worker that holds nothing, and may be given tasks."""
        return next((idle for pool in (self.own, *self.shared) if (idle := pool.find_idle())), None)

    def freed(self, shares: Mapping[Worker, int]) -> None:
        """Offer slots that were reserved, and are still free, to all queues of their workers."""
        for worker in shares:
            if free_of(worker):
                self.changed(worker)
        if self.shared:
            self.accounts.reserve(self.place, 0, turn_time())
            self.wake()

    def wake(self) -> None:
        """Let all queues that share workers with this one look at the free slots again."""
        for pool in self.shared:
            pool.wake()
