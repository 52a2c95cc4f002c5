"""The common part of both ends of a websocket: messages in and out, deadlines, and turns left to others.

The websocket does no I/O (fairq/wire/websocket.py). Each end adds its socket: fairq/server/engine/net/transport.py and
fairq/client/transport.py. Deadlines measure progress: a long message may take any time as long as bytes move. A
connection that has run for TURN_S yields to the scheduler.

Output is sent at the end of the scheduler's turn, as far as the socket takes it, so that what one turn has to say
shares a frame. A task of the connection's owner sends the rest by `flush`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, ClassVar

from attrs import define, field

from fairq.io.runtime import Event, Runtime
from fairq.wire.connection_errors import Disconnected
from fairq.wire.raw_payloads import Message

if TYPE_CHECKING:
    from fairq.wire.websocket import WebSocket

CLOSE_S = 1.0
TURN_S = 0.002
PIECE_BYTES = 65_536  # sent at once; a piece of a long message that counts as progress

Errors = tuple[type[Exception], ...]
Source = Callable[[float], Sequence[Message]]


def no_messages(_: float) -> Sequence[Message]:
    """Hand out nothing."""
    return ()


def nothing() -> None:
    """Do nothing."""


@define(eq=False)
class Transport(ABC):
    """One open websocket. One task receives at a time; any may `flush`.

    `source(now)` hands out the messages to send, whenever there is room for them. `stuck()` is called when the socket
    has not taken all of them: then its owner has to `flush`.
    """

    broken: ClassVar[Errors]  # what a socket raises that is broken or closed
    too_slow: ClassVar[Errors]  # what a deadline raises

    runtime: Runtime
    websocket: WebSocket
    remote: str
    _write: Callable[[bytearray], int]  # sends what the socket takes at once; returns the bytes sent; raises OSError
    _outgoing: Callable[[], bytes]  # what the websocket has to send, as it goes into the socket
    _source: Source = field(default=no_messages, kw_only=True)
    _stuck: Callable[[], None] = field(default=nothing, kw_only=True)
    progressed_at: float = field(default=-inf, init=False)  # when PIECE_BYTES more of a long message had come
    _messages: deque[Message] = field(factory=deque, init=False)
    _failure: Exception | None = field(default=None, init=False)  # for the next `receive`
    unsent: bytearray = field(factory=bytearray, kw_only=True)  # the socket has not taken them yet
    _is_sending: bool = field(default=False, init=False)
    _sent: Event = field(init=False)
    _is_over: Event = field(init=False)
    _turn_began: float = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._sent, self._is_over = self.runtime.make_event(), self.runtime.make_event()
        self._turn_began = self.runtime.current_time()

    @abstractmethod
    async def _read(self) -> None:
        """Process received bytes, and send the websocket's own answers before more are read."""

    @abstractmethod
    async def _send_piece(self) -> None:
        """Send up to PIECE_BYTES of the unsent bytes under a deadline. Raises: `broken`, `too_slow`."""

    @abstractmethod
    async def _linger(self) -> None:
        """Let the other side, which may still be sending, read why the connection ends."""

    def send_now(self) -> None:
        """Send the waiting output, as much of it as the socket takes."""
        if self._is_sending:
            return  # `flush` is running and sends this as well
        self._fill()
        if self.unsent:
            try:
                sent = self._write(self.unsent)
            except OSError:  # `flush` raises it
                sent = 0
            del self.unsent[:sent]
        if self.unsent:
            self.runtime.call_from_end(self._stuck)

    def _fill(self) -> None:
        """Append output from `source` to the unsent bytes, unless they are PIECE_BYTES or more."""
        if len(self.unsent) < PIECE_BYTES:
            for message in self._source(self.runtime.current_time()):
                self.websocket.send(message)
            self.unsent += self._outgoing()

    async def receive(self) -> Message:
        """Wait for the next message. Cancelled: no message is lost. Raises: Disconnected."""
        if self._messages and self.runtime.current_time() - self._turn_began > TURN_S:
            await self._yield_turn()
        while self._failure or not self._messages:
            if self._failure:
                raise self._failure
            if self.websocket.is_over:
                self._is_over.set()
                if self.websocket.has_failed:
                    await self._linger()
                raise self._disconnected()
            await self._read()
        return self._messages.popleft()

    async def _yield_turn(self) -> None:
        await self.runtime.checkpoint()
        self._turn_began = self.runtime.current_time()

    def _disconnected(self) -> Disconnected:
        code, reason = self.websocket.end
        return Disconnected(reason, code)

    async def flush(self) -> bool:
        """Send all waiting output, after any `flush` already running; returns whether there was any.

        Raises: Disconnected.
        """
        while self._is_sending:
            await self._sent.wait()
        has_sent, self._is_sending = False, True
        try:
            self._fill()
            while self.unsent:
                has_sent = True
                await self._send_piece()
                self._note_sent()
                self._fill()
        except BaseException as error:
            self.websocket.receive_end()  # part of a frame may have been sent: nothing can follow it
            self._is_over.set()
            self.unsent.clear()
            if isinstance(error, self.too_slow):
                raise Disconnected("the other side reads too slowly") from None
            if isinstance(error, self.broken):
                raise self._disconnected() from None
            raise
        finally:
            self._is_sending = False
            self._note_sent()
        return has_sent

    def _note_sent(self) -> None:
        self._sent.set()
        self._sent = self.runtime.make_event()

    async def wait_sent(self) -> None:
        """Wait until some of the unsent bytes have been sent."""
        await self._sent.wait()
