"""A worker's knowledge of a lease that it holds, and whether a task may begin under it.

The store counts a lease from when it gave or renewed it. Its message may arrive late: a network stands still, a process
is stopped, a handler blocks the event loop. So a worker does not count from the arrival, but from a time of its own
clock that is no later than the lease's: for a renewal, when it was sent; for a push, the time that `ServerClock` finds
for its `attached_ms`.

| a lease is | until | then |
|---|---|---|
| sure: a task may begin | its next renewal is STALL_S overdue, or it is over | in doubt |
| in doubt | a renewal that was sent later is answered `ok` | sure |

If a push comes more than STALL_S late, its leases are in doubt at once. If the worker itself stood still for so long,
all its leases are: meanwhile they may have ended early, and the message waits to be read. To notice that, the worker
looks at the clock every LOOK_S while it holds leases. A lease in doubt is renewed at once. Usually none is, so this
costs no call.

A task also must not begin after its expiry. The server's clock is known only within bounds. Between the earliest and
the latest time of the expiry the lease is in doubt; the renewal makes that interval as short as one call.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from math import inf

from attrs import define, field

STALL_S = 1.0  # how late a message may be, or how long the worker may stand still, without a doubt
LOOK_S = STALL_S / 2
_DRIFT = 1e-4  # of two clocks: an idle worker is in doubt after three hours, and calls once


class Start(Enum):
    """Whether a task may begin."""

    NOW = auto()
    LATER = auto()  # if a renewal confirms its lease
    NEVER = auto()  # here: it has expired, or its lease is lost


NOW = Start.NOW  # what nearly all tasks may


@define(eq=False)
class ServerClock:
    """Converts times of a server to our clock: never later than they were.

    `attached_s` is for how long the worker had been attached, by the server's clock.
    """

    _attached_at: float = field(default=-inf, init=False)  # at the latest
    _measured_at: float = field(default=-inf, init=False)

    def attached(self, sent_at: float) -> None:
        """Begin anew, with the answer to an attach."""
        self._attached_at = self._measured_at = sent_at

    def measure(self, sent_at: float, attached_s: float) -> None:
        """Note an answer: the server read its clock after the request was sent."""
        if (attached_at := sent_at - attached_s) > self._bound(sent_at):
            self._attached_at, self._measured_at = attached_at, sent_at

    def stood_still(self, seconds: float) -> None:
        """Note that our clock has stood still, because the machine was suspended."""
        self._attached_at -= seconds

    def _bound(self, now: float) -> float:
        return self._attached_at - _DRIFT * abs(now - self._measured_at)

    def earliest(self, attached_s: float, now: float) -> float:
        """Return the earliest that something may have happened that is known now."""
        return min(now, self._bound(now) + attached_s)


def _stopped() -> float:
    return 0.0


@define(eq=False)
class Watch:
    """Notices that the worker has stood still, by a look at the clock every LOOK_S: at `next_at`.

    `clock` goes on while the machine is suspended, and the clock of the event loop stands.
    """

    clock: Callable[[], float] = _stopped
    next_at: float = field(default=inf, init=False)
    stalls_at: float = field(default=-inf, init=False)  # if nothing looks before
    ahead_s: float = field(default=-inf, init=False)  # the event loop's clock is of the other, by the last look

    def begin(self, now: float) -> None:
        """Look from now on."""
        self.next_at = min(self.next_at, now + LOOK_S)

    def look(self, now: float) -> tuple[bool, float]:
        """Look at the clock; returns whether the worker has stood still, and how long the machine was suspended."""
        ahead_s, self.ahead_s = self.ahead_s, now - self.clock()
        slept_s = max(0.0, ahead_s - self.ahead_s)
        has_stalled = self.next_at < inf and now + slept_s >= self.stalls_at
        self.stalls_at = now + STALL_S
        return has_stalled, slept_s

    def plan(self, now: float, is_needed: bool) -> None:
        """Say when to look next, if that is due."""
        if now >= self.next_at:
            self.next_at = now + LOOK_S if is_needed else inf


class Terms:
    """The terms of leases that came together, or were renewed together."""

    __slots__ = (
        "attached_s", "given_at", "lease_s", "lost_at", "partition", "pushed_at", "renew_at", "renew_s", "sure_until",
    )  # fmt: skip

    def __init__(
        self,
        now: float,
        lease_s: float,
        renew_s: float,
        given_at: float,
        attached_s: float | None = None,
        partition: str = "",
    ) -> None:
        self.partition = partition
        self.lease_s, self.lost_at = lease_s, now + lease_s
        self.renew_s, self.renew_at = renew_s, now + renew_s
        self.given_at = given_at  # or renewed: at the latest
        self.sure_until = given_at + min(lease_s, renew_s + STALL_S)
        self.pushed_at, self.attached_s = now, attached_s  # None: an old server does not say
        if now - given_at > STALL_S or now >= self.sure_until:
            self.doubt(now)

    def renewed(self, sent_at: float) -> Terms:
        """Return the terms after a renewal."""
        terms = Terms(sent_at, self.lease_s, self.renew_s, sent_at, self.attached_s, self.partition)
        terms.pushed_at = self.pushed_at
        return terms

    def doubt(self, now: float) -> None:
        """Let no task begin before the lease is renewed, which is due now."""
        if self.sure_until > -inf:  # else that renewal is due or under way
            self.sure_until, self.renew_at = -inf, min(self.renew_at, now)

    def start(self, begin_by: float, clock: ServerClock, now: float) -> Start:
        """Return whether a task may begin; `begin_by`: its expiry, if its lease began when the push came."""
        if begin_by < inf:
            leased_at = self.pushed_at if self.attached_s is None else clock.earliest(self.attached_s, self.pushed_at)
            earliest = begin_by - (self.pushed_at - leased_at)
            if now >= begin_by or self.given_at >= earliest:
                return Start.NEVER
            if now >= earliest:
                self.doubt(now)
        return Start.NOW if now < self.sure_until else Start.LATER
