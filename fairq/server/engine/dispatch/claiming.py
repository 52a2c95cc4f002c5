"""When the next claim of a queue leaves, and for how many tasks: the dispatcher's timing, without I/O.

    BUSY -- step --> WAITING -- leave --> CLAIMING -- answered, failed --> BUSY
                                          CLAIMING -- lost --> IN_DOUBT -- leave --> CLAIMING

If the answer to a claim is lost, it may have been carried out: the same claim is sent again before anything else.

Claims are paced: the first leaves at once, but the next waits as long as this one took (at least PACE_S), or until half
of all credit, or MAX_LEASES of it, is free. So under load one call moves many tasks. Without the pace each
acknowledgement would cause a claim of its own. Queues that share workers are paced together as well: their claims leave
in the same turn, and the next ones SHARED_PACE_S later, or sooner for half of all credit. So many queues or partitions
make no more calls than one.

A claim takes no more than that half either, though always FEW_TASKS, which are not worth two calls. Otherwise all
tasks would move together: while the workers run them, the store and the server would have nothing to do.

A claim that returns fewer tasks than it asked for shows that the queue is empty, unless something was notified after it
had left.

Tasks that are about to be enqueued may be *promised* a claim: it leaves with their enqueue, and no other server is
notified of them (store/covered.py). If the room goes, the promise does too, and all servers are notified.
"""

from __future__ import annotations

from enum import Enum, auto
from math import ceil, inf

from attrs import define, field

from fairq.model.tasks import MAX_LEASES

FEW_TASKS = 50
PACE_S, MAX_PACE_S, SHARED_PACE_S = 0.001, 0.05, 0.002


def _most(offered: int) -> int:
    """Return how many tasks a claim takes at most."""
    return min(max(ceil(offered / 2), FEW_TASKS), MAX_LEASES)


class Phase(Enum):
    """The phases of a queue's dispatcher."""

    BUSY = auto()  # it starts, hands out claimed tasks, or rests after a failure
    WAITING = auto()  # for work, credit or the pace
    CLAIMING = auto()
    IN_DOUBT = auto()


class Step(Enum):
    """The next step."""

    SLEEP = auto()
    CLAIM = auto()
    END = auto()


@define(eq=False)
class SharedPace:
    """The pace of the queues that share workers: when a claim of one of them last left."""

    left_at: float = field(default=-inf, init=False)

    def next_at(self, now: float) -> float:
        """Return when the next claims leave: now, in the turn in which others have."""
        return now if now == self.left_at else self.left_at + SHARED_PACE_S


