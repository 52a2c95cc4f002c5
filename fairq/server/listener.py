"""The door: accepts connections, shakes hands, and lets nothing a client does reach beyond its own connection."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

import structlog
import trio
from attrs import define, field
from trio_websocket import ConnectionClosed, HandshakeError, WebSocketRequest, wrap_server_stream

from fairq.errors import FairqError, Forbidden, TooMany
from fairq.model import MAX_BATCH
from fairq.server.app import App
from fairq.server.auth import Identity
from fairq.server.opening import Opening
from fairq.server.peer import Peer
from fairq.server.verbs import carry_out
from fairq.transport import HANDSHAKE_S, RECEIVE_BYTES, Stream, Transport, bearer_token
from fairq.wire.messages import SUBPROTOCOL, Welcome
from fairq.wire.server_session import ServerSession
from fairq.wire.websocket import WebSocket

SERVER = f"fairq/{version('fairq')}"
log = structlog.get_logger("fairq.server")

MAX_HANDSHAKES = 512  # at once; more are closed unheard
AnyListener = trio.SocketListener | trio.SSLListener[trio.SocketStream]
DEV_WARNING = "this server runs with --dev: anybody on this machine may use any tenant's name"
_STATUS = {"unauthorized": 401, "forbidden": 403, "bad_request": 400, "too_many": 503, "unavailable": 503}


@define(eq=False)
class Listener:
    """Handles accepted streams for an App."""

    app: App
    handshakes: int = field(default=0, init=False)

    async def handle(self, stream: Stream) -> None:
        """Serve one connection, whatever happens on it."""
        if self.handshakes >= MAX_HANDSHAKES:
            await trio.aclose_forcefully(stream)
            return
        try:
            await self._converse(stream)
        except* (ConnectionClosed, HandshakeError, trio.BrokenResourceError, trio.ClosedResourceError, OSError) as gone:
            log.debug("connection broke", error=repr(gone.exceptions[0]))
        except* Exception as group:
            log.warning("connection failed", error=repr(group.exceptions[0]))
        finally:
            await trio.aclose_forcefully(stream)

    async def _converse(self, stream: Stream) -> None:
        peer: Peer | None = None
        self.handshakes += 1
        try:
            with trio.move_on_after(HANDSHAKE_S) as scope:
                opening = Opening(stream, scope)
                async with trio.open_nursery() as nursery:
                    request = await wrap_server_stream(nursery, opening, receive_buffer_size=RECEIVE_BYTES)
                    peer = await self._shake_hands(request, stream, opening)
                    nursery.cancel_scope.cancel()  # the library's reader
        finally:
            self.handshakes -= 1
        if peer is not None:
            await self.app.serve(peer)

    async def _shake_hands(self, request: WebSocketRequest, stream: Stream, opening: Opening) -> Peer | None:
        remote = address_of(stream)
        try:
            identity = await self._admit(request)
        except FairqError as error:
            log.info("connection refused", peer=remote, code=error.code, reason=error.message)
            await request.reject(_STATUS.get(error.code, 500), body=error.message.encode() + b"\n")
            return None
        await request.accept(subprotocol=SUBPROTOCOL)
        websocket = WebSocket.of_server(self.app.settings.max_message_bytes)
        now = trio.current_time()
        session = ServerSession(heard_at=now, spoke_at=now, role=identity.role)
        session.welcome(
            Welcome(
                role=identity.role.value,
                server=SERVER,
                session=secrets.token_hex(8),
                max_batch=MAX_BATCH,
                max_message_bytes=self.app.settings.max_message_bytes,
                tenant=identity.tenant or None,
                warning=DEV_WARNING if self.app.settings.dev else None,
            )
        )
        return Peer(Transport(stream, websocket, remote, opening.rest), identity, session, partial(carry_out, self.app))

    async def _admit(self, request: WebSocketRequest) -> Identity:
        """Decide whether to talk to this client at all. Raises: FairqError."""
        if self.app.is_draining or len(self.app.peers) >= self.app.settings.max_connections:
            raise TooMany("the server is stopping, or has all the connections it takes")
        if SUBPROTOCOL not in request.proposed_subprotocols:
            raise Forbidden(f"ask for the subprotocol {SUBPROTOCOL}")
        for name, value in request.headers:
            if name.lower() == b"origin" and value.decode("latin-1") not in self.app.settings.origins:
                raise Forbidden("this origin may not connect")
        return await self.app.auth.identify(bearer_token(request.headers))


async def open_listeners(host: str, port: int, tls: ssl.SSLContext | None) -> Sequence[AnyListener]:
    """Bind the port. Raises: OSError."""
    listeners = await trio.open_tcp_listeners(port, host=host)
    return listeners if tls is None else [trio.SSLListener(listener, tls) for listener in listeners]


def address_of(stream: Stream) -> str:
    """Return the other end of a stream, for the log."""
    tcp = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    host, port, *_ = tcp.socket.getpeername()
    return f"{host}:{port}"


def port_of(listener: AnyListener) -> int:
    """Return the port that a listener got."""
    tcp: Any = listener.transport_listener if isinstance(listener, trio.SSLListener) else listener
    port: int = tcp.socket.getsockname()[1]
    return port
