"""From a URL and a token to an open transport."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio

from fairq.client.channel import Channel, Opening, Target
from fairq.client.runtime import Reader, current_runtime
from fairq.client.transport import BROKEN, Transport, close_now, send_all
from fairq.wire.endings import Refused

HANDSHAKE_S = 15.0  # a server that thousands come back to at once takes them in turn
ADDRESS_S = 1.0  # for one address of a name that has more


@asynccontextmanager
async def dial(target: Target, token: str) -> AsyncIterator[Transport]:
    """Connect to a server while the context lasts.

    Raises: Unauthorized or Forbidden if it refuses us; Unavailable if it cannot be reached, or breaks the protocol.
    """
    runtime = current_runtime()
    sock: socket.socket | None = None
    reader: Reader | None = None
    try:
        try:
            with anyio.fail_after(HANDSHAKE_S):
                sock = await _connect(target.host, target.port)
                reader = runtime.make_reader(sock)
                channel = await _open(sock, reader, Opening(target, token))
        except Refused as error:
            raise target.refusal(error) from None
        except BROKEN as error:
            raise target.unreachable(error) from None
        yield Transport(runtime, sock, reader, channel, target.url)
    finally:
        if sock is not None:
            close_now(sock, reader)


async def _connect(host: str, port: int) -> socket.socket:
    """Connect to the first address of a name that answers; the last one gets all the remaining time."""
    addresses = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, _, protocol, _, address in addresses[:-1]:
        with suppress(OSError), anyio.move_on_after(ADDRESS_S):
            return await _connect_to(family, protocol, address)
    family, _, protocol, _, address = addresses[-1]
    return await _connect_to(family, protocol, address)


async def _connect_to(family: int, protocol: int, address: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(BlockingIOError, InterruptedError):
            sock.connect(address)
        await anyio.wait_writable(sock)
        if error := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, os.strerror(error))
    except BaseException:
        close_now(sock)
        raise
    return sock


async def _open(sock: socket.socket, reader: Reader, opening: Opening) -> Channel:
    """Shake hands."""
    while True:
        await send_all(sock, opening.outgoing())
        data = await reader.receive() or b""
        try:
            channel = opening.receive(data)
        except ssl.SSLError:
            with suppress(OSError):
                sock.send(opening.outgoing())  # tells it why
            raise
        if channel is not None:
            return channel
