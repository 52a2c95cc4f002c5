"""A listener for HTTP, of the tenants' API or of operators: its own accept loop around hypercorn's connections.

`hypercorn.trio.serve` is not used: an error of one of its connections ends it with all others (its issue 225), a client
that reads nothing holds its end up, and nothing limits its connections. So each connection is one of hypercorn's
on a BoundedStream, in a nursery of its own, where all its errors end (http11.py).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import structlog
import trio
from attrs import define, field
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from fairq.io.turns import Gate
from fairq.server.engine.net.admission import HTTP_PER_TURN, Admission
from fairq.server.engine.net.refusals import Refusals
from fairq.server.engine.net.tls import shake_hands
from fairq.server.engine.net.transport import HANDSHAKE_S, Stream
from fairq.server.listener import AnyListener, address_of
from fairq.server.settings import Settings
from fairq.server.web.http.bounds import HEAD_BYTES, HEAD_S, MAX_KEEP_ALIVE
from fairq.server.web.http.guard import Answering
from fairq.server.web.http.http11 import Http11
from fairq.server.web.http.problems import Problem
from fairq.server.web.http.stream import BoundedStream

BEGINS_PER_TURN = 2  # connections; each takes 1 ms
log = structlog.get_logger("fairq.server")

WRONG_PORT = (
    b"this port is for HTTP; clients and workers connect to the port of the server's ws:// URL (by default 7700)"
)
_LENGTH = b"%d" % len(WRONG_PORT)
_TEXT = [(b"content-type", b"text/plain"), (b"content-length", _LENGTH), (b"connection", b"close")]


def _config() -> Config:
    """Return hypercorn's settings; it logs nothing: headers hold tokens, and errors are logged here."""
    config = Config()
    config.accesslog = config.errorlog = None
    config.h11_max_incomplete_size = HEAD_BYTES
    config.keep_alive_timeout = HEAD_S
    config.keep_alive_max_requests = MAX_KEEP_ALIVE
    config.max_app_queue_size = 2
    config.include_server_header = False
    return config


@define(eq=False)
class HttpListener:
    """Serves an application to accepted streams."""

    settings: Settings
    admission: Admission  # for the tenants' API that of the websockets: a tenant's rates are for both
    nursery: trio.Nursery
    api: ASGIApp
    origins: Sequence[str] = ()  # of pages that may send requests
    takes_own_pages: bool = False  # pages that this listener served may ask too
    refusals: Refusals = field(factory=Refusals)
    idle: Admission = field(init=False)  # of connections without a request
    connections: int = field(default=0, init=False)
    _begins: Gate = field(factory=lambda: Gate(BEGINS_PER_TURN), init=False)  # of connections
    _strangers: Gate = field(factory=lambda: Gate(HTTP_PER_TURN), init=False)  # requests of unknown tokens
    _context: WorkerContext = field(init=False)
    _config: Config = field(factory=_config, init=False)
    _accepting: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    def __attrs_post_init__(self) -> None:
        self.idle, self._context = Admission(self.settings), WorkerContext(None)

    async def run(self, listeners: Sequence[AnyListener]) -> None:
        """Accept connections until stopped; open ones are still served."""
        with self._accepting:
            await trio.serve_listeners(self.handle, list(listeners), handler_nursery=self.nursery)

    async def stop(self) -> None:
        """Accept no more connections, and end the ones without a request."""
        self._accepting.cancel()
        await self._context.terminated.set()

    async def handle(self, stream: Stream) -> None:
        """Serve one connection; all its errors end here."""
        try:
            host, _ = address_of(stream)
            if self.admission.admits_handshake(host, trio.current_time()):
                with self.admission.connection_from(host):
                    await self._begins.enter()
                    await self._converse(stream, host)
        except* (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, OSError) as gone:
            log.debug("connection broke", error=repr(gone.exceptions[0]))
        except* Exception as group:
            log.warning("connection failed", error=repr(group.exceptions[0]))
        finally:
            await trio.aclose_forcefully(stream)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.connections += 1
        try:
            yield
        finally:
            self.connections -= 1

    async def _converse(self, stream: Stream, host: str) -> None:
        with trio.CancelScope() as scope:
            visit = Visit(self, host, scope)
            with visit.idle, self._counted():
                visit.rest()
                with trio.fail_after(HANDSHAKE_S):
                    await shake_hands(stream, self.admission.tls_turns)
                bounded: Any = BoundedStream(stream, visit.end)  # hypercorn names trio's own
                answering = Answering(self.api, bounded, self._check_origin, self.refusals, self._strangers)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_close_if_cancelled, stream)
                    app = ASGIWrapper(partial(visit.serve, answering))
                    await Http11(app, self._config, self._context, ConnectionState({}), bounded)
                    nursery.cancel_scope.cancel()

    def _check_origin(self, headers: Headers) -> None:
        """Refuse requests of web pages that may not ask. Raises: Problem."""
        origin = headers.get("origin")
        own = self.takes_own_pages and origin is not None and origin.partition("://")[2] == headers.get("host")
        if origin is not None and origin not in self.origins and not own:
            message = "this origin may not use the HTTP API; the setting `http_cors_origins` lists the allowed ones"
            raise Problem("forbidden", message)
        if self.settings.dev and not is_local(headers.get("host", "")):
            raise Problem("not_here", "with --dev, the header Host must name this machine: localhost or an address")


async def _close_if_cancelled(stream: Stream) -> None:
    """Close a stream when its connection is cancelled: hypercorn shields its sends."""
    try:
        await trio.sleep_forever()
    finally:
        await trio.aclose_forcefully(stream)


@define(eq=False)
class Visit:
    """One connection: while it has no request it counts as idle, and few may.

    Hypercorn would keep it for HEAD_S after its client has left.
    """

    listener: HttpListener
    host: str
    scope: trio.CancelScope
    idle: ExitStack = field(factory=ExitStack, init=False)
    has_request: bool = field(default=False, init=False)
    is_over: bool = field(default=False, init=False)

    def end(self) -> None:
        """End the connection when its request has ended: its client has left."""
        self.is_over = True
        if not self.has_request:
            self.scope.cancel()

    def rest(self) -> None:
        """Begin to wait for a request."""
        self.has_request = False
        if self.is_over:
            self.scope.cancel()
        self.idle.enter_context(self.listener.idle.handshake(self.host, self.scope))

    async def serve(self, answering: Answering, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        self.idle.close()
        self.has_request = True
        try:
            if scope["type"] != "http":
                await send({"type": "websocket.http.response.start", "status": 403, "headers": _TEXT})
                await send({"type": "websocket.http.response.body", "body": WRONG_PORT})
            else:
                await answering(scope, receive, send)
        finally:
            self.rest()


def is_local(host: str) -> bool:
    """True if a Host header cannot be a name that a foreign DNS has pointed here."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name.lower() == "localhost":
        return True
    try:
        return bool(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return False
