"""Limits on connections and on tenants' requests, so that one address or tenant cannot crowd out the others.

- Connections are counted by address (of IPv6 by network of /64) and by the tenant of their token.
- Each unfinished handshake takes a place. When all places are taken, the oldest handshake of the address with the most
  is cancelled, so that silent connections keep no other client out.
- Tenants' requests and bytes have a rate, over all connections of the tenant: a faster tenant is read more slowly,
  without an error.
- In each turn (fairq/io/README.md) a few messages of a tenant begin, and the others wait for the next turn. So a tenant
  that sends many at once does not delay others. The same holds for TLS handshakes (tls.py).

Rates, and turns of messages, are for tenants' tokens; over HTTP each connection has turns, and tenant_load.py has the
limits of producers. Loopback addresses are those of proxies: of the limits of addresses, only the places and turns of
handshakes apply to them.
"""

from __future__ import annotations

import ipaddress
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import trio
from attrs import define, field

from fairq.errors import TooMany, Unauthorized
from fairq.io.turns import Gate
from fairq.model.rates import MAX_KNOWN, Rate, Rates
from fairq.server.engine.net.auth import Identity
from fairq.server.settings import Settings
from fairq.wire.terms import Role

MAX_HANDSHAKES = 2_048  # unfinished ones
HANDSHAKES_PER_S, HANDSHAKE_BURST = 200.0, 1_000.0  # of one address: rate and burst
WRONG_TOKENS_PER_S, WRONG_TOKENS_BURST = 5.0, 100.0  # of one address
CHANGES_PER_S, CHANGES_BURST = 1.0, 100.0  # of one tenant, that the audit and the log note
BURST_S = 1.0  # the burst of requests and bytes, in seconds of their rates
PER_TURN, HTTP_PER_TURN = 8, 1  # messages of one tenant, and HTTP requests, that begin in one turn of the scheduler
TLS_PER_TURN = 4  # pieces of TLS handshakes; each takes up to 1 ms
RECONNECT_MS = 1_000  # after which a refused client may connect again


@define(eq=False)
class Usage:
    """The usage of one tenant over all its connections."""

    requests: Rate
    bytes: Rate
    changes: Rate = field(factory=lambda: Rate(CHANGES_PER_S, CHANGES_BURST))
    connections: int = 0
    under_way: int = 0  # requests
    rests_until: float = 0.0  # after a message that took long to read: none is read before
    turns: Gate = field(factory=lambda: Gate(PER_TURN), init=False)  # of messages
    http_turns: Gate = field(factory=lambda: Gate(HTTP_PER_TURN), init=False)  # of HTTP requests, ten times as costly

    def take(self, size: int, now: float) -> float:
        """Count a text of `size` bytes; returns the seconds to wait before it is read."""
        return max(self.requests.take(1, now), self.bytes.take(size, now), self.rests_until - now)


@define(eq=False)
class Admission:
    """Counts handshakes and connections by address, and usage by tenant."""

    settings: Settings
    tls_turns: Gate = field(factory=lambda: Gate(TLS_PER_TURN), init=False)
    _handshakes: dict[str, dict[trio.CancelScope, None]] = field(factory=dict, init=False)  # by address, oldest first
    _unfinished: int = field(default=0, init=False)  # handshakes
    _rates: Rates = field(factory=lambda: Rates(HANDSHAKES_PER_S, HANDSHAKE_BURST), init=False)  # of handshakes
    _wrong: Rates = field(factory=lambda: Rates(WRONG_TOKENS_PER_S, WRONG_TOKENS_BURST), init=False)
    _connections: Counter[str] = field(factory=Counter, init=False)  # by address
    _usages: dict[str, Usage] = field(factory=dict, init=False)  # by tenant

    def admits_handshake(self, address: str, now: float) -> bool:
        """True if one more handshake from this address is within its rate."""
        return self._is_unlimited(address) or self._rates.of(block_of(address), now).take_one(now)

    @contextmanager
    def wrong_tokens(self, address: str) -> Iterator[None]:
        """Look a token up in the context, unless its address has sent too many wrong ones. Raises: TooMany."""
        now = trio.current_time()
        rate = self._wrong.of(block := block_of(address), now)
        if rate.paid_at > now:
            message = "too many wrong tokens came from this address"
            raise TooMany(message, retry_in_ms=math.ceil((rate.paid_at - now) * 1000))
        try:
            yield
        except Unauthorized:
            if not self._is_unlimited(address):
                self._wrong.of(block, now).take(1, now)
            raise

    @contextmanager
    def handshake(self, address: str, scope: trio.CancelScope) -> Iterator[None]:
        """Give a handshake a place while the context lasts; `scope` is cancelled if another needs the place more."""
        address = block_of(address)
        if self._unfinished >= MAX_HANDSHAKES:
            most = max(self._handshakes.values(), key=len)
            oldest = next(iter(most))
            del most[oldest]
            self._unfinished -= 1
            oldest.cancel()
        self._handshakes.setdefault(address, {})[scope] = None
        self._unfinished += 1
        try:
            yield
        finally:
            places = self._handshakes.get(address, {})
            if scope in places:
                del places[scope]
                self._unfinished -= 1
            if not places:
                self._handshakes.pop(address, None)

    @contextmanager
    def connection(self, address: str, identity: Identity) -> Iterator[Usage | None]:
        """Count a connection while the context lasts; yields its tenant's usage, if any. Raises: TooMany."""
        with self.connection_from(address), self.connection_of(identity) as usage:
            yield usage

    @contextmanager
    def connection_from(self, address: str) -> Iterator[None]:
        """Count a connection of an address while the context lasts. Raises: TooMany."""
        most, block = self.settings.connections_per_address, block_of(address)
        if most and not self._is_unlimited(address) and self._connections[block] >= most:
            raise TooMany(f"connection limit reached: at most {most} from address {block}", retry_in_ms=RECONNECT_MS)
        self._connections[block] += 1
        try:
            yield
        finally:
            self._connections[block] -= 1
            if not self._connections[block]:
                del self._connections[block]

    @contextmanager
    def connection_of(self, identity: Identity) -> Iterator[Usage | None]:
        """Count a tenant's connection while the context lasts; yields the tenant's usage, if any. Raises: TooMany."""
        if identity.role is not Role.TENANT:
            yield None
            return
        usage = self._usage_of(identity.tenant)
        if usage.connections >= (limit := self.settings.connections_per_tenant):
            raise TooMany(f"connection limit reached: at most {limit} for one tenant", retry_in_ms=RECONNECT_MS)
        usage.connections += 1
        try:
            yield usage
        finally:
            usage.connections -= 1

    def _usage_of(self, tenant: str) -> Usage:
        if len(self._usages) >= MAX_KNOWN:
            now = trio.current_time()
            self._usages = {
                name: each
                for name, each in self._usages.items()
                if each.connections or not all(rate.is_whole(now) for rate in (each.requests, each.bytes, each.changes))
            }
        if tenant not in self._usages:
            requests, size = self.settings.requests_per_second, self.settings.bytes_per_second
            self._usages[tenant] = Usage(Rate(requests, requests * BURST_S), Rate(size, size * BURST_S))
        return self._usages[tenant]

    def _is_unlimited(self, address: str) -> bool:
        return not self.settings.connections_per_address or ipaddress.ip_address(address.partition("%")[0]).is_loopback


def block_of(address: str) -> str:
    """Return what counts as one address: of IPv6 the network of /64, since one host has all its addresses."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # of a socket without one
        return address
    if ip.version == 4 or ip.is_loopback:
        return address
    return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
