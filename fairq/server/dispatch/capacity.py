"""Finds workers of a queue with room, without looking at all of them: thousands may be attached, idle or full.

Workers that may have room stand in a line. The line is read from its front until there is enough room. A worker that
gets tasks moves to the end. A worker without room leaves the line when it is read, and returns when its credit changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from operator import itemgetter
from typing import Protocol

from attrs import define, field

from fairq.model.tasks import Lease
from fairq.server.dispatch.worker_account import WorkerAccount

_room_of = itemgetter(1)


class Worker(Protocol):
    """An attached worker, as dispatching sees it."""

    account: WorkerAccount
    name: str

    def push(self, queue: str, lease_ms: int, leases: Sequence[Lease], run_timeout_ms: int, claimed_at: float) -> None:
        """Give leased tasks to the worker; they were claimed at this time or later."""

    def stop_tasks(self, queue: str, leases: Mapping[str, int]) -> None:
        """Tell the worker that these tasks were cancelled; id -> lease number."""


@define(eq=False)
class Capacity:
    """The workers of one queue, and their credit."""

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
        """Count the free places, up to about `enough`."""
        return sum([room for _, room in self._with_room(enough, enough)])

    def share(self, tasks: int) -> dict[Worker, int]:
        """Divide `tasks` among workers, as evenly as their room allows; those with a share move to the line's end."""
        line, left = sorted(self._with_room(tasks), key=_room_of), tasks
        shares: dict[Worker, int] = {}
        for n, (worker, room) in enumerate(line):  # who has least room first: the others take what it cannot
            shares[worker] = share = min(room, -(-left // (len(line) - n)))
            left -= share
        for worker in shares:
            self._line[worker] = self._line.pop(worker)
        return shares

    def _with_room(self, workers: int, places: float = inf) -> list[tuple[Worker, int]]:
        """Find so many workers of the line with room, or fewer with so many places; those that are full leave it."""
        found: list[tuple[Worker, int]] = []
        full: list[Worker] = []
        for worker in self._line:
            if room := worker.account.free:
                found.append((worker, room))
                places -= room
                if places <= 0 or len(found) >= workers:
                    break
            else:
                full.append(worker)
        for worker in full:
            del self._line[worker]
        return found
