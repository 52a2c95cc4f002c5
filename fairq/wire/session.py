"""The part that both ends of a connection share: an outbox and heartbeats.

A session does no I/O and reads no clock. Its driver passes it messages and the time, sends those that `outgoing`
returns, and calls `expire` at `deadline`. So client and server can be joined in memory, under any clock.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from attrs import define, field

from fairq.wire.frames import Ping
from fairq.wire.raw_payloads import Message, to_message
from fairq.wire.terms import HEARTBEAT_S, TIMEOUT_S


@define(eq=False)
class Session:
    """An outbox of frames, and two deadlines: when to send a heartbeat, and when the other side has timed out.

    Each session sends heartbeats a little early, by `heartbeat_jitter` in [0, 1), so that they drift apart.
    """

    heartbeat_jitter: float = field(factory=random.random, kw_only=True)
    last_received_at: float = 0.0
    last_sent_at: float = 0.0
    is_timed_out: bool = field(default=False, init=False)  # nothing was received for TIMEOUT_S: close
    outgoing_bytes: int = field(default=0, init=False)  # approximate size of the frames that wait to be sent
    _outbox: list[Message] = field(factory=list, init=False)
    _beat_s: float = field(init=False)

    @_beat_s.default
    def _drift(self) -> float:
        return HEARTBEAT_S * (1 - self.heartbeat_jitter / 4)

    def send(self, kind: str, body: Mapping[str, Any] | None = None) -> None:
        """Put a frame into the outbox."""
        self.put(to_message({"type": kind, **(body or {})}))

    def put(self, message: Message) -> None:
        """Put an encoded frame into the outbox."""
        self._outbox.append(message)
        self.outgoing_bytes += len(message)

    def heard(self, now: float) -> None:
        """Note that part of a long message was received."""
        self.last_received_at = max(self.last_received_at, now)

    @property
    def has_outgoing(self) -> bool:
        """True if frames wait to be sent."""
        return bool(self._outbox)

    def outgoing(self, now: float) -> list[Message]:
        """Return the frames to send, in order."""
        if not self._outbox:
            return []
        messages, self._outbox, self.outgoing_bytes, self.last_sent_at = self._outbox, [], 0, now
        return messages

    def deadline(self) -> float:
        """Return when `expire` has something to do."""
        return min(self.last_sent_at + self._beat_s, self.last_received_at + TIMEOUT_S)

    def expire(self, now: float) -> None:
        """Send a heartbeat or note the time-out, if due."""
        if now >= self.last_received_at + TIMEOUT_S:
            self.is_timed_out = True
        elif now >= self.last_sent_at + self._beat_s:
            self.send(Ping.type)
