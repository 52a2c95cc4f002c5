"""The TLS handshakes of clients: in each turn of the scheduler a few go on, even if many hellos come at once."""

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
        handshake: Any = stream  # its type requires a socket as transport
        handshake.transport_stream = in_turns
        try:
            await stream.do_handshake()
        finally:
            handshake.transport_stream = tcp


@define(eq=False)
class _InTurns:
    """The stream of a handshake; each received piece waits for its turn."""

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
