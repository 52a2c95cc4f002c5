"""Ends connections after their token was revoked, or has expired: within a second, by this server's clock.

The store announces revocations on a channel, but a message may be lost. So it also counts them, and every server reads
the count each second. If the count has changed, or a message may have been missed, the server looks up all tokens in
use, and repeats this each second for as long as a handshake takes: a connection admitted just before may still be
opening.
"""

from __future__ import annotations

import time
from collections import defaultdict

import structlog
import trio
from attrs import define, field

from fairq.errors import FairqError
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.net.transport import HANDSHAKE_S
from fairq.store.store import Store
from fairq.wire.terms import CLOSE_REVOKED

log = structlog.get_logger("fairq.server")

POLL_S = 1.0  # between reads of the count
FLOOR_S = 30.0  # after which tokens are looked up in any case: a failover may have reset the count
_RETRY_S = 0.1  # when the store is unavailable


@define(eq=False)
class Revocations:
    """The connections of this server by their tokens."""

    store: Store
    _connections: defaultdict[str, set[Connection]] = field(factory=lambda: defaultdict(set), init=False)
    _must_look: trio.Event = field(factory=trio.Event, init=False)
    _count: int = field(default=-1, init=False)
    _check_until: float = field(default=0.0, init=False)
    _checked_at: float = field(default=0.0, init=False)

    def join(self, connection: Connection) -> None:
        """Watch the token of a connection; development tokens are not revoked."""
        if token := connection.identity.token_id:
            if not self._connections:
                self._must_look.set()  # the first token in use: start to read the count
            self._connections[token].add(connection)

    def leave(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        token = connection.identity.token_id
        if token in self._connections:
            self._connections[token].discard(connection)
            if not self._connections[token]:
                del self._connections[token]

    def on_message(self, token: str) -> None:
        """Handle the revocation of a token; an empty id means that any may have been revoked."""
        if token:
            self._close(token)
        self._must_look.set()

    def _close(self, token: str, why: str = "the token was revoked") -> None:
        """Close the connections of a token at once: no more tasks are pushed, and waiting output is dropped."""
        for connection in self._connections.get(token, ()):
            if connection.closing is None:
                log.info("connection ends", reason=why, token=token, remote=connection.remote)
                connection.session.discard_outgoing()
                connection.close(CLOSE_REVOKED, why)

    async def run(self) -> None:
        """Look for expired tokens and read the count, every second and if a message was missed, until cancelled."""
        while True:
            with trio.move_on_after(POLL_S if self._connections else float("inf")):
                await self._must_look.wait()
            if self._must_look.is_set():
                self._must_look, self._count = trio.Event(), -1
            self._close_expired()
            try:
                await self._look()
            except FairqError:
                self._must_look.set()
                await trio.sleep(_RETRY_S)

    def _close_expired(self) -> None:
        """Close the connections with expired tokens, by this server's clock."""
        now_ms = time.time() * 1000
        for token, connections in self._connections.items():
            if 0 < next(iter(connections)).identity.expires_at_ms <= now_ms:
                self._close(token, "the token has expired")

    async def _look(self) -> None:
        count, now = await self.store.tokens.count_revocations(), trio.current_time()
        if count != self._count:
            self._check_until = now + HANDSHAKE_S + POLL_S
        if now <= self._check_until or now >= self._checked_at + FLOOR_S:
            used = list(self._connections)
            known = await self.store.tokens.known(used)
            for token in used:
                if token not in known:
                    self._close(token)
            self._checked_at = now
        self._count = count
