"""A worker's account at its server: how many tasks it may hold, which leases it holds, and until when."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define, field

from fairq.model.tasks import Lease
from fairq.server.dispatch.slots import Slots

Place = tuple[str, str]  # queue, and a task's full id
OVER_S = 1.0  # what a lease may take to reach its worker, which counts from then
_NEVER = float("inf")


@define(eq=False)
class WorkerAccount:
    """What one worker may hold, and what it holds.

    `credit` is what it may hold, `held` what it holds ((queue, id) -> lease number), `reserved` what a claim under way
    may bring it. `may_take()`: whether it may be given tasks at all. `owners` is shared by the accounts of a server:
    the owner of the account that has a lease of a task (`owner` is this one's). A lease that is neither settled nor
    renewed in its time, and OVER_S more, leaves the account by itself; `is_freed` tells.
    """

    credit: int = 0
    may_take: Callable[[], bool] = lambda: True
    owner: Any = None
    owners: dict[Place, Any] = field(factory=dict, repr=False)
    slots: Slots | None = None  # of a worker whose queues have weights
    reserved: int = field(default=0, init=False)
    held: dict[Place, int] = field(factory=dict, init=False)
    taken: dict[Place, int] = field(factory=dict, init=False)  # how often each was taken over, if ever
    reported: set[Place] = field(factory=set, init=False)  # of these, those that told of their progress
    is_freed: bool = field(default=False, init=False)
    over_at: float = field(default=_NEVER, init=False)  # before that no lease is over
    _over: dict[Place, float] = field(factory=dict, init=False)  # when each of `held` is
    _lease_s: dict[str, float] = field(factory=dict, init=False)  # how long leases of each queue last

    @property
    def free(self) -> int:
        """How many more tasks the worker may be given."""
        return max(0, self.credit - len(self.held) - self.reserved) if self.may_take() else 0

    def free_for(self, queue: str) -> int:
        """How many more tasks of a queue the worker may be given."""
        return self.free if self.slots is None else self.slots.share(queue, self.free)

    def free_for_claim(self, queue: str, reserved: int) -> int:
        """How many tasks of a claim's the worker may be given: what was reserved for it, whatever came up meanwhile."""
        return self.free if self.slots is None else min(self.free, max(reserved, self.free_for(queue)))

    def reserve(self, queue: str, count: int) -> None:
        """Set free places aside for a claim, of which a queue has one at a time."""
        self.reserved += count
        if self.slots is not None:
            self.slots.reserve(queue, count)

    def unreserve(self, queue: str, count: int) -> None:
        """Have them free again."""
        self.reserved -= count
        if self.slots is not None:
            self.slots.unreserve(queue)

    def lease(self, queue: str, leases: Sequence[Lease], lease_s: float, now: float = _NEVER) -> None:
        """Put leases on the account that are about to be pushed to the worker."""
        self._lease_s[queue] = lease_s
        over_at = now + lease_s + OVER_S
        self.over_at = min(self.over_at, over_at)
        for each in leases:
            place = queue, each.id
            self.held[place], self.owners[place], self._over[place] = each.lease, self.owner, over_at
        if self.slots is not None:
            self.slots.began(queue, [each.id for each in leases])

    def bring(self, place: Place, lease: int, taken: int, now: float, lease_s: float) -> None:
        """Put a lease on the account that comes from another connection, `taken` over so often."""
        self.hold({place: lease}, now, lease_s)
        self.taken[place] = taken

    def hold(self, leases: Mapping[Place, int], now: float, lease_s: float | None = None) -> None:
        """Put leases on the account, or count their time from now on anew."""
        self.held.update(leases)
        self.owners.update(dict.fromkeys(leases, self.owner))
        for place in leases:
            self._over[place] = now + (lease_s or self._lease_s.get(place[0], _NEVER)) + OVER_S
            self.over_at = min(self.over_at, self._over[place])

    def has(self, place: Place, lease: int) -> bool:
        """Whether a lease is on the account."""
        return self.held.get(place) == lease

    def held_of(self, queue: str) -> dict[str, int]:
        """Return the leases of one queue: id -> lease number."""
        return {id: lease for (of, id), lease in self.held.items() if of == queue}

    def drop(self, place: Place) -> None:
        """Take a lease off the account."""
        del self.held[place]
        self._over.pop(place, None)
        if self.taken:
            self.taken.pop(place, None)
        if self.owners.get(place) is self.owner:
            del self.owners[place]
        if self.slots is not None:
            self.slots.ended(place)

    def drop_all(self) -> dict[str, list[tuple[str, int, int]]]:
        """Take all leases off the account; returns them by queue: id, number, how often taken over."""
        by_queue: dict[str, list[tuple[str, int, int]]] = {}
        for (queue, id), lease in list(self.held.items()):
            by_queue.setdefault(queue, []).append((id, lease, self.taken.get((queue, id), 0)))
            self.drop((queue, id))
        return by_queue

    def expire(self, now: float) -> None:
        """Drop the leases whose time is over."""
        if now < self.over_at:
            return
        for place in [place for place, at in self._over.items() if at <= now]:
            self.drop(place)
            self.reported.discard(place)
            self.is_freed = True
        self.over_at = max(min(self._over.values(), default=_NEVER), now + OVER_S / 4)  # some of them at once
