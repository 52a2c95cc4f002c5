"""A client's end of a websocket: on a plain socket, under asyncio and trio. Its TLS: fairq/client/channel.py."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from math import inf

import anyio
from attrs import define, field

from fairq.client.channel import Channel
from fairq.client.connect_steps import ConnectSteps
from fairq.io.event_loop import current_runtime
from fairq.io.runtime import Reader
from fairq.io.transport import CLOSE_S, PIECE_BYTES, TURN_S, Source, Transport, no_messages, nothing
from fairq.wire.raw_payloads import Message

SEND_S = 30.0  # for each PIECE_BYTES: a server may let its tenant wait

Socket = socket.socket
Deliver = Callable[[Message, float], None]
BROKEN = (OSError, anyio.ClosedResourceError)


@define(eq=False)
class ClientTransport(Transport):
    """One open websocket of a client.

    While a task waits in `receive`, `deliver(message, now)` is given the messages in its place; `receive` raises what
    it raises.
    """

    broken = BROKEN
    too_slow = (TimeoutError,)

    socket: Socket
    channel: Channel
    _deliver: Deliver | None = field(default=None, kw_only=True)
    _reader: Reader = field(init=False)
    heard_at: float = field(default=-inf, init=False)  # when any bytes came last
    _has_answers: bool = field(default=False, init=False)  # among the unsent bytes

    @classmethod
    def of(
        cls,
        opened: ConnectSteps,
        source: Source = no_messages,
        stuck: Callable[[], None] = nothing,
        deliver: Deliver | None = None,
    ) -> ClientTransport:
        """Make one of a connection that is open."""
        sock, channel = opened.socket, opened.channel
        assert sock is not None
        assert channel is not None
        return cls(
            current_runtime(), channel.websocket, opened.target.url, sock.send, channel.outgoing, sock, channel,
            unsent=opened.unsent, source=source, stuck=stuck, deliver=deliver,
        )  # fmt: skip

    def __attrs_post_init__(self) -> None:
        Transport.__attrs_post_init__(self)
        self._messages.extend(self.websocket.early)  # they came right behind the handshake
        self._reader = self.runtime.make_reader(self.socket, self._take)

    async def _read(self) -> None:
        try:
            data = await self._reader.receive()
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
            while self._messages and self._deliver:
                self._deliver(self._messages.popleft(), self._turn_began)
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
        with anyio.move_on_after(CLOSE_S), suppress(*BROKEN):
            self.socket.shutdown(socket.SHUT_WR)
            while await self._reader.receive() != b"":
                pass

    def close(self) -> None:
        """Close the socket; tasks that wait for it are woken with an error."""
        self._reader.close()
        if self.socket.fileno() >= 0:
            anyio.notify_closing(self.socket)
            self.socket.close()


async def send_some(sock: socket.socket, data: bytes | bytearray) -> int:
    """Send some bytes, once there is room; returns how many. Raises: BROKEN."""
    while True:
        try:
            return sock.send(data)
        except (BlockingIOError, InterruptedError):
            await anyio.wait_writable(sock)
