"""When a client takes its server for gone.

A server may be frozen, or a connection half open: bytes go in, and none come back. A server may also be late: the
store, the machine or the network is slow, or its event loop is blocked. From outside these are alike until one answers.
So a client asks with a websocket ping, which needs no store, and leaves a connection only once it has another:

| silence | then |
|---|---|
| PROBE_S | a ping, unless no answer is due |
| BESIDE_S, or up to twice that | it is suspect: another connection is opened beside it, to the next address |
| LEAVE_S | it is gone: the client goes on with the other one, as soon as that is open |

*Silence* begins with the first request or ping that was sent since the last bytes came. Any bytes end it, and then the
other connection is closed. So whichever answers first is kept, and a server that answers within 5 s loses no client.

- A request that waits for something to happen is not due, nor is a push. Who waits for one pings every WAIT_S.
- The server gets more time for long requests: a second for each BYTES_PER_S of those that are under way.
- For as long as the client itself stood still, the server was not silent.
- The clients of one server open their other connections, and leave, at random times within these bounds.
- What was sent to a server that was left may still be carried out there. It is sent again all the same: calls are
  idempotent by their ids, and leases have numbers.

TIMEOUT_S of the protocol is for what asks for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import NamedTuple

from attrs import define, field

from fairq.wire.held_leases import STALL_S

PROBE_S = 0.4
WAIT_S = 5.0
BESIDE_S = 2.0
LEAVE_S, SPREAD_S = 5.25, 0.25
LOOK_S = 0.25  # between looks at a connection that may be left
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
    """What a client makes of one connection's silence. `jitter` is in [0, 1).

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
    _excused: tuple[float, float] = field(default=(-inf, 0.0), init=False)  # `heard_at`, and stood still since

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
        asked_at, is_due, size = self._pinged_at if self._pinged_at > self.heard_at else inf, False, 0
        for ask in asks:
            size += ask.size
            is_due, waits = is_due or ask.is_due, waits or not ask.is_due
            if ask.is_due and self.heard_at < ask.sent_at < asked_at:
                asked_at = ask.sent_at
        if asked_at < inf:
            ping_at = asked_at + PROBE_S
        else:
            ping_at = self.heard_at + (PROBE_S if is_due else WAIT_S if waits else inf)
            asked_at = max(now, ping_at)
        begins_at = asked_at + self._excuse(now, asked_at) + size / BYTES_PER_S
        suspect_at = begins_at + BESIDE_S * (1 + self.jitter)
        gone_at = begins_at + LEAVE_S + SPREAD_S * self.jitter
        self.is_suspect, self.is_gone = now >= suspect_at, now >= gone_at
        if pings := self._pinged_at <= self.heard_at and now >= ping_at:
            self._pinged_at = now
        later = [at for at in (ping_at, suspect_at, gone_at) if at > now]
        self.due_at = min(later, default=now + LOOK_S)
        return pings

    def _excuse(self, now: float, asked_at: float) -> float:
        """Return for how long the client has stood still since the server was heard."""
        heard_at, excuse_s = self._excused
        if heard_at < self.heard_at:
            excuse_s = 0.0
        if asked_at < self.due_at < now - STALL_S:
            excuse_s += now - self.due_at + LOOK_S  # what has come meanwhile is read before the next look
        self._excused = self.heard_at, excuse_s
        return excuse_s
