"""The server's end of a websocket: on a stream of trio, with or without TLS.

One connection does not take the time of others: input is processed in small slices (see also fairq/io/transport.py).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio
from attrs import define, field

from fairq.io.sockets import receive_some, send_now
from fairq.io.transport import CLOSE_S, PIECE_BYTES, TURN_S, Source, Transport, no_messages, nothing
from fairq.io.trio_runtime import trio_runtime
from fairq.io.turns import at_end_of_turn
from fairq.wire.connection_errors import Disconnected
from fairq.wire.websocket import WebSocket

HANDSHAKE_S = 5.0
SEND_S = 5.0  # for each PIECE_BYTES
RECEIVE_BYTES = 65_536
SLICE_BYTES = 2_048  # processed at once: up to 341 of the smallest frames
SPARE_FRAMES = 1_000  # frames per second that end no message; after more, reading pauses until the second is over

Stream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


@define(eq=False)
class ServerTransport(Transport):
    """One open websocket of a server."""

    broken = (trio.BrokenResourceError, trio.ClosedResourceError)
    too_slow = (trio.TooSlowError,)

    stream: Stream
    _arrived: memoryview  # received bytes that are not processed yet
    _since_progress: int = field(default=0, init=False)  # bytes
    _second_began: float = field(factory=trio.current_time, init=False)
    _spare_before: int = field(default=0, init=False)

    @classmethod
    def of(
        cls,
        stream: Stream,
        websocket: WebSocket,
        remote: str,
        early: bytes = b"",
        source: Source = no_messages,
        stuck: Callable[[], None] = nothing,
    ) -> ServerTransport:
        """Make one; `early` are the bytes that came behind the handshake: there may be many, so they wait as well."""
        runtime, write, outgoing = trio_runtime(), partial(send_now, stream), websocket.outgoing
        arrived = memoryview(early)
        return cls(runtime, websocket, remote, write, outgoing, stream, arrived, source=source, stuck=stuck)

    def wake_writer(self) -> None:
        """Send the waiting output at the end of the scheduler's turn."""
        at_end_of_turn(self.send_now)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Send a close frame, and wait for the answer for at most CLOSE_S; the receiving task must keep receiving."""
        self.websocket.close(code, reason)
        with trio.move_on_after(CLOSE_S), suppress(Disconnected):
            await self.flush()
            await self._is_over.wait()

    async def _read(self) -> None:
        if not self._arrived:
            try:
                self._arrived = memoryview(await receive_some(self.stream, RECEIVE_BYTES))
            except self.broken:
                self._arrived = memoryview(b"")
            self._turn_began = self.runtime.current_time()  # other tasks ran while this one waited
            self._since_progress += len(self._arrived)
            if not self._arrived:
                self.websocket.receive_end()
        while self._arrived:
            piece, self._arrived = bytes(self._arrived[:SLICE_BYTES]), self._arrived[SLICE_BYTES:]
            self._messages.extend(self.websocket.receive(piece))
            if self._arrived or self.websocket.spare_frames > self._spare_before:
                await self._rest()
        if self._messages:
            self._since_progress = 0
        elif self._since_progress >= PIECE_BYTES:
            self.progressed_at, self._since_progress = self.runtime.current_time(), 0
        if answers := self.websocket.outgoing():
            self.unsent += answers
            await self.flush()  # before reading on: a peer that sends pings and does not read must wait

    async def _rest(self) -> None:
        """Wait if this connection has used up its turn, or has sent too many frames that end no message."""
        now, spare = self.runtime.current_time(), self.websocket.spare_frames
        if spare - self._spare_before > SPARE_FRAMES:
            await trio.sleep_until(self._second_began + 1)
            now = self.runtime.current_time()
        if now >= self._second_began + 1:
            self._second_began, self._spare_before = now, spare
        if now - self._turn_began > TURN_S:
            await self._yield_turn()

    async def _send_piece(self) -> None:
        piece = bytes(self.unsent[:PIECE_BYTES])
        with trio.fail_after(SEND_S):
            await self.stream.send_all(piece)
        del self.unsent[: len(piece)]

    async def _linger(self) -> None:
        if isinstance(self.stream, trio.SocketStream):
            with trio.move_on_after(CLOSE_S), suppress(*self.broken, OSError):
                self.stream.socket.shutdown(trio.socket.SHUT_WR)
                while await receive_some(self.stream, RECEIVE_BYTES):
                    pass
