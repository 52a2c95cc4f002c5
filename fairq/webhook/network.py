"""Outgoing connections: a host is resolved once, all its addresses are checked, and one of them is connected to.

The HTTP client requests a connection by the host's name and gets one to a checked address. The name is never resolved
again, so a changing DNS answer (DNS rebinding) has no effect. TLS verifies the host's name.

Requests to different URLs never share a connection. The client takes what a receiver sends behind an answer for the
next answer on that connection, and so it would decide what becomes of a task of another URL. To look for such bytes is
not enough: those in a TLS record of their own show neither in the client nor at the socket.

A chunk or an interim answer of a few bytes costs the client as much time as one of 64 KiB. So little is read at once,
and others have their turn after it.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import httpcore2
import trio
from attrs import define, field

from fairq.webhook.addresses import AddressRules
from fairq.webhook.urls import Url

ATTEMPT_S = 5.0  # for one of several addresses, before the next is tried
READ_BYTES = 1_024  # at once
ANSWER_BYTES = 1 << 19  # of one answer, its head and interim answers too; a result and a head have less

Resolve = Callable[[str, int], Awaitable[list[str]]]


async def ask_system(host: str, port: int) -> list[str]:
    """Resolve a host by the system's resolver; returns addresses, the preferred one first. Raises: OSError."""
    rows = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    return list(dict.fromkeys(str(row[4][0]) for row in rows))


def place_of(url: Url) -> str:
    """Return what the HTTP client takes for the host: it keeps connections by scheme, this and port."""
    return url.host + url.target  # a target begins with the slash that no host has


@define(eq=False)
class MeteredStream(httpcore2.AsyncNetworkStream):
    """A connection that reads READ_BYTES at once, and ANSWER_BYTES after each write."""

    inner: httpcore2.AsyncNetworkStream
    left: int = field(default=ANSWER_BYTES, init=False)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read what has come. Raises: ReadError, also if it is too much."""
        data = await self.inner.read(min(max_bytes, READ_BYTES), timeout)
        self.left -= len(data)
        if self.left < 0:
            raise httpcore2.ReadError(f"the answer has more than {ANSWER_BYTES} bytes")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send all of it."""
        self.left = ANSWER_BYTES
        await self.inner.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close the connection."""
        await self.inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> MeteredStream:
        """Begin TLS on the connection."""
        return MeteredStream(await self.inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        """Return the socket's facts that the HTTP client asks for."""
        return self.inner.get_extra_info(info)


@define(eq=False)
class CheckedNetwork(httpcore2.AsyncNetworkBackend):
    """Connects the HTTP client to addresses that the rules allow."""

    rules: AddressRules
    resolve: Resolve = ask_system
    inner: httpcore2.AsyncNetworkBackend = field(factory=httpcore2.TrioBackend)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the host of a place. Raises: AddressRefused if any of its addresses is refused; ConnectError."""
        host = host.partition("/")[0]
        try:
            found = await self.resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise httpcore2.ConnectError(f"the host has no address: {error}") from None
        addresses = [self.rules.check(address, host) for address in found]
        trouble: Exception = httpcore2.ConnectError("the host has no address")
        for left, address in zip(range(len(addresses) - 1, -1, -1), addresses, strict=True):
            limit = ATTEMPT_S if left else None
            try:
                return MeteredStream(await self.inner.connect_tcp(address, port, limit, local_address, socket_options))
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                trouble = error
        raise trouble
