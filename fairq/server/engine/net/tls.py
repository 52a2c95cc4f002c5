"""The TLS handshakes of clients: in each turn of the scheduler a few go on, however many hellos come at once."""

from __future__ import annotations

from typing import Any

import trio
from attrs import define

from fairq.io.turns import Gate
from fairq.server.engine.net.transport import Stream


async def shake_hands(stream: Stream, turns: Gate) -> None:
    """Do the TLS handshake of a stream that has one. Raises: trio.BrokenResourceError."""
    if isinstance(stream, trio.SSLStream):
        tcp, in_turns = stream.transport_stream, _InTurns(stream.transport_stream, turns)
        handshake: Any = stream  # whose type says that its transport is a socket
        handshake.transport_stream = in_turns
        try:
            await stream.do_handshake()
        finally:
            handshake.transport_stream = tcp


@define(eq=False)
class _InTurns:
    """What a handshake uses of a stream; each piece that it receives waits for its turn."""

    stream: trio.SocketStream
    turns: Gate

    async def receive_some(self) -> bytes:
        """Receive a piece, which the handshake works on at once."""
        data = await self.stream.receive_some()
        await self.turns.enter()
        return bytes(data)

    async def send_all(self, data: bytes) -> None:
        """Send an answer."""
        await self.stream.send_all(data)
