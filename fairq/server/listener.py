"""The listener: accepts connections, does the handshake, and confines a client's errors to its own connection."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from typing import Any

import structlog
import trio
from attrs import define, field
from trio_websocket import ConnectionClosed, HandshakeError, WebSocketRequest, wrap_server_stream

from fairq.errors import FairqError, Forbidden, TooMany
from fairq.io.auto_reset_event import AutoResetEvent
from fairq.io.sockets import is_over, socket_of
from fairq.io.turns import Gate
from fairq.model.checks import MAX_BATCH
from fairq.server.engine.app import App
from fairq.server.engine.net.admission import RECONNECT_MS, Admission, Usage
from fairq.server.engine.net.auth import Identity, bearer_token
from fairq.server.engine.net.opening import Opening, read_request
from fairq.server.engine.net.socket_connection import SocketConnection
from fairq.server.engine.net.tls import shake_hands
from fairq.server.engine.net.transport import HANDSHAKE_S, RECEIVE_BYTES, ServerTransport, Stream
from fairq.server.engine.verbs.table import handle_request
from fairq.server.fleet import shared_listeners
from fairq.server.rated_log import RatedLog
from fairq.wire.frames import Welcome
from fairq.wire.server_session import ServerSession
from fairq.wire.terms import SUBPROTOCOL, Role
from fairq.wire.websocket import WebSocket

BEGINS_PER_TURN, ENDS_PER_TURN = 4, 8  # of connections: a handshake takes 1 ms, an end 0.3 ms
QUEUE_S = 10.0  # for which a handshake may wait for its turn: clients wait for fifteen in all
SERVER = f"fairq/{version('fairq')}"
log = structlog.get_logger("fairq.server")

AnyListener = trio.SocketListener | trio.SSLListener[trio.SocketStream]
DEV_WARNING = "this server runs with --dev: any user of this machine may act as any tenant"
_STATUS = {
    "unauthorized": 401,
    "token_expired": 401,
    "forbidden": 403,
    "bad_request": 400,
    "too_many": 503,
    "unavailable": 503,
}


@define(eq=False)
class Listener:
    """Handles accepted streams for an App."""

    app: App
    admission: Admission = field(init=False)
    refused: RatedLog = field(factory=RatedLog, init=False)
    begins: Gate = field(factory=lambda: Gate(BEGINS_PER_TURN), init=False)
    ends: dict[Role, Gate] = field(factory=lambda: {role: Gate(ENDS_PER_TURN) for role in Role}, init=False)

    def __attrs_post_init__(self) -> None:
        self.admission = Admission(self.app.settings)

    async def handle(self, stream: Stream) -> None:
        """Serve one connection; all its errors end here."""
        try:
            host, port = address_of(stream)
            if self.admission.admits_handshake(host, trio.current_time()):
                await self._converse(stream, host, port)
        except* (ConnectionClosed, HandshakeError, trio.BrokenResourceError, trio.ClosedResourceError, OSError) as gone:
            log.debug("connection broke", error=repr(gone.exceptions[0]))
        except* Exception as group:
            log.warning("connection failed", error=repr(group.exceptions[0]))
        finally:
            await trio.aclose_forcefully(stream)

    async def _converse(self, stream: Stream, host: str, port: int) -> None:
        connection: SocketConnection | None = None
        with ExitStack() as inside:
            with trio.move_on_after(HANDSHAKE_S) as scope, self.admission.handshake(host, scope):
                await shake_hands(stream, self.admission.tls_turns)
                asked, rest = await read_request(stream)
                if not asked:
                    return
                scope.deadline += QUEUE_S  # the wait for other handshakes does not count
                await self.begins.enter()
                scope.deadline = trio.current_time() + HANDSHAKE_S
                if is_over(stream):  # it has given up, and must not delay the handshakes behind it
                    return
                opening = Opening(stream, scope, asked)
                async with trio.open_nursery() as nursery:
                    request = await wrap_server_stream(nursery, opening, receive_buffer_size=RECEIVE_BYTES)
                    try:
                        identity = await self._admit(request)
                        usage = inside.enter_context(self.admission.connection(host, identity))
                    except FairqError as error:
                        cause = {"remote": f"{host}:{port}", "code": error.code, "reason": error.message}
                        self.refused.info("connection refused", request=(id := secrets.token_hex(8)), **cause)
                        self.app.refusals.counts[error.code] += 1
                        await _reject(request, error, id)
                    else:
                        await request.accept(subprotocol=SUBPROTOCOL)
                        connection = self._connection_of(stream, rest, f"{host}:{port}", identity, usage)
                    nursery.cancel_scope.cancel()  # the library's reader
            if connection is not None:
                await self.app.serve(connection)

    def _connection_of(
        self, stream: Stream, early: bytes, remote: str, identity: Identity, usage: Usage | None
    ) -> SocketConnection:
        """Make the connection of an open websocket; `early` are the bytes that came behind the handshake."""
        app, session, woken = self.app, self._session_of(identity), AutoResetEvent(trio.Event)
        websocket = WebSocket.of_server(app.settings.message_bytes)
        return SocketConnection(
            remote, identity, session, partial(handle_request, app), usage, app.queues.credit_changed, app.refusals,
            transport=ServerTransport.of(stream, websocket, remote, early, session.outgoing, woken.set),
            woken=woken, ends=self.ends[identity.role],
        )  # fmt: skip

    def _session_of(self, identity: Identity) -> ServerSession:
        """Make a session, with a `welcome` in its outbox."""
        now = trio.current_time()
        settings = self.app.settings
        session = ServerSession(last_received_at=now, last_sent_at=now, role=identity.role)
        session.max_payload_bytes = settings.max_payload_bytes
        session.welcome(
            Welcome(
                role=identity.role.value,
                server=SERVER,
                session=secrets.token_hex(8),
                max_batch=MAX_BATCH,
                max_message_bytes=settings.message_bytes,
                max_payload_bytes=settings.max_payload_bytes,
                tenant=identity.tenant or None,
                warning=DEV_WARNING if settings.dev else None,
            )
        )
        return session

    async def _admit(self, request: WebSocketRequest) -> Identity:
        """Return the identity of a client that may connect. Raises: FairqError if it may not."""
        if self.app.is_draining:
            raise TooMany("the server is stopping; connect again later or to another server", retry_in_ms=RECONNECT_MS)
        if len(self.app.connections) >= (limit := self.app.settings.max_connections):
            raise TooMany(f"connection limit reached: at most {limit} for this server", retry_in_ms=RECONNECT_MS)
        if SUBPROTOCOL not in request.proposed_subprotocols:
            raise Forbidden(f"missing subprotocol: request {SUBPROTOCOL}")
        for name, value in request.headers:
            if name.lower() == b"origin" and value.decode("latin-1") not in self.app.settings.origins:
                raise Forbidden("this origin may not connect; the setting `origins` lists the allowed ones")
        return await self.app.auth.identify(bearer_token(request.headers))


async def _reject(request: WebSocketRequest, error: FairqError, id: str) -> None:
    """Refuse a handshake by HTTP, with the reason and the time to try again."""
    retry_in_ms = error.retry_in_ms or 0
    headers = [(b"X-Request-Id", id.encode())]
    headers += [(b"Retry-After", b"%d" % -(-retry_in_ms // 1000))] if retry_in_ms else []
    body = error.message.encode() + b"\n"
    await request.reject(_STATUS.get(error.code, 500), extra_headers=headers, body=body)


async def open_listeners(
    host: str, port: int, tls: ssl.SSLContext | None, *, is_shared: bool = False
) -> Sequence[AnyListener]:
    """Bind the port, shared with other processes if `is_shared`. Raises: OSError."""
    listeners = shared_listeners(host, port) if is_shared else await trio.open_tcp_listeners(port, host=host)
    return listeners if tls is None else [trio.SSLListener(listener, tls) for listener in listeners]


def address_of(stream: Stream) -> tuple[str, int]:
    """Return the host and port of the other end of a stream. Raises: OSError if it is gone."""
    sock = socket_of(stream)
    assert sock is not None
    host, port, *_ = sock.getpeername()
    return host, port


def port_of(listener: AnyListener) -> int:
    """Return the port that a listener got."""
    tcp: Any = listener.transport_listener if isinstance(listener, trio.SSLListener) else listener
    port: int = tcp.socket.getsockname()[1]
    return port