@define(eq=False)
class Claiming:
    """The claims of one queue. `offered`: all credit here; `free`: of that, up to MAX_LEASES; `now`: in seconds."""

    shared: SharedPace | None = field(default=None, init=False)  # while it shares workers
    phase: Phase = field(default=Phase.BUSY, init=False)
    is_stopping: bool = field(default=False, init=False)
    is_empty: bool = field(default=False, init=False)
    arrived: int = field(default=0, init=False)  # tasks since the last claim left: the next one should take them all
    _is_first: bool = field(default=False, init=False)  # the next claim leaves before the other servers look
    _was_first: bool = field(default=False, init=False)  # the claim under way is such a first one
    promised: int = field(default=0, init=False)  # of the arrived tasks, how many no other server is notified of
    _expected: int | None = field(default=None, init=False)  # tasks in the queue, if that is known
    _is_notified: bool = field(default=False, init=False)  # since the claim under way has left
    _left_at: float = field(default=0.0, init=False)  # when `step` was asked last, so when the claim under way has left
    first_left_at: float = field(default=0.0, init=False)  # the same of the first claim, if it is a repetition
    _next_at: float = field(default=0.0, init=False)  # when a claim leaves for less than half of the credit

    def notify(self) -> None:
        """Note that there may be work."""
        self._is_notified, self.is_empty, self._expected = True, False, None

    def slots_needed(self, offered: int, now: float) -> float:
        """Return how many slots must be free for a claim to leave now: half of the credit, until its time comes."""
        if now < self._next_at or (self.shared and now < self.shared.next_at(now)):
            return min(offered / 2, MAX_LEASES)
        return 1

    def _paced_until(self, now: float) -> float:
        return max(self._next_at, self.shared.next_at(now)) if self.shared else self._next_at

    def promise_claim(self, tasks: int, free: int, offered: int, now: float) -> bool:
        """Count these tasks for the next claim; if it leaves this turn with room for all, promise that it takes them.

        Sends nothing.
        """
        expected = self._expected
        self.notify()
        self.arrived += tasks
        self._expected = None if expected is None else expected + tasks
        has_slots = free >= self.slots_needed(offered, now) and self.has_room(free, offered)
        if self.phase is not Phase.WAITING or not has_slots:
            return False
        self.promised += tasks
        return True

    def has_room(self, free: int, offered: int) -> bool:
        """True if the next claim has room for all tasks that have arrived since the last one left."""
        return self.arrived <= min(free, _most(offered))

    def claim_first(self, free: int) -> bool:
        """Claim before the other servers look; returns whether there is any room."""
        self.notify()
        self._is_first = bool(free)
        return self._is_first

    def step(self, free: int, offered: int, now: float) -> tuple[Step, float]:
        """Return what to do now; and for SLEEP, until when, unless something changes."""
        self._left_at = now
        if self.phase is Phase.BUSY:
            self.phase = Phase.WAITING
        is_over = self.is_stopping or self.phase is Phase.IN_DOUBT
        room = 0 if self.is_empty else free
        if is_over or room < self.promised:
            self.promised = 0  # the room has gone since, to another queue or with its worker
        if is_over:
            return Step.END if self.is_stopping else Step.CLAIM, now
        if not room:
            return Step.SLEEP, inf
        if not self.promised and room < self.slots_needed(offered, now):
            return Step.SLEEP, self._paced_until(now)
        return Step.CLAIM, now

    def wanted(self, offered: int) -> int:
        """Return how many tasks to claim at most: one more than expected shows whether there are others."""
        return _most(offered) if self._expected is None else min(_most(offered), self._expected + 1)

    def sent(self) -> bool:
        """Record that a claim is sent; returns whether it repeats the last one after its answer was lost."""
        again = self.phase is Phase.IN_DOUBT
        self.phase, self._is_notified, self.arrived, self.promised = Phase.CLAIMING, False, 0, 0
        self._was_first, self._is_first = self._is_first, False
        if self.shared:
            self.shared.left_at = self._left_at
        if not again:
            self.first_left_at = self._left_at
        else:
            self.notify()  # it may repeat the tasks of the lost claim, and there may be more
        return again

    def answered(self, is_short: bool, now: float) -> bool:
        """Note a claim's answer, `is_short` if it has fewer tasks than asked for; returns whether it was first.

        If so, and the queue is not empty, the caller notifies the other servers.
        """
        self.phase = Phase.BUSY
        self._next_at = now + min(max(PACE_S, now - self._left_at), MAX_PACE_S)
        self.is_empty = is_short and not self._is_notified
        self._expected = 0 if self.is_empty else None
        return self._was_first

    def failed(self, *, is_deleted: bool = False) -> None:
        """Record that a claim was not carried out; nothing is left of a deleted queue."""
        self.phase = Phase.BUSY
        self.is_empty = is_deleted and not self._is_notified

    def lost(self) -> None:
        """Record that a claim's answer was lost: the claim may have been carried out."""
        self.phase = Phase.IN_DOUBT

    def broke_off(self) -> None:
        """Record an internal fault while a claim was under way, or its tasks were handed out."""
        if self.phase is Phase.CLAIMING:
            self.lost()
        else:
            self.failed()
