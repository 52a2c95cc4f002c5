"""The layer between a session and its socket for threads: steps that never wait, from a URL to messages.

Any thread may drive a transport, and be interrupted between two steps.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf

from attrs import define

from fairq.client.channel import PIECE_BYTES, Channel, Target
from fairq.client.dialing import Address, Dialing, addresses_in
from fairq.client.transport import SEND_S
from fairq.wire.beside import Message
from fairq.wire.endings import Disconnected


def resolve(target: Target) -> list[Address]:
    """Look up the addresses of a server; how long that takes is the system's. Raises: Unavailable."""
    try:
        return addresses_in(socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM))
    except OSError as error:
        raise target.unreachable(error) from None


@define(eq=False)
class Transport(Dialing):
    """A connection to a server, from its first step on. `source(now)` hands out the messages to send."""

    source: Callable[[float], Sequence[Message]]

    def proceed(self, now: float) -> list[Message]:
        """Do what needs no waiting; returns messages that were received.

        Raises: FairqError if it cannot be opened; Disconnected once it was open.
        """
        if self.channel:
            return self._converse(self.channel)
        channel = self.open(now)
        return channel.websocket.early if channel else []  # they came right behind the handshake

    def _converse(self, channel: Channel) -> list[Message]:
        """Receive; `flush` is to follow. Raises: Disconnected, once all that was received has been returned."""
        try:
            data = self.receive()
        except OSError:
            data = b""
        messages = [] if data is None else channel.receive(data)
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
        if channel is None:
            return
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
        """Close the connection; tells the server so if that needs no waiting."""
        if self.channel:
            self.channel.websocket.close(1000)
            with suppress(OSError):
                self.send(self.channel.outgoing())
        self.abandon()
