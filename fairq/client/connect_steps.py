"""The steps from an address to an open channel; none of them waits, so every runtime shares them.

A server that takes a connection may be frozen all the same. So a client soon begins to connect to the next address
too, and uses the first connection that is open. The others are closed. A name may have an address for each of several
servers: each turn begins with another one. An address may lead to several servers or processes: it is tried again too.
Which process a connection comes to is chance: one that is frozen may get several in a row. A server that is only busy
may take all of HANDSHAKE_S, so after a round of the URLs, and EVEN tries at least, the pauses are twice as long.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf
from typing import Any

from attrs import define, field

from fairq.client.channel import Channel, Opening, Target
from fairq.io.forks import keep_from_children
from fairq.io.runtime import RECEIVE_BYTES
from fairq.wire.connection_errors import Refused
from fairq.wire.suspicion import BESIDE_S

HANDSHAKE_S = 15.0  # a server that thousands come back to at once takes them in turn
ADDRESS_S = 1.0  # for one address of a name that has more
EVEN = 4

_UNDER_WAY = {errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK, errno.EINTR}

Address = tuple[int, int, tuple[Any, ...]]


@define
class Servers:
    """A client's servers in turn, without end."""

    targets: Sequence[Target]
    _next: int = field(default=0, init=False)
    _tried: int = field(default=0, init=False)

    @property
    def names(self) -> str:
        """Name them, for the log."""
        return ",".join(target.url for target in self.targets)

    def next(self) -> Target:
        """Return the one to try next."""
        target = self.targets[self._next]
        self._tried += 1
        self.reached(target)
        return target

    @property
    def turn(self) -> int:
        """How often each was tried before the last of `next`."""
        return (self._tried - 1) // len(self.targets)

    def reached(self, target: Target) -> None:
        """Note which one is used: the one behind it is the next."""
        self._next = (self.targets.index(target) + 1) % len(self.targets)

    def pause_s(self, begun: int) -> float:
        """Return how long to wait for so many connections that were begun, before another one is."""
        return BESIDE_S * 2.0 ** ((begun - 1) // max(EVEN, len(self.targets)))


def addresses_in(found: Iterable[tuple[int, int, int, str, tuple[Any, ...]]], turn: int) -> list[Address]:
    """Return the addresses that a look-up found, in each turn from another one on."""
    addresses = [(family, protocol, address) for family, _, protocol, _, address in found]
    start = turn % len(addresses)
    return addresses[start:] + addresses[:start]


@define(eq=False)
class ConnectSteps:
    """A connection to one address of a server after the other, and then the handshakes.

    Its owner waits until the socket is ready or the deadline has come, and calls `proceed`.
    """

    target: Target
    token: str = field(repr=False)
    addresses: list[Address]
    ends_at: float  # of all steps
    deadline: float = field(default=inf, init=False)  # when `proceed` is due, if the socket is not ready
    socket: socket.socket | None = field(default=None, init=False)
    channel: Channel | None = field(default=None, init=False)  # once it is open
    unsent: bytearray = field(factory=bytearray, init=False)
    _opening: Opening | None = field(default=None, init=False)  # once it is connected

    @property
    def wants_room(self) -> bool:
        """True if it waits for room in the socket."""
        return self._opening is None or bool(self.unsent)

    def open(self, now: float) -> Channel | None:
        """Go on; returns the channel once it is open. Raises: FairqError if there can be none."""
        try:
            self._open(now)
            return self.channel
        except Refused as error:
            raise self.target.refusal(error) from None
        except OSError as error:
            raise self.target.unreachable(error) from None

    def _open(self, now: float) -> None:
        if now >= self.ends_at:
            raise TimeoutError
        if self._opening is None:
            if not self._connect(now):
                return
            self._opening, self.deadline = Opening(self.target, self.token), self.ends_at
        opening = self._opening
        try:
            self.send(opening.outgoing())
            if (data := self.receive()) is not None:
                self.channel = opening.receive(data)
                self.send(opening.outgoing())
        except ssl.SSLError:
            with suppress(OSError):
                self.send(opening.outgoing())  # tells the server why
            raise
        if self.channel is not None:
            self.deadline = inf

    def _connect(self, now: float) -> bool:
        """Go on connecting, to the next address if the last one failed; returns whether it is connected."""
        family, protocol, address = self.addresses[0]
        try:
            if self.socket is None:
                self.socket = socket.socket(family, socket.SOCK_STREAM, protocol)
                keep_from_children(self.socket)
                self.socket.setblocking(False)
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.deadline = min(self.ends_at, now + ADDRESS_S) if len(self.addresses) > 1 else self.ends_at
            failed = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)  # Windows would begin again
            code = failed or self.socket.connect_ex(address)
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

    def send(self, data: bytes) -> int:
        """Send bytes behind those that wait, as far as the socket takes them; returns how many left."""
        self.unsent += data
        if not self.unsent or self.socket is None:
            return 0
        try:
            sent = self.socket.send(self.unsent)
        except (BlockingIOError, InterruptedError):
            return 0
        del self.unsent[:sent]
        return sent

    def receive(self) -> bytes | None:
        """Return bytes that are there; empty at the end, None if there are none yet."""
        assert self.socket is not None
        try:
            return self.socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return None

    def abandon(self) -> None:
        """Close this process's end, and tell the server nothing: another process may go on using the connection."""
        if self.socket:
            self.socket.close()
            self.socket = None
