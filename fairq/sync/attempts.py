"""Connections that threads open at the same time, until one is open (fairq/client/connect_steps.py says why)."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from attrs import define, field

from fairq.client.channel import Target
from fairq.client.connect_steps import Servers
from fairq.errors import FairqError
from fairq.sync.transport import Transport
from fairq.wire.client_session import ClientSession
from fairq.wire.connection_errors import Disconnected


@define(eq=False)
class Attempts:
    """A race of connections; the driver begins each when `due` names its server. `open`: the one that was first."""

    servers: Servers
    failed: Callable[[FairqError], None]
    open: Transport | None = field(default=None, init=False)
    opening: list[Transport] = field(factory=list, init=False)
    next_at: float = field(default=inf, init=False)  # when another one is due
    _missing: int = field(default=0, init=False)  # their addresses are being looked up
    _begun: int = field(default=0, init=False)

    @property
    def is_on(self) -> bool:
        """True if the race has begun and has not ended."""
        return self.open is not None or self.next_at < inf

    def begin(self, at: float) -> None:
        """Begin a race."""
        self.next_at = at

    def due(self, now: float) -> Target | None:
        """Return the server to which to connect now, if any; `add` or `miss` follows."""
        if now < self.next_at:
            return None
        self._begun, self._missing = self._begun + 1, self._missing + 1
        self.next_at = now + self.servers.pause_s(self._begun)
        return self.servers.next()

    def miss(self, error: FairqError) -> None:
        """Note that a server has no address."""
        self._missing = max(0, self._missing - 1)
        self._fail(error)

    def add(self, transport: Transport) -> None:
        """Connect to a server at a known address; `proceed` takes the first step."""
        self._missing -= 1
        self.opening.append(transport)

    def proceed(self, now: float) -> None:
        """Do what needs no waiting."""
        for transport in list(self.opening):
            try:
                is_open = transport.open_up(now)
            except FairqError as error:
                self.opening.remove(transport)
                transport.abandon()
                self._fail(error)
            else:
                if is_open:
                    self.opening.remove(transport)
                    self.end()
                    self.open = transport
                    self.servers.reached(transport.target)
                    return

    def _fail(self, error: FairqError) -> None:
        if not self.opening and not self._missing:
            self.end()
        self.failed(error)

    def suspect(self, session: ClientSession, transport: Transport, now: float) -> None:
        """Look at the driver's connection, and start a race if it is suspect. Raises: Disconnected if it is gone."""
        suspicion = session.suspicion
        suspicion.heard_at = max(suspicion.heard_at, transport.heard_at)
        if session.suspect(now) and transport.channel:
            transport.channel.websocket.ping()
        if not suspicion.is_suspect:
            self.end()
        elif not self.is_on:
            self.begin(now)
        elif suspicion.is_gone and self.open:
            raise Disconnected(f"the server does not answer; going on at {self.open.target.url}")

    def deadline(self) -> float:
        """Return when `due` or `proceed` has something to do."""
        return min([self.next_at, *(each.deadline for each in self.opening)])

    def take(self) -> Transport | None:
        """Return the connection that is open, if one is; it is the caller's from now on."""
        transport, self.open = self.open, None
        return transport

    def end(self) -> None:
        """End the race, and close what it has opened."""
        if self.open:
            self.open.close()
        self.abandon()

    def abandon(self) -> None:
        """End the race in a forked process, without sending anything to the servers."""
        for transport in (self.open, *self.opening):
            if transport:
                transport.abandon()
        self.open, self.opening, self.next_at, self._begun, self._missing = None, [], inf, 0, 0
