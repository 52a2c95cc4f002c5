"""The layer between a session and its socket for threads: steps that never wait, from a URL to messages.

Any thread may drive a transport, and be interrupted between two steps.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf

from attrs import define, field

from fairq.client.channel import Target
from fairq.client.connect_steps import Address, ConnectSteps, addresses_in
from fairq.client.transport import SEND_S
from fairq.io.transport import PIECE_BYTES
from fairq.wire.connection_errors import Disconnected
from fairq.wire.raw_payloads import Message


def resolve(target: Target, turn: int) -> list[Address]:
    """Look up the addresses of a server; how long that takes is the system's. Raises: Unavailable."""
    try:
        return addresses_in(socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM), turn)
    except OSError as error:
        raise target.unreachable(error) from None


@define(eq=False)
class Transport(ConnectSteps):
    """A connection to a server, from its first step on. `source(now)` hands out the messages to send."""

    source: Callable[[float], Sequence[Message]]
    heard_at: float = field(default=-inf, init=False)  # when any bytes came last
    early: list[Message] = field(factory=list, init=False)  # came right behind the handshake

    def open_up(self, now: float) -> bool:
        """Go on opening it, without waiting; returns whether it is open. Raises: FairqError if it cannot be."""
        channel = self.open(now)
        if channel:
            self.early = channel.websocket.early
        return channel is not None

    def proceed(self, now: float) -> list[Message]:
        """Receive; call `flush` afterwards. Raises: Disconnected, once all that was received has been returned."""
        channel = self.channel
        assert channel is not None
        try:
            data = self.receive()
        except OSError:
            data = b""
        if data:
            self.heard_at = now
        messages = [] if data is None else channel.receive(data)
        if self.early:
            messages, self.early = self.early + messages, []
        if not messages and channel.websocket.is_over:
            with suppress(OSError):
                self.send(channel.outgoing())
            code, reason = channel.websocket.end
            raise Disconnected(reason, code)
        if channel.websocket.is_over:
            self.deadline = 0.0  # the next step says so
        return messages

    def flush(self, now: float) -> None:
        """Send what waits, as far as the socket takes it. Raises: Disconnected if it has taken nothing for SEND_S."""
        channel = self.channel
        assert channel is not None
        try:
            while True:
                has_room = len(self.unsent) < PIECE_BYTES
                if has_room:
                    for message in self.source(now):
                        channel.websocket.send(message)
                has_sent = self.send(channel.outgoing())
                if has_room or self.unsent:  # the source has handed out all that may be under way
                    break
        except OSError:
            channel.websocket.receive_end()
            raise Disconnected("the connection was lost") from None
        if not self.unsent:
            self.deadline = inf
        elif has_sent or self.deadline == inf:
            self.deadline = now + SEND_S
        elif now >= self.deadline:
            raise Disconnected("the other side reads too slowly")

    def close(self) -> None:
        """Close the connection; says so to the server if that needs no waiting."""
        if self.channel:
            self.channel.websocket.close(1000)
            with suppress(OSError):
                self.send(self.channel.outgoing())
        self.abandon()
