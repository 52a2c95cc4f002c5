"""From a URL and a token to an open link."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import anyio
from attrs import frozen

from fairq.client.link import BROKEN, Link, close_now, send_all
from fairq.client.runtime import Reader, Runtime, current_runtime
from fairq.client.tls import Tls
from fairq.errors import FairqError, Forbidden, SettingsError, Unauthorized, Unavailable
from fairq.wire.websocket import ClientHandshake, Refused, WebSocket

HANDSHAKE_S = 5.0
ADDRESS_S = 1.0  # for one address of a name that has more


@frozen
class Target:
    """Where a ws:// or wss:// URL leads."""

    url: str
    host: str
    port: int
    resource: str
    tls: ssl.SSLContext | None

    @property
    def address(self) -> str:
        """Spell the URL with its port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'wss' if self.tls else 'ws'}://{host}:{self.port}{self.resource}"

    @classmethod
    def parse(cls, url: str, tls: ssl.SSLContext | None = None) -> Target:
        """Read a URL. Raises: SettingsError."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("ws", "wss") or not parts.hostname or port == -1:
            raise SettingsError(f"invalid server URL {url!r}: expected ws://host:port or wss://host", field="url")
        if parts.scheme == "wss":
            return cls(url, parts.hostname, port or 443, parts.path or "/", tls or ssl.create_default_context())
        return cls(url, parts.hostname, port or 7700, parts.path or "/", None)


def check_token(token: str) -> str:
    """Return a token without surrounding white space, checked for use in a header. Raises: SettingsError."""
    text = token.strip()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise SettingsError("invalid token: printable ASCII without spaces", field="token")
    return text


@asynccontextmanager
async def dial(target: Target, token: str, runtime: Runtime | None = None) -> AsyncIterator[Link]:
    """Connect to a server while the context lasts.

    Raises: Unauthorized or Forbidden if it refuses us; Unavailable if it cannot be reached, or breaks the protocol.
    """
    runtime = runtime or current_runtime()
    sock: socket.socket | None = None
    reader: Reader | None = None
    try:
        try:
            with anyio.fail_after(HANDSHAKE_S):
                sock = await _connect(target.host, target.port)
                reader = runtime.make_reader(sock)
                tls = await _start_tls(sock, reader, target)
                websocket = await _shake_hands(sock, reader, tls, target, token)
        except Refused as error:
            raise _refusal(target, error) from None
        except BROKEN as error:
            raise Unavailable(f"{target.url} cannot be reached: {error or type(error).__name__}") from None
        yield Link(runtime, sock, reader, tls, websocket, target.url)
    finally:
        if sock is not None:
            close_now(sock, reader)


async def _connect(host: str, port: int) -> socket.socket:
    """Connect to the first address of a name that answers; the last one gets all the time that is left."""
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


async def _start_tls(sock: socket.socket, reader: Reader, target: Target) -> Tls | None:
    if target.tls is None:
        return None
    tls = Tls(target.tls, target.host)
    data = b""
    try:
        while not tls.shake_hands(data):
            await send_all(sock, tls.leaving())
            data = await reader.receive()
            if not data:
                raise OSError("the server closed the connection before it answered")
    except ssl.SSLError:
        with suppress(OSError):
            sock.send(tls.leaving())  # tells it why
        raise
    return tls  # the last bytes of the handshake leave with the request


async def _shake_hands(sock: socket.socket, reader: Reader, tls: Tls | None, target: Target, token: str) -> WebSocket:
    handshake = ClientHandshake(target.address, token)
    request = handshake.outgoing()
    await send_all(sock, tls.encrypt(request) if tls else request)
    while True:
        data = await reader.receive()
        if data and tls:
            data = tls.decrypt(data)
            if not data and not tls.has_ended:
                continue  # a session ticket
        if (websocket := handshake.receive(data)) is not None:
            return websocket


def _refusal(target: Target, refused: Refused) -> FairqError:
    if refused.status == 401:
        return Unauthorized(str(refused))
    if refused.status == 403:
        return Forbidden(str(refused))
    if refused.status:
        return Unavailable(f"{target.url} refused the connection: {refused}")
    return Unavailable(f"{target.url} cannot be reached: {refused}")
