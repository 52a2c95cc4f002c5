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

The slots that a queue gets are divided among its partitions (fairq/store/partitions.py) just so: each has an account
of its own, beside that of the queue as a whole. Its weight is that of its competing tenants. It changes with every
claim, and starts nothing anew. Until the first claim brings it, a partition counts as the mean of the others. Where
tenants share tasks and not time, a weight counts as many times as the partition's tasks are long: so the partitions get
as many tasks as their tenants weigh.

Guarantees go before shares, whatever partitions their tenants are in. A claim says how many more leases its partition
*owes* to tenants below their guarantees; one more is owed when a lease within a guarantee ends. The queue's next slots
go where leases are owed, and serve no other tenants, but for an eighth of its leases, which go by the accounts. The
queue as a whole pays for leases within guarantees, not the account of the partition, or the tenants beside them would
get less than others. While no tenant competes in a partition, its next slot by the accounts would be its guaranteed
tenants', too: so their leases count there, and the partition, which is *exempt* from the others' accounts, begins to
wait anew when that is over.

The slots of workers with one queue are that queue's own: they are not counted. A server counts what it gave itself.
Each server does so alone: over all servers a queue may be behind by a lease for each.

A queue *waits* from the first notice of work until a claim has found fewer tasks than it asked for. While its claim is
under way, its slots stay free for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from attrs import define, field

from fairq.model.places import is_partition, queue_of
from fairq.server.engine.dispatch.claiming import SharedPace
from fairq.server.engine.dispatch.slot_account import Account, share, share_owed

_OTHERS = 8  # one of so many leases of a queue is given by the accounts, whatever is owed


