"""The layer between a session and its socket for threads: steps that never wait, from a URL to messages.

A transport connects to one address of the server after the other, shakes hands, and then carries messages. Its driver
waits until its socket is ready or its deadline has come, and calls `proceed`; so any thread may drive it, and be
interrupted between two steps.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any

from attrs import define, field

from fairq.client.channel import PIECE_BYTES, Channel, Opening, Target
from fairq.client.dial import ADDRESS_S, HANDSHAKE_S
from fairq.client.runtime import RECEIVE_BYTES
from fairq.client.transport import SEND_S
from fairq.wire.beside import Message
from fairq.wire.endings import Disconnected, Refused

_UNDER_WAY = {errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK, errno.EINTR}

Address = tuple[int, int, tuple[Any, ...]]


def resolve(target: Target) -> list[Address]:
    """Look up the addresses of a server; how long that takes is the system's. Raises: Unavailable."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise target.unreachable(error) from None
    return [(family, protocol, address) for family, _, protocol, _, address in found]


@define(eq=False)
class Transport:
    """A connection to a server, from its first step on. `source()` hands out the messages to send."""

    target: Target
    token: str = field(repr=False)
    addresses: list[Address]
    source: Callable[[], Sequence[Message]]
    deadline: float = field(default=inf, init=False)  # when `proceed` is due, if the socket is not ready
    socket: socket.socket | None = field(default=None, init=False)
    channel: Channel | None = field(default=None, init=False)  # once it is open
    _opening: Opening | None = field(default=None, init=False)  # once it is connected
    _ends_at: float = field(default=inf, init=False)  # of all steps until it is open
    _unsent: bytearray = field(factory=bytearray, init=False)

    @property
    def wants_room(self) -> bool:
        """True if it waits for room in the socket."""
        return self._opening is None or bool(self._unsent)

    def proceed(self, now: float) -> list[Message]:
        """Do what needs no waiting; returns messages that were received.

        Raises: FairqError if it cannot be opened; Disconnected once it was open.
        """
        if self.channel:
            return self._converse(self.channel)
        try:
            return self._open(now)
        except Refused as error:
            raise self.target.refusal(error) from None
        except OSError as error:
            raise self.target.unreachable(error) from None

    def _open(self, now: float) -> list[Message]:
        """Go on until the channel is open. Raises: Refused, OSError."""
        self._ends_at = min(self._ends_at, now + HANDSHAKE_S)
        if now >= self._ends_at:
            raise TimeoutError
        if self._opening is None and not self._connect(now):
            return []
        assert self.socket is not None
        opening = self._opening
        if opening is None:
            opening = self._opening = Opening(self.target, self.token)
            self.deadline = self._ends_at
        try:
            self._send(opening.outgoing())
            if (data := self._receive()) is not None:
                self.channel = opening.receive(data)
                self._send(opening.outgoing())
        except ssl.SSLError:
            with suppress(OSError):
                self._send(opening.outgoing())  # tells it why
            raise
        if self.channel is None:
            return []
        self.deadline = inf
        return self.channel.websocket.early  # they came right behind the handshake

    def _connect(self, now: float) -> bool:
        """Go on connecting, to the next address if the last one failed; returns whether it is connected."""
        family, protocol, address = self.addresses[0]
        try:
            if self.socket is None:
                self.socket = socket.socket(family, socket.SOCK_STREAM, protocol)
                self.socket.setblocking(False)
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.deadline = min(self._ends_at, now + ADDRESS_S) if len(self.addresses) > 1 else self._ends_at
            code = self.socket.connect_ex(address)
        except OSError as error:  # a system without IPv6 has no such sockets, but addresses
            code = error.errno or errno.EAFNOSUPPORT
        if code in (0, errno.EISCONN):
            return True
        if code in _UNDER_WAY and now < self.deadline:
            return False
        self.abandon()
        del self.addresses[0]
        if self.addresses:
            return self._connect(now)
        raise TimeoutError if code in _UNDER_WAY else OSError(code, os.strerror(code))

    def _converse(self, channel: Channel) -> list[Message]:
        """Receive; `send` is to follow. Raises: Disconnected, once all that was received has been returned."""
        try:
            data = self._receive()
        except OSError:
            data = b""
        messages = [] if data is None else channel.receive(data)
        if not messages and channel.websocket.is_over:
            with suppress(OSError):
                self._send(channel.outgoing())
            code, reason = channel.websocket.end
            raise Disconnected(reason, code)
        if channel.websocket.is_over:
            self.deadline = 0.0  # the next step says so
        return messages

    def send(self, now: float) -> None:
        """Send what waits, as far as the socket takes it. Raises: Disconnected if it has taken nothing for SEND_S."""
        channel = self.channel
        if channel is None:
            return
        try:
            while True:
                has_room = len(self._unsent) < PIECE_BYTES
                if has_room:
                    for message in self.source():
                        channel.websocket.send(message)
                has_sent = self._send(channel.outgoing())
                if has_room or self._unsent:  # the source has handed out all that may be under way
                    break
        except OSError:
            channel.websocket.receive_end()
            raise Disconnected("the connection was lost") from None
        if not self._unsent:
            self.deadline = inf
        elif has_sent or self.deadline == inf:
            self.deadline = now + SEND_S
        elif now >= self.deadline:
            raise Disconnected("the other side reads too slowly")

    def _send(self, data: bytes) -> int:
        """Send bytes behind those that wait; returns how many left."""
        self._unsent += data
        if not self._unsent or self.socket is None:
            return 0
        try:
            sent = self.socket.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return 0
        del self._unsent[:sent]
        return sent

    def _receive(self) -> bytes | None:
        """Return bytes that are there; empty at the end, None if there are none yet."""
        assert self.socket is not None
        try:
            return self.socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return None

    def close(self) -> None:
        """Close the connection; tells the server so if that needs no waiting."""
        if self.channel:
            self.channel.websocket.close(1000)
            with suppress(OSError):
                self._send(self.channel.outgoing())
        self.abandon()

    def abandon(self) -> None:
        """Close this process's end, and tell the server nothing: another process may go on using the connection."""
        if self.socket:
            self.socket.close()
            self.socket = None
