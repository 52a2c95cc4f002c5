"""Sending one message over a connection that has no session."""

from __future__ import annotations

from fairq.io.transport import Transport
from fairq.wire.connection_errors import Disconnected
from fairq.wire.raw_payloads import Message


async def send_message(transport: Transport, message: Message) -> None:
    """Send a message. Raises: Disconnected, also if a piece takes too long."""
    transport.websocket.send(message)
    await transport.flush()
    if transport.websocket.is_over:
        code, reason = transport.websocket.end
        raise Disconnected(reason, code)
