"""One connection of hypercorn that speaks HTTP/1.1 and nothing else.

Hypercorn would change to HTTP/2 where a client offers that in plain text (as Java's does with each request), and its
HTTP/2 has fewer bounds. An offer may be ignored, and is. The methods that begin with `_` are hypercorn's own, so its
version is pinned.
"""

from __future__ import annotations

import re

import h11
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

_ABSOLUTE = re.compile(rb"https?://([^/?#@]+)(|[/?].*)", re.IGNORECASE)


class _Protocol(H11Protocol):
    async def _check_protocol(self, event: h11.Request) -> None:
        """Ignore offers of other protocols."""

    async def _create_stream(self, request: h11.Request) -> None:
        """Take a whole URL as a path, its host in place of the header's (RFC 9112, 3.2.2)."""
        if url := _ABSOLUTE.fullmatch(request.target):
            host, target = url.groups()
            headers = [(b"host", host), *(header for header in request.headers if header[0] != b"host")]
            path = target if target.startswith(b"/") else b"/" + target
            request = h11.Request(
                method=request.method, target=path, headers=headers, http_version=request.http_version
            )
        await super()._create_stream(request)


class Http11(TCPServer):
    """Serves one connection whose TLS, if it has any, has shaken hands."""

    async def run(self) -> None:
        """Read requests until the connection ends."""
        socket = self.stream.socket  # a BoundedStream
        client = parse_socket_addr(socket.family, socket.getpeername())
        server = parse_socket_addr(socket.family, socket.getsockname())
        try:
            async with TaskGroup() as tasks:
                self._task_group = tasks
                state = ConnectionState({})
                self.protocol = _Protocol(  # type: ignore[assignment]  # in place of hypercorn's wrapper
                    self.app, self.config, self.context, tasks, state, False, client, server, self.protocol_send
                )
                await self.idle_task.restart(tasks, self._idle_timeout)
                await self._read_data()
        except OSError:
            pass  # it broke
        finally:
            await self._close()
