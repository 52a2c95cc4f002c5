"""HTTP requests as connections for the rest of the server: all requests of one token are one connection.

So the verbs, the limits of requests and waits, the rates of tenants, revoked tokens and the drain of a server are
those of websockets. Nothing is sent on such a connection: a request's answer goes back as the result of its call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import structlog
import trio
from attrs import define, field

from fairq.errors import Draining, Forbidden, TooMany, Unauthorized
from fairq.io.turns import Gate
from fairq.server.engine.app import App
from fairq.server.engine.net.admission import HTTP_PER_TURN, Admission, Usage
from fairq.server.engine.net.auth import Identity
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.verbs.table import handle_request
from fairq.server.web.http.bounds import CALLER_S, RETRY_MS
from fairq.tokens import hash_token
from fairq.wire.server_session import ServerSession, why_not
from fairq.wire.terms import CLOSE_REVOKED, Role

log = structlog.get_logger("fairq.server")


@define(eq=False)
class HttpConnection(Connection):
    """The connection that all requests of a token are; it ends CALLER_S after the last of them."""

    tracks_leases: bool = False
    used_at: float = field(factory=trio.current_time, init=False)
    users: int = field(default=0, init=False)  # requests that have it in hand, those that are read too

    async def run(self) -> None:
        """Wait until it is closed, or was not used for a while; then end what waits on it."""
        with self._scope:
            while self.closing is None:
                if trio.current_time() >= (until := self._until()):
                    break
                with trio.move_on_at(until):
                    await self._woken.wait()
        self.closing = self.closing or (1000, "")
        with trio.CancelScope(shield=True):
            await self._end_waits()

    def _until(self) -> float:
        """Return until when it stays, if nothing happens."""
        return self.used_at + CALLER_S if not self.users else float("inf")

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the connection while the context lasts."""
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1
            self.used_at = trio.current_time()
            self._woken.set()
            self._close_if_idle()

    def unlink(self) -> None:
        """Break reference cycles at the end."""
        Connection.unlink(self)
        self.session.discard_outgoing()

    async def ask(self, request: Any) -> dict[str, Any]:
        """Carry out one request as if it came over a websocket; returns the reply's body. Raises: FairqError."""
        self._check_open()
        if refusal := why_not(request, self.session.role, self.session.state):
            raise refusal
        if limit := self.reached_limit(request):
            raise TooMany(f"too many requests: {limit}", retry_in_ms=RETRY_MS)
        return await self.handle(request)

    @contextmanager
    def waiting(self, ids: Sequence[str]) -> Iterator[Callable[[Sequence[str]], None]]:
        """As that of a websocket; there a close code says what ended it. Raises: TooMany, Draining, Unauthorized."""
        try:
            with Connection.waiting(self, ids) as release:  # attrs makes another class: no super() inside a wrapper
                yield release
        except Draining:
            self._check_open()
            raise

    def _check_open(self) -> None:
        """Raise why the connection was closed, if it was."""
        if self.closing is not None:
            raise (Unauthorized if self.closing[0] == CLOSE_REVOKED else Draining)(self.closing[1])


def make_connection(
    app: App, identity: Identity, remote: str, usage: Usage | None, kind: type[HttpConnection] = HttpConnection
) -> HttpConnection:
    """Make the connection of a token's requests."""
    now = trio.current_time()
    session = ServerSession(last_received_at=now, last_sent_at=now, role=identity.role)
    session.max_payload_bytes = app.settings.max_payload_bytes
    handle, room_changed = partial(handle_request, app), app.queues.credit_changed
    connection = kind(remote, identity, session, handle, usage, room_changed, app.refusals)
    connection.turns = usage.http_turns if usage else Gate(HTTP_PER_TURN)
    return connection


@define(eq=False)
class Callers:
    """The connections of the tokens of HTTP requests, by the tokens' hashes. `others`: the error of other roles."""

    app: App
    admission: Admission
    nursery: trio.Nursery
    roles: frozenset[Role] = frozenset({Role.TENANT, Role.PRODUCER, Role.WORKER})
    others: str = "this listener is for tenants, producers and workers; operators get one of their own"
    most: int | None = None  # connections at once; None: the server's bound alone
    limits_wrong_tokens: bool = False  # of an address
    _known: dict[str, HttpConnection] = field(factory=dict, init=False)

    async def find(self, token: str, address: str) -> HttpConnection:
        """Return the connection of a token. Raises: Unauthorized, Forbidden, TooMany, Draining, Unavailable."""
        hashed = hash_token(token)
        if known := self.known(hashed):
            return known
        return await self.open(hashed, await self.identify(token, address), address)

    async def identify(self, token: str, address: str) -> Identity:
        """Return the identity of a token that may ask here. Raises: Unauthorized, Forbidden, TooMany, Unavailable."""
        with self.admission.wrong_tokens(address) if self.limits_wrong_tokens else nullcontext():
            identity = await self.app.auth.identify(token)
        if identity.role not in self.roles:
            raise Forbidden(self.others)
        return identity

    def known(self, key: str) -> HttpConnection | None:
        """Return the connection that is open under a key. Raises: Draining."""
        if self.app.is_draining:
            raise Draining("the server is stopping; try again later or at another server")
        known = self._known.get(key)
        return known if known and known.closing is None else None

    async def open(self, key: str, identity: Identity, address: str) -> HttpConnection:
        """Open a connection under a key, unless a request at the same time has done so. Raises: TooMany."""
        if known := self.known(key):
            return known
        if self.most is not None and len(self._known) >= self.most:
            raise TooMany(f"too many tokens: at most {self.most} ask at once", retry_in_ms=RETRY_MS)
        self._known[key] = await self.nursery.start(self._keep, key, identity, f"http {address}")
        return self._known[key]

    async def _keep(
        self, hashed: str, identity: Identity, remote: str, *, task_status: trio.TaskStatus[HttpConnection]
    ) -> None:
        if len(self.app.connections) >= (limit := self.app.settings.max_connections):
            raise TooMany(f"connection limit reached: at most {limit} for this server", retry_in_ms=RETRY_MS)
        with self.admission.connection_of(identity) as usage:
            connection = make_connection(self.app, identity, remote, usage)
            task_status.started(connection)
            try:
                await self.app.serve(connection)
            except Exception:  # as with a websocket, it ends no other connection
                log.exception("connection of a token failed", remote=remote)
            finally:
                connection.closing = connection.closing or (1001, "the server is stopping")
                if self._known.get(hashed) is connection:
                    del self._known[hashed]