@define(eq=False)
class QueueAccounts:
    """The accounts of all queues that share workers of one server, those of partitions by their places.

    `now`: in seconds, and never less than before.
    """

    pace: SharedPace = field(factory=SharedPace, init=False)
    changes: int = field(default=0, init=False)  # how many; an answer from before the last is outdated
    _queues: dict[str, Account] = field(factory=dict, init=False)  # by place
    _wholes: dict[str, Account] = field(factory=dict, init=False)  # of queues with partitions, each as one
    _beginnings: count[int] = field(factory=lambda: count(1), init=False)

    def join(self, places: Sequence[str]) -> None:
        """Add a set of places that the same workers serve."""
        for place in places:
            self._queues.setdefault(place, Account()).sets.append(places)
        for queue in _queues_with_partitions(places):
            self._wholes.setdefault(queue, Account()).sets.append(places)

    def leave(self, places: Sequence[str]) -> None:
        """Remove a set of places after its last worker has left; those that share no other workers are forgotten."""
        self.changes += 1
        for accounts, names in ((self._queues, places), (self._wholes, _queues_with_partitions(places))):
            for name in names:
                accounts[name].sets.remove(places)
                if not accounts[name].sets:
                    del accounts[name]

    def _levels(self, place: str) -> list[Account]:
        """Return the accounts that are charged for a place's leases, its queue's last; none if it shares no workers."""
        if (account := self._queues.get(place)) is None:
            return []
        return [account, self._wholes[queue_of(place)]] if is_partition(place) else [account]

    def _queue(self, name: str) -> Account:
        return self._wholes.get(name) or self._queues[name]

    def _beside(self, name: str) -> list[Account]:
        """Return the accounts that share slots with a queue's, or with a partition's: other queues, or partitions."""
        names = {each for places in self._queue(name).sets for each in places}
        if is_partition(name):
            return [self._queues[each] for each in names if queue_of(each) == queue_of(name) and each != name]
        return [self._queue(each) for each in set(map(queue_of, names)) if each != name]

    def _level(self, name: str, now: float) -> float:
        """Return the virtual time at which one begins to wait: the least of those that wait, or the most of all."""
        beside = [each for each in self._beside(name) if not each.is_exempt]
        waiting = [each.at(now) for each in beside if each.waits]
        return min(waiting) if waiting else max((each.at(now) for each in beside), default=0.0)

    def set_weight(
        self,
        place: str,
        weight: float | None,
        now: float,
        competing: float | None = None,
        *,
        is_by_count: bool | None = None,
    ) -> None:
        """Set a queue's weight, and that of the tenants of this partition that compete; None: as before.

        `is_by_count`: these tenants share tasks, not time.
        """
        if not (levels := self._levels(place)):
            return
        account, queue = levels[0], levels[-1]
        if weight is not None and queue.weight != weight:
            queue.weight = weight
            self._restart(now)
        if account is not queue:
            if competing is not None:
                self._set_competing(place, account, competing, now)
            if is_by_count is not None:
                account.is_by_count = is_by_count
            account.move(now)
            account.weight = self.part(place)

    def _set_competing(self, place: str, account: Account, weight: float, now: float) -> None:
        account.competing = weight or account.competing
        was_exempt, account.is_exempt = account.is_exempt, not weight and account.guaranteed + account.owed > 0
        if was_exempt and not account.is_exempt:
            account.raise_to(self._level(place, now), now)

    def part(self, place: str) -> float:
        """Return which part of its queue's slots a place is to have, 0 to 1, while all partitions wait."""
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

    def shrink(self, places: Sequence[str], now: float) -> None:
        """Reduce the slots of workers with these places."""
        if any(len(self._queues[place].sets) > 1 for place in places):
            self._restart(now)

    def _restart(self, now: float) -> None:
        self.changes += 1
        for each in (*self._queues.values(), *self._wholes.values()):
            each.vtime, each.moved_at = 0.0, now

    def charge(self, place: str, leases: int, began_at: float, now: float, *, is_guaranteed: bool = False) -> None:
        """Count leases as running that began at a time, or with a negative number no longer.

        `is_guaranteed`: they were within the guarantees of their tenants when they began.
        """
        levels = self._levels(place)
        for account in levels:
            self.changes += 1
            if is_guaranteed and account is not levels[-1]:
                account.note_guaranteed(leases, began_at, now)
            else:
                account.charge(leases, began_at, now)

    def owe(self, place: str, slots: int) -> None:
        """Note how many more leases are due in a partition within the guarantees of its tenants."""
        if account := self._queues.get(place):
            self.changes += 1
            account.owed += slots

    def forget_owed(self, place: str) -> None:
        """Note that a claim of all slots for a place is about to leave: its answer says how many more are owed."""
        if account := self._queues.get(place):
            self.changes += 1
            account.owed = 0

    def reserve(self, place: str, slots: int, now: float, owed: int = 0) -> None:
        """Set for how many slots a queue's claim is under way (0: none is); `owed` more of them are those owed."""
        if not (levels := self._levels(place)):
            return
        more = slots - levels[0].reserved
        levels[0].owed -= owed
        for account in levels:
            self.changes += 1
            account.move(now)
            account.reserved += more
            account.given += max(0, more)
            if slots:
                account.is_soon = False

    def set_waiting(self, place: str, is_waiting: bool, now: float) -> None:
        """Set whether a queue waits for slots."""
        account = self._queues.get(place)
        if account is None or bool(account.waits) == is_waiting:
            return
        self.changes += 1
        self._set_waiting(place, account, is_waiting, now)
        if whole := self._wholes.get(queue_of(place)):
            is_waiting = is_waiting or any(each.waits for each in self._beside(place))
            if bool(whole.waits) != is_waiting:
                self._set_waiting(queue_of(place), whole, is_waiting, now)

    def _set_waiting(self, name: str, account: Account, is_waiting: bool, now: float) -> None:
        if is_waiting:
            account.raise_to(self._level(name, now), now)
        account.waits = next(self._beginnings) if is_waiting else 0
        account.is_soon = False

    def serve_soon(self, place: str) -> None:
        """Serve a queue that waits once out of turn."""
        for account in self._levels(place):
            if account.waits:
                self.changes += 1
                account.is_soon = True

    def waiting(self, places: Iterable[str]) -> list[str]:
        """Return which of these places wait."""
        return [place for place in places if self._queues[place].waits]

    def lags(self, queue: str, now: float) -> dict[str, float]:
        """Return by how much worker time each partition of a queue that waits is behind its part, in seconds.

        Together they are 0: those that are ahead have negative ones. One that is exempt has no part.
        """
        accounts = {
            name: each
            for name, each in self._queues.items()
            if each.waits and not each.is_exempt and queue_of(name) == queue
        }
        weight = sum(each.weight for each in accounts.values())
        mean = sum(each.at(now) * each.weight for each in accounts.values()) / weight if accounts else 0.0
        return {name: (mean - each.at(now)) * each.weight for name, each in accounts.items()}

    def divide(
        self, free: int, slots: int, places: Sequence[str], now: float
    ) -> tuple[dict[str, int], Mapping[str, int]]:
        """Divide the free ones of some slots among places that wait: first among queues, then among partitions.

        Also returns how many of those of each partition are owed.
        """
        partitions: dict[str, dict[str, Account]] = {}
        for place in places:
            partitions.setdefault(queue_of(place), {})[place] = self._queues[place]
        parts, owed = share(free, slots, {queue: self._queue(queue) for queue in partitions}, now), Counter[str]()
        for queue, accounts in partitions.items():
            if queue in self._wholes:
                some = parts.pop(queue)
                due = share_owed(some - self._others(queue, some), accounts)
                rest = share(some - sum(due.values()), slots, accounts, now)
                owed += due
                parts |= {place: due[place] + rest[place] for place in accounts}
        return parts, owed

    def _others(self, queue: str, free: int) -> int:
        """Return how many of its next slots a queue gives by the accounts, so that these have an eighth of its leases.

        Where that is no whole number, it is the next one as often as is right.
        """
        whole = self._wholes[queue]
        leases = whole.running + whole.reserved
        guaranteed = sum(each.guaranteed for name, each in self._queues.items() if queue_of(name) == queue)
        due = (leases + free + whole.given % _OTHERS) // _OTHERS
        return min(free, max(0, due - (leases - guaranteed)))


def _queues_with_partitions(places: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(queue_of(place) for place in places if is_partition(place)))


def _mean_of(numbers: Iterable[float]) -> float:
    """Return the mean of the known ones, which are not 0; 1 if none is."""
    known = [number for number in numbers if number]
    return sum(known) / len(known) if known else 1.0
