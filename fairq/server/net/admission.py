"""Who may come in, and how much those inside may ask: what keeps one address, or one tenant's token, from the others.

Connections are counted by the address they come from and by the tenant whose token they bring. Handshakes that are not
finished take a place each; where all are taken the oldest of whoever has most of them goes, so that silent connections
keep nobody out. Tenants' requests and bytes have a rate, over all connections of the tenant: who is faster is read
more slowly, and is told nothing. Workers and operators are the service's own, and loopback addresses are those of
proxies: for them these limits do not hold, but for the places of handshakes.
"""

from __future__ import annotations

import ipaddress
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import trio
from attrs import define, field

from fairq.errors import TooMany
from fairq.server.net.auth import Identity
from fairq.server.settings import Settings
from fairq.wire.messages import Role

MAX_HANDSHAKES = 2_048  # under way at once
HANDSHAKES_PER_S, MOST_HANDSHAKES = 200.0, 1_000.0  # of one address, and how many in a moment
BURST_S = 1.0  # of requests and bytes that may come in a moment
RETRY_MS = 1_000
MAX_KNOWN = 10_000  # addresses and tenants whose rates are remembered


@define(eq=False)
class Rate:
    """So much per second, and so much in a moment (GCRA: the time at which all that was taken is paid for)."""

    per_second: float
    most: float
    _paid_at: float = field(default=-math.inf, init=False)

    def _paid_with(self, amount: float, now: float) -> float:
        return max(self._paid_at, now - self.most / self.per_second) + amount / self.per_second

    def take(self, amount: float, now: float) -> float:
        """Take some, at once; returns the seconds to wait for it."""
        self._paid_at = self._paid_with(amount, now)
        return max(0.0, self._paid_at - now)

    def take_now(self, amount: float, now: float) -> bool:
        """Take some, if that needs no wait; tells whether it was taken."""
        paid_at = self._paid_with(amount, now)
        if paid_at > now:
            return False
        self._paid_at = paid_at
        return True

    @property
    def paid_at(self) -> float:
        """When all that was taken is paid for."""
        return self._paid_at

    def is_whole(self, now: float) -> bool:
        """Whether it is as if nothing had been taken."""
        return self._paid_at <= now - self.most / self.per_second


@define(eq=False)
class Usage:
    """What one tenant does over all its connections."""

    requests: Rate
    bytes: Rate
    connections: int = 0
    under_way: int = 0  # requests
    rests_until: float = 0.0

    def take(self, size: int, now: float) -> float:
        """Take in a text; returns the seconds to wait before it is read."""
        return max(self.requests.take(1, now), self.bytes.take(size, now), self.rests_until - now)


@define(eq=False)
class Admission:
    """Counts who is there."""

    settings: Settings
    _unfinished: dict[str, dict[trio.CancelScope, None]] = field(factory=dict, init=False)  # by address, oldest first
    _handshakes: int = field(default=0, init=False)
    _rates: dict[str, Rate] = field(factory=dict, init=False)  # of handshakes, by address
    _connections: Counter[str] = field(factory=Counter, init=False)  # by address
    _usages: dict[str, Usage] = field(factory=dict, init=False)  # by tenant

    def hears(self, address: str, now: float) -> bool:
        """Whether one more handshake from this address is listened to at all."""
        if self._is_free(address):
            return True
        if len(self._rates) >= MAX_KNOWN:
            self._rates = {each: rate for each, rate in self._rates.items() if not rate.is_whole(now)}
        rate = self._rates.setdefault(address, Rate(HANDSHAKES_PER_S, MOST_HANDSHAKES))
        return rate.take_now(1, now)

    @contextmanager
    def handshake(self, address: str, scope: trio.CancelScope) -> Iterator[None]:
        """Give a handshake a place while the context lasts; `scope` is cancelled when others need the place more."""
        if self._handshakes >= MAX_HANDSHAKES:
            most = max(self._unfinished.values(), key=len)
            oldest = next(iter(most))
            del most[oldest]
            self._handshakes -= 1
            oldest.cancel()
        self._unfinished.setdefault(address, {})[scope] = None
        self._handshakes += 1
        try:
            yield
        finally:
            places = self._unfinished.get(address, {})
            if scope in places:
                del places[scope]
                self._handshakes -= 1
            if not places:
                self._unfinished.pop(address, None)

    @contextmanager
    def inside(self, address: str, identity: Identity) -> Iterator[Usage | None]:
        """Count a connection while the context lasts; gives its tenant's usage, if it has one. Raises: TooMany."""
        most, usage = self.settings.connections_per_address, None
        if most and not self._is_free(address) and self._connections[address] >= most:
            raise TooMany(f"{address} has the {most} connections that an address may have", retry_in_ms=RETRY_MS)
        if identity.role is Role.TENANT:
            usage = self._usage_of(identity.tenant)
            if usage.connections >= self.settings.connections_per_tenant:
                raise TooMany(f"the tenant has the {usage.connections} connections it may have", retry_in_ms=RETRY_MS)
            usage.connections += 1
        self._connections[address] += 1
        try:
            yield usage
        finally:
            self._connections[address] -= 1
            if not self._connections[address]:
                del self._connections[address]
            if usage is not None:
                usage.connections -= 1

    def _usage_of(self, tenant: str) -> Usage:
        if len(self._usages) >= MAX_KNOWN:
            now = trio.current_time()
            self._usages = {
                name: each
                for name, each in self._usages.items()
                if each.connections or not (each.requests.is_whole(now) and each.bytes.is_whole(now))
            }
        if tenant not in self._usages:
            requests, size = self.settings.requests_per_second, self.settings.bytes_per_second
            self._usages[tenant] = Usage(Rate(requests, requests * BURST_S), Rate(size, size * BURST_S))
        return self._usages[tenant]

    def _is_free(self, address: str) -> bool:
        """Whether no limit holds for an address."""
        return not self.settings.connections_per_address or ipaddress.ip_address(address.partition("%")[0]).is_loopback
