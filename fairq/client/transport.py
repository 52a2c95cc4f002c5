"""A client's end of a websocket: on a plain socket, under asyncio and trio. Its TLS: fairq/client/channel.py."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from math import inf

import anyio
from attrs import define, field

from fairq.client.channel import Channel
from fairq.io.runtime import Reader, Runtime
from fairq.io.transport import CLOSE_S, PIECE_BYTES, TURN_S, Transport
from fairq.wire.raw_payloads import Message

SEND_S = 30.0  # for each PIECE_BYTES: a server may let its tenant wait

Socket = socket.socket
BROKEN = (OSError, anyio.ClosedResourceError)


@define(eq=False)
class ClientTransport(Transport):
    """One open websocket of a client."""

    broken = BROKEN
    too_slow = (TimeoutError,)

    socket: Socket
    reader: Reader
    channel: Channel
    take: Callable[[Message, float], None] | None = field(default=None, init=False)  # gets messages; raises as it likes
    heard_at: float = field(default=-inf, init=False)  # when any bytes came last
    _has_answers: bool = field(default=False, init=False)  # among the unsent bytes

    @classmethod
    def of(
        cls, runtime: Runtime, sock: Socket, reader: Reader, channel: Channel, remote: str, unsent: bytearray
    ) -> ClientTransport:
        """Make one; `unsent`: what is left of the handshake."""
        return cls(
            runtime, channel.websocket, remote, sock.send, channel.outgoing, sock, reader, channel, unsent=unsent
        )

    def __attrs_post_init__(self) -> None:
        Transport.__attrs_post_init__(self)
        self._messages.extend(self.websocket.early)  # they came right behind the handshake
        self.reader.take = self._take

    async def _read(self) -> None:
        try:
            data = await self.reader.receive()
        except OSError:
            data = b""
        if data is not None:
            self._process(data)
        if self._has_answers:
            self._has_answers = False
            await self.flush()  # before reading on: a peer that sends pings and does not read must wait

    def _process(self, data: bytes) -> None:
        self._turn_began = self.heard_at = self.runtime.current_time()  # other tasks ran while this one waited
        messages = self.channel.receive(data)
        self._messages += messages
        if not messages and self.channel.has_progressed():
            self.progressed_at = self._turn_began
        if answers := self.channel.outgoing():
            self.unsent += answers
            self._has_answers = True

    def _take(self, data: bytes) -> bool:
        """Process bytes where no task has waited for a turn; returns False if the one that reads is to go on."""
        self._process(data)
        try:
            while self._messages and self.take:
                self.take(self._messages.popleft(), self._turn_began)
                if self._messages and self.runtime.current_time() - self._turn_began > TURN_S:
                    break
        except Exception as error:
            self._failure = error
        return not (self._messages or self._failure or self._has_answers or self.websocket.is_over)

    async def _send_piece(self) -> None:
        left = min(len(self.unsent), PIECE_BYTES)
        with anyio.fail_after(SEND_S):
            while left:
                sent = await send_some(self.socket, self.unsent[:left])
                del self.unsent[:sent]
                left -= sent
            await self.runtime.checkpoint()

    async def _linger(self) -> None:
        self.reader.take = None
        with anyio.move_on_after(CLOSE_S), suppress(*BROKEN):
            self.socket.shutdown(socket.SHUT_WR)
            while await self.reader.receive():
                pass


async def send_some(sock: socket.socket, data: bytes | bytearray) -> int:
    """Send some bytes, once there is room; returns how many. Raises: BROKEN."""
    while True:
        try:
            return sock.send(data)
        except (BlockingIOError, InterruptedError):
            await anyio.wait_writable(sock)


def close_now(sock: socket.socket, reader: Reader | None = None) -> None:
    """Close a socket; tasks that wait for it are woken with an error."""
    if reader:
        reader.close()
    if sock.fileno() >= 0:
        anyio.notify_closing(sock)
        sock.close()
