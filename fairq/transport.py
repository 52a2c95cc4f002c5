"""The seam between sessions and sockets: texts over one websocket.

trio-websocket is used below its own server helpers, which let one client's misbehaviour end the process: every
connection has a nursery of its own here, every handshake and every send a deadline, and the socket is closed whatever
happens. A send that runs out of time leaves half a frame behind, so it closes the connection.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import h11
import trio
from attrs import define, frozen
from trio_websocket import (
    ConnectionClosed,
    ConnectionRejected,
    HandshakeError,
    WebSocketConnection,
    wrap_client_stream,
)
from wsproto.utilities import ProtocolError

from fairq.errors import BadFrame, FairqError, Forbidden, SettingsError, Unauthorized, Unavailable
from fairq.scopes import background
from fairq.wire.messages import MAX_MESSAGE_BYTES, SUBPROTOCOL

HANDSHAKE_S = 5.0
SEND_S = 5.0
CLOSE_S = 1.0
RECEIVE_BYTES = 65_536


class Disconnected(Exception):
    """The connection is gone; `code` is the other side's close code, if it gave one."""

    def __init__(self, reason: str, code: int = 0) -> None:
        super().__init__(reason)
        self.code = code


@define(eq=False)
class Transport:
    """One open websocket."""

    socket: WebSocketConnection
    peer: str

    async def send(self, text: str) -> None:
        """Send one text. Raises: Disconnected, also when it takes longer than SEND_S."""
        try:
            with trio.fail_after(SEND_S):
                await self.socket.send_message(text)
        except (ConnectionClosed, trio.TooSlowError) as error:
            raise Disconnected(str(error) or "the other side reads too slowly") from None

    async def receive(self) -> str:
        """Wait for the next text. Raises: Disconnected, BadFrame for binary messages."""
        try:
            message = await self.socket.get_message()
        except ConnectionClosed as error:
            raise Disconnected(str(error), error.reason.code if error.reason else 0) from None
        if isinstance(message, bytes):
            raise BadFrame("frames are text messages, not binary ones")
        return message

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Say good-bye, for at most CLOSE_S."""
        with trio.move_on_after(CLOSE_S):
            await self.socket.aclose(code, reason[:120])


@frozen
class Target:
    """Where a ws:// or wss:// URL leads."""

    url: str
    host: str
    port: int
    resource: str
    tls: ssl.SSLContext | None

    @classmethod
    def parse(cls, url: str, tls: ssl.SSLContext | None = None) -> Target:
        """Read a URL. Raises: SettingsError."""
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("ws", "wss") or not parts.hostname or port == -1:
            raise SettingsError(f"a server URL looks like ws://host:7700 or wss://host, not {url!r}", field="url")
        if parts.scheme == "wss":
            return cls(url, parts.hostname, port or 443, parts.path or "/", tls or ssl.create_default_context())
        return cls(url, parts.hostname, port or 7700, parts.path or "/", None)


def check_token(token: str) -> str:
    """Return a token that can travel in a header, less the white space around it. Raises: SettingsError."""
    text = token.strip()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise SettingsError("the token is not one: tokens are one word of ASCII letters", field="token")
    return text


@frozen
class _Reading:
    """Starts a connection's reader, and ends its handshake when the reader ends: it would wait for an answer still."""

    nursery: trio.Nursery
    handshake: trio.CancelScope

    def start_soon(self, reader: Callable[[], Awaitable[None]]) -> None:
        """Start it."""
        self.nursery.start_soon(self._read, reader)

    async def _read(self, reader: Callable[[], Awaitable[None]]) -> None:
        try:
            await reader()
        finally:
            self.handshake.cancel()


@asynccontextmanager
async def dial(target: Target, token: str) -> AsyncIterator[Transport]:
    """Connect to a server while the context lasts.

    Raises: Unauthorized or Forbidden if it will not have us; Unavailable if it cannot be reached, or breaks the rules.
    """
    stream: trio.SocketStream | trio.SSLStream[trio.SocketStream] | None = None
    socket: WebSocketConnection | None = None
    try:
        async with background() as nursery:  # trio-websocket's reader lives in it, and may raise into it
            with trio.fail_after(HANDSHAKE_S), trio.CancelScope() as handshake:
                stream = await trio.open_tcp_stream(target.host, target.port)
                if target.tls:
                    stream = trio.SSLStream(stream, target.tls, server_hostname=target.host, https_compatible=True)
                socket = await wrap_client_stream(
                    _Reading(nursery, handshake),  # type: ignore[arg-type]
                    stream, f"{target.host}:{target.port}", target.resource, subprotocols=[SUBPROTOCOL],
                    extra_headers=[(b"Authorization", b"Bearer " + token.encode())],
                    max_message_size=4 * MAX_MESSAGE_BYTES, receive_buffer_size=RECEIVE_BYTES,
                )  # fmt: skip
            if socket is None:
                await trio.lowlevel.checkpoint_if_cancelled()  # where the reader has told why, it is that
                raise OSError("it ended the connection before it answered")
            yield Transport(socket, target.url)
    except ConnectionRejected as error:
        raise _refusal(target, error) from None
    except (ProtocolError, h11.ProtocolError) as error:
        raise Unavailable(f"{target.url} broke the rules of websockets: {error}") from None
    except (OSError, HandshakeError, trio.TooSlowError, trio.BrokenResourceError) as error:
        if socket is not None:
            raise
        raise Unavailable(f"{target.url} cannot be reached: {error or type(error).__name__}") from None
    finally:
        if stream is not None:
            await trio.aclose_forcefully(stream)


def _refusal(target: Target, error: ConnectionRejected) -> FairqError:
    reason = (error.body or b"").decode(errors="replace").strip() or f"HTTP {error.status_code}"
    if error.status_code == 401:
        return Unauthorized(reason)
    if error.status_code == 403:
        return Forbidden(reason)
    return Unavailable(f"{target.url} refused the connection: {reason}")


def bearer_token(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """Find the token in a request's headers. Raises: Unauthorized."""
    for name, value in headers:
        if name.lower() == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            if scheme.lower() == "bearer" and token.strip():
                return token.strip()
    raise Unauthorized("send a token as `Authorization: Bearer <token>`")
