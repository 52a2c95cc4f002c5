"""One connection of hypercorn that speaks HTTP/1.1 and nothing else.

Hypercorn would change to HTTP/2 where a client offers that in plain text (as Java's does with each request), and its
HTTP/2 has fewer bounds. An offer may be ignored, and is. The methods that begin with `_` are hypercorn's own, so its
version is pinned.
"""

from __future__ import annotations

import re

import h11
import trio
from hypercorn.events import Closed
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from fairq.server.web.http.bounds import HEAD_BYTES, HEAD_S
from fairq.server.web.http.problems import Problem, answer_of
from fairq.server.web.http.request_ids import HEADER, sane_id

_UNREAD = {  # why a request is
    400: Problem("bad_request", "the request is not HTTP/1.1"),
    408: Problem("not_in_time", f"the request's head did not arrive within {HEAD_S:g} s"),
    431: Problem("head_too_large", f"the request's line and headers have more than {HEAD_BYTES} bytes"),
    505: Problem("wrong_version", "this listener speaks HTTP/1.1"),
}
_ABSOLUTE = re.compile(rb"https?://([^/?#@]+)(|[/?].*)", re.IGNORECASE)


class _Protocol(H11Protocol):
    async def _check_protocol(self, event: h11.Request) -> None:
        """Ignore offers of other protocols."""

    async def _send_error_response(self, status_code: int, request: h11.Request | None = None) -> None:
        """Say why a request is not read any further; its head may have been."""
        answer = answer_of(_UNREAD.get(status_code) or _UNREAD[400])
        brought = dict(request.headers).get(HEADER.encode(), b"") if request else b""
        own = (HEADER.encode(), sane_id(brought.decode("latin-1")).encode())
        headers = [*answer.raw_headers, own, (b"connection", b"close")]
        await self._send_h11_event(h11.Response(status_code=answer.status_code, headers=headers))
        if not request or request.method != b"HEAD":
            await self._send_h11_event(h11.Data(data=bytes(answer.body)))
        await self._send_h11_event(h11.EndOfMessage())

    async def head_late(self) -> None:
        """Say that a head has begun, and has not ended in time."""
        if self.connection.our_state is h11.IDLE and self.connection.trailing_data[0]:
            await self._send_error_response(408)

    async def _create_stream(self, request: h11.Request) -> None:
        """Take a whole URL as a path, its host in place of the header's (RFC 9112, 3.2.2)."""
        if not request.http_version.startswith(b"1"):
            await self._send_error_response(505, request)
            await self.send(Closed())
            return
        if url := _ABSOLUTE.fullmatch(request.target):
            host, target = url.groups()
            headers = [(b"host", host), *(header for header in request.headers if header[0] != b"host")]
            path = target if target.startswith(b"/") else b"/" + target
            request = h11.Request(
                method=request.method, target=path, headers=headers, http_version=request.http_version
            )
        await super()._create_stream(request)


class Http11(TCPServer):
    """Serves one connection, after its TLS handshake if it has TLS."""

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

    async def _idle_timeout(self) -> None:
        with trio.move_on_after(self.config.keep_alive_timeout) as waiting:
            await self.context.terminated.wait()
        with trio.CancelScope(shield=True):  # the stream has deadlines
            if waiting.cancelled_caught and isinstance(self.protocol, _Protocol):
                await self.protocol.head_late()
            await self._initiate_server_close()
