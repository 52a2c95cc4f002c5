"""The layer between the server's sessions and sockets: messages over one websocket.

The websocket does no I/O (fairq/wire/websocket.py). This module adds its socket and its deadlines, and keeps one
connection from taking the time of others: input is processed in small slices, and a connection that has run for TURN_S
yields to the scheduler. Deadlines measure progress: a long message may take any time as long as bytes move.

Output is sent at the end of the scheduler's turn (turns.py), or at once, as far as the socket takes it. For the rest,
`stuck()` is called, and a task of the connection's owner sends it by `flush`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf

import trio
from attrs import define, field

from fairq.errors import BadRequest, Unauthorized
from fairq.io.sockets import receive_some, send_now
from fairq.io.turns import at_end_of_turn, call_from_end
from fairq.wire.connection_errors import Disconnected
from fairq.wire.raw_payloads import Message
from fairq.wire.websocket import WebSocket

HANDSHAKE_S = 5.0
SEND_S = 5.0  # for each PIECE_BYTES
CLOSE_S = 1.0
TURN_S = 0.002
RECEIVE_BYTES = 65_536
SLICE_BYTES = 2_048  # processed at once: up to 341 of the smallest frames
PIECE_BYTES = 65_536  # sent at once; and so much of a long message counts as received
SPARE_FRAMES = 1_000  # frames per second that end no message; after more, reading pauses until the second is over

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]
_BROKEN = (trio.BrokenResourceError, trio.ClosedResourceError)


@define(eq=False)
class Transport:
    """One open websocket. One task receives at a time; any may `flush`.

    `source()` hands out the messages to send, whenever there is room for them.
    """

    stream: Stream
    websocket: WebSocket
    remote: str
    early: bytes = b""  # bytes received behind the handshake
    source: Callable[[], Sequence[Message]] = tuple
    stuck: Callable[[], None] = lambda: None
    progressed_at: float = field(default=-inf, init=False)  # when PIECE_BYTES more of a long message had come
    unsent_bytes: int = field(default=0, init=False)  # handed out by `source`, not yet taken by the socket
    _arrived: memoryview = field(init=False)  # received bytes that are not processed yet
    _messages: deque[Message] = field(factory=deque, init=False)
    _rest: bytes = field(default=b"", init=False)  # what the socket did not take at once
    _is_sending: bool = field(default=False, init=False)
    _sent: trio.Event = field(factory=trio.Event, init=False)
    _since_progress: int = field(default=0, init=False)  # bytes
    _is_over: trio.Event = field(factory=trio.Event, init=False)
    _turn_began: float = field(factory=trio.current_time, init=False)
    _second_began: float = field(factory=trio.current_time, init=False)
    _spare_before: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._arrived = memoryview(self.early)  # may be long: it is processed in slices too

    def wake_writer(self) -> None:
        """Send the waiting output at the end of the scheduler's turn."""
        at_end_of_turn(self.send_now)

    def send_now(self) -> None:
        """Send the waiting output, as far as the socket takes it."""
        if self._is_sending:
            return  # `flush` is running and sends this as well
        self._fill()
        if self._rest:
            self._rest = self._rest[send_now(self.stream, self._rest) :]
            self.unsent_bytes = len(self._rest)
        if self._rest:
            call_from_end(self.stuck)

    def _fill(self) -> None:
        """Append output from `source` to the unsent bytes, unless they are PIECE_BYTES or more."""
        if len(self._rest) < PIECE_BYTES:
            for message in self.source():
                self.websocket.send(message)
            self._rest += self.websocket.outgoing()
            self.unsent_bytes = len(self._rest)

    async def receive(self) -> Message:
        """Wait for the next message. Cancelled: no message is lost. Raises: Disconnected."""
        if self._messages and trio.current_time() - self._turn_began > TURN_S:
            await self._yield_turn()
        while not self._messages:
            if self.websocket.is_over:
                await self._end()
                raise self._disconnected()
            await self._read()
        return self._messages.popleft()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Send a close frame, and wait for the answer for at most CLOSE_S; the receiving task must keep receiving."""
        self.websocket.close(code, reason)
        with trio.move_on_after(CLOSE_S), suppress(Disconnected):
            await self.flush()
            await self._is_over.wait()

    def _disconnected(self) -> Disconnected:
        code, reason = self.websocket.end
        return Disconnected(reason, code)

    async def _read(self) -> None:
        """Process received bytes, a slice at a time, and send the websocket's own answers (pongs, close)."""
        if not self._arrived:
            try:
                self._arrived = memoryview(await receive_some(self.stream, RECEIVE_BYTES))
            except _BROKEN:
                self._arrived = memoryview(b"")
            self._turn_began = trio.current_time()  # other tasks ran while this one waited
            self._since_progress += len(self._arrived)
            if not self._arrived:
                self.websocket.receive_end()
        while self._arrived:
            piece, self._arrived = bytes(self._arrived[:SLICE_BYTES]), self._arrived[SLICE_BYTES:]
            self._messages.extend(self.websocket.receive(piece))
            if self._arrived or self.websocket.spare_frames > self._spare_before:
                await self._pace()
        if self._messages:
            self._since_progress = 0
        elif self._since_progress >= PIECE_BYTES:
            self.progressed_at, self._since_progress = trio.current_time(), 0
        if answers := self.websocket.outgoing():
            self._rest += answers
            await self.flush()  # before reading on: a peer that sends pings and does not read must wait

    async def _pace(self) -> None:
        """Wait if this connection has used up its turn, or has sent too many frames that end no message."""
        now, spare = trio.current_time(), self.websocket.spare_frames
        if spare - self._spare_before > SPARE_FRAMES:
            await trio.sleep_until(self._second_began + 1)
            now = trio.current_time()
        if now >= self._second_began + 1:
            self._second_began, self._spare_before = now, spare
        if now - self._turn_began > TURN_S:
            await self._yield_turn()

    async def _yield_turn(self) -> None:
        await trio.lowlevel.checkpoint()
        self._turn_began = trio.current_time()

    async def flush(self) -> bool:
        """Send all waiting output, after any `flush` already running; returns whether there was any.

        Raises: Disconnected.
        """
        while self._is_sending:
            await self._sent.wait()
        has_sent, self._is_sending = False, True
        try:
            self._fill()
            while data := self._rest:
                self._rest, has_sent = b"", True
                for start in range(0, len(data), PIECE_BYTES):
                    with trio.fail_after(SEND_S):
                        await self.stream.send_all(data[start : start + PIECE_BYTES])
                    self.unsent_bytes = max(0, len(data) - start - PIECE_BYTES)
                    self._note_sent()
                self._fill()
        except BaseException as error:
            self.websocket.receive_end()  # part of a frame may have been sent: nothing can follow it
            self._is_over.set()
            self._rest = b""
            if isinstance(error, trio.TooSlowError):
                raise Disconnected("the other side reads too slowly") from None
            if isinstance(error, _BROKEN):
                raise self._disconnected() from None
            raise
        finally:
            self._is_sending = False
            self._note_sent()
        return has_sent

    def _note_sent(self) -> None:
        self._sent.set()
        self._sent = trio.Event()

    async def wait_sent(self) -> None:
        """Wait until some of the unsent bytes have been sent."""
        await self._sent.wait()

    async def _end(self) -> None:
        """Let the other side read why the connection ends, if it broke a rule, though it may still be sending."""
        self._is_over.set()
        if self.websocket.has_failed and isinstance(self.stream, trio.SocketStream):
            with trio.move_on_after(CLOSE_S), suppress(*_BROKEN, OSError):
                self.stream.socket.shutdown(trio.socket.SHUT_WR)
                while await receive_some(self.stream, RECEIVE_BYTES):
                    pass


def bearer_token(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """Find the token in a request's headers. Raises: Unauthorized; BadRequest if there are two."""
    found = [value.decode("latin-1") for name, value in headers if name.lower() == b"authorization"]
    if len(found) > 1:
        raise BadRequest("the header Authorization is given twice", field="Authorization")
    scheme, _, token = "".join(found).partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    raise Unauthorized("missing token: send the header `Authorization: Bearer <token>`")
