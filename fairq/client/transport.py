"""The layer between a client's session and its socket: messages over one websocket, under asyncio and trio.

Websocket and TLS do no I/O (fairq/client/channel.py). This module adds a plain non-blocking socket, and deadlines that
measure progress: a long message may take any time as long as bytes move.

Output is sent at the end of the scheduler's turn, as far as the socket takes it, so that calls made in one turn share a
frame. For the rest, `stuck()` is called, and a task of the connection's owner sends it by `flush`.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

import anyio
from attrs import define, field

from fairq.client.channel import PIECE_BYTES, Channel
from fairq.io.runtime import Event, Reader, Runtime
from fairq.wire.connection_errors import Disconnected
from fairq.wire.raw_payloads import Message

if TYPE_CHECKING:
    from fairq.wire.websocket import WebSocket

SEND_S = 30.0  # for each PIECE_BYTES: a server may let its tenant wait
CLOSE_S = 1.0
TURN_S = 0.002

BROKEN = (OSError, anyio.ClosedResourceError)


@define(eq=False)
class Transport:
    """One open websocket of a client. One task receives at a time; any may `flush`.

    `source(now)` hands out the messages to send, whenever there is room for them.
    """

    runtime: Runtime
    socket: socket.socket
    reader: Reader
    channel: Channel
    remote: str
    source: Callable[[float], Sequence[Message]] = lambda _: ()
    stuck: Callable[[], None] = lambda: None
    take: Callable[[Message, float], None] | None = None  # is given messages, and the time; raises as it likes
    progressed_at: float = field(default=0.0, init=False)  # when PIECE_BYTES more of a long message had come
    heard_at: float = field(default=-inf, init=False)  # when any bytes came last
    websocket: WebSocket = field(init=False)
    _messages: deque[Message] = field(factory=deque, init=False)
    _unsent: bytearray = field(factory=bytearray)
    _is_sending: bool = field(default=False, init=False)
    _sent: Event = field(init=False)
    _turn_began: float = field(init=False)
    _has_answers: bool = field(default=False, init=False)  # among the unsent bytes
    _failure: Exception | None = field(default=None, init=False)  # of `take`

    def __attrs_post_init__(self) -> None:
        self._sent = self.runtime.make_event()
        self._turn_began = self.runtime.current_time()
        self.websocket = self.channel.websocket
        self._messages.extend(self.websocket.early)  # they came right behind the handshake
        self.reader.take = self._take

    def send_now(self) -> None:
        """Send the waiting output, as much of it as the socket takes."""
        if self._is_sending:
            return  # `flush` is running and sends this as well
        self._fill()
        if self._unsent:
            try:
                sent = self.socket.send(self._unsent)
            except OSError:  # `flush` raises it
                sent = 0
            del self._unsent[:sent]
        if self._unsent:
            self.runtime.call_from_end(self.stuck)

    def _fill(self) -> None:
        """Append output from `source` to the unsent bytes, unless they are PIECE_BYTES or more."""
        if len(self._unsent) < PIECE_BYTES:
            for message in self.source(self.runtime.current_time()):
                self.websocket.send(message)
            self._unsent += self.channel.outgoing()

    async def receive(self) -> Message:
        """Wait for the next message. Cancelled: no message is lost. Raises: Disconnected, and what `take` does."""
        if self._messages and self.runtime.current_time() - self._turn_began > TURN_S:
            await self.runtime.checkpoint()
            self._turn_began = self.runtime.current_time()
        while self._failure or not self._messages:
            if self._failure:
                raise self._failure
            if self.websocket.is_over:
                await self._end()
                raise self._disconnected()
            await self._read()
        return self._messages.popleft()

    def _disconnected(self) -> Disconnected:
        code, reason = self.websocket.end
        return Disconnected(reason, code)

    async def _read(self) -> None:
        """Process received bytes, and send the websocket's own answers (pongs, close)."""
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
            self._unsent += answers
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

    async def flush(self) -> bool:
        """Send all waiting output, after any `flush` already running; returns whether there was any.

        Raises: Disconnected.
        """
        while self._is_sending:
            await self._sent.wait()
        has_sent, self._is_sending = False, True
        try:
            self._fill()
            while self._unsent:
                has_sent = True
                with anyio.fail_after(SEND_S):
                    await self._send_piece()
                self._fill()
        except BaseException as error:
            self.websocket.receive_end()  # part of a frame may have been sent: nothing can follow it
            self._unsent.clear()
            if isinstance(error, TimeoutError):
                raise Disconnected("the other side reads too slowly") from None
            if isinstance(error, BROKEN):
                raise self._disconnected() from None
            raise
        finally:
            self._is_sending = False
            self._sent.set()
            self._sent = self.runtime.make_event()
        return has_sent

    async def _send_piece(self) -> None:
        """Send one piece, and let others have a turn."""
        left = min(len(self._unsent), PIECE_BYTES)
        while left:
            sent = await send_some(self.socket, self._unsent[:left])
            del self._unsent[:sent]
            left -= sent
        await self.runtime.checkpoint()

    async def _end(self) -> None:
        """Let the other side read why the connection ends, if it broke a rule, though it may still be sending."""
        if self.websocket.has_failed:
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
