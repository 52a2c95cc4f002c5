"""From a URL and a token to an open transport, under asyncio and trio."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from fairq.client.channel import Channel, Target
from fairq.client.dialing import HANDSHAKE_S, Dialing, addresses_in
from fairq.client.runtime import Reader, Runtime, current_runtime
from fairq.client.transport import Transport, close_now


@asynccontextmanager
async def dial(target: Target, token: str) -> AsyncIterator[Transport]:
    """Connect to a server while the context lasts.

    Raises: Unauthorized or Forbidden if it refuses us; Unavailable if it cannot be reached, or breaks the protocol.
    """
    runtime = current_runtime()
    dialing = Dialing(target, token, [], runtime.current_time() + HANDSHAKE_S)
    reader: Reader | None = None
    try:
        channel = await _open(dialing, runtime)
        assert dialing.socket is not None
        reader = runtime.make_reader(dialing.socket)
        yield Transport(runtime, dialing.socket, reader, channel, target.url, unsent=dialing.unsent)
    finally:
        if dialing.socket is not None:
            close_now(dialing.socket, reader)


async def _open(dialing: Dialing, runtime: Runtime) -> Channel:
    """Look up the server's addresses, and take all steps."""
    target = dialing.target
    try:
        with anyio.CancelScope(deadline=dialing.ends_at):
            found = await anyio.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
            dialing.addresses = addresses_in(found)
    except OSError as error:
        raise target.unreachable(error) from None
    while (channel := dialing.open(runtime.current_time())) is None:
        assert dialing.socket is not None
        with anyio.CancelScope(deadline=dialing.deadline):
            await (anyio.wait_writable if dialing.wants_room else anyio.wait_readable)(dialing.socket)
    return channel
