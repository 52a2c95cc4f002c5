"""When a client considers its server gone.

A server may be frozen, or a connection half open: bytes go in, and none come back. A server may also be late: the
store, the machine or the network is slow, or its event loop is blocked. From outside these are alike until one answers.
So a client asks with a websocket ping, which needs no store, and leaves a connection only once it has another:

| after | then |
|---|---|
| PROBE_S without a byte, while a request is due | a ping is sent |
| BESIDE_S of silence, or up to twice that | it is suspect: another connection is opened, to the next address |
| LEAVE_S of silence | it is gone: the client goes on with the other one, as soon as that is open |

*Silence* begins with the ping. Any bytes end it, and then the other connection is closed. So the first server to answer
is kept, and one that answers within 5 s loses no client.

- A request that waits for something to happen is not due, nor is a push. Clients that wait for one ping every WAIT_S.
- Long requests give the server more time: a second for each BYTES_PER_S bytes under way.
- Time in which the client itself stood still does not count as silence.
- The clients of one server open their other connections, and leave, at random times within these bounds.
- A server that was left may still carry out its requests. They are sent again all the same: calls are idempotent by
  their ids, and leases have numbers.

TIMEOUT_S of the protocol is for connections without requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import NamedTuple

from attrs import define, field

from fairq.wire.held_leases import STALL_S

PROBE_S = 0.25
WAIT_S = 5.0
BESIDE_S = 2.0
LEAVE_S, SPREAD_S = 5.25, 0.25
BYTES_PER_S = 262_144


class Ask(NamedTuple):
    """A request that is under way."""

    sent_at: float
    size: int  # in bytes, about
    is_due: bool  # it is answered at once


def _nothing() -> None:
    pass


@define(eq=False)
class Suspicion:
    """A client's watch over one connection's silence. `jitter` is in [0, 1).

    The driver sets `heard_at`, when bytes came last, calls `look` at `due_at`, and sends a ping when it returns True.
    `sooner` is called when `due_at` comes earlier.
    """

    jitter: float
    sooner: Callable[[], None] = _nothing
    heard_at: float = -inf
    due_at: float = inf
    is_suspect: bool = field(default=False, init=False)
    is_gone: bool = field(default=False, init=False)
    _pinged_at: float = field(default=-inf, init=False)
    _stood_s: float = field(default=0.0, init=False)  # how long the client has stood still since

    def begin(self, now: float) -> None:
        """Begin anew, with a connection on which the server has to speak first."""
        self.end()
        self.heard_at, self.due_at = now, now + PROBE_S

    def end(self) -> None:
        """Note that there is no connection."""
        self.due_at, self.is_suspect, self.is_gone, self._pinged_at = inf, False, False, -inf

    def sent(self, now: float, *, is_due: bool) -> None:
        """Note that a request was sent, if `due_at` is later than PROBE_S from now."""
        due_at = now + (PROBE_S if is_due else WAIT_S)
        if due_at < self.due_at:
            self.due_at = due_at
            self.sooner()

    def look(self, now: float, asks: Iterable[Ask], *, waits: bool) -> bool:
        """Look at the connection; returns whether to send a ping. `waits`: something may come unasked."""
        asked_at, size = inf, 0
        for ask in asks:
            size += ask.size
            if ask.is_due:
                asked_at = min(asked_at, ask.sent_at)
            else:
                waits = True
        if self._pinged_at <= self.heard_at:
            self.is_suspect = self.is_gone = False
            if asked_at < inf:
                self.due_at = max(asked_at, self.heard_at) + PROBE_S
            else:
                self.due_at = self.heard_at + WAIT_S if waits else inf
            if now < self.due_at:
                return False
            self._pinged_at, self._stood_s, self.due_at = now, 0.0, now + PROBE_S
            return True
        if now > self.due_at + STALL_S:
            self._stood_s += now - self.due_at + PROBE_S  # bytes that have come meanwhile are read before the next look
        silence_at = self._pinged_at + self._stood_s + size / BYTES_PER_S
        suspect_at = silence_at + BESIDE_S * (1 + self.jitter)
        gone_at = silence_at + LEAVE_S + SPREAD_S * self.jitter
        self.is_suspect, self.is_gone = now >= suspect_at, now >= gone_at
        self.due_at = min(at for at in (suspect_at, gone_at, now + PROBE_S) if at > now)
        return False
