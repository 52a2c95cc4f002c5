"""The part of a connection that trio-websocket sees: the HTTP request, and nothing behind it.

The library parses the request and answers it. The frames that follow are processed by fairq/wire/websocket.py, with
limits that the library does not have. The request is read before the library sees it, so that a connection on which
none comes is one task that waits: it costs little, and ends cheaply.
"""

from __future__ import annotations

import trio

from fairq.server.engine.net.transport import RECEIVE_BYTES, Stream

MAX_REQUEST_BYTES = 16_384  # what is longer is refused by the library
_NO_METHOD = bytes(range(33))  # first bytes, such as that of TLS, that the library refuses at once
_END = b"\r\n\r\n"
_NO_BODY = b"content-length: 0" + _END  # of the library's answer to what is no request for a websocket
_REASON = b"this port is for websockets; the HTTP API has one of its own (http_port; 7701 with --dev)\n"
_NO_WEBSOCKET = b"content-type: text/plain\r\ncontent-length: %d" % len(_REASON) + _END + _REASON


async def read_request(stream: Stream) -> tuple[bytes, bytes]:
    """Return the HTTP request and the bytes behind it, at most MAX_REQUEST_BYTES and one read; empty if none came."""
    read = bytearray()
    while not read or (_END not in read and len(read) <= MAX_REQUEST_BYTES and read[0] not in _NO_METHOD):
        data = await stream.receive_some(RECEIVE_BYTES)
        if not data:
            return b"", b""
        read += data
    request, end, rest = read.partition(_END)
    return bytes(request + end), bytes(rest)


class Opening(trio.abc.Stream):
    """A stream of one request. `scope` is cancelled when the library closes the stream."""

    def __init__(self, stream: Stream, scope: trio.CancelScope, request: bytes) -> None:
        self._stream, self._scope, self._request = stream, scope, request

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return the request; then wait until cancelled."""
        if not self._request:
            await trio.sleep_forever()
        request, self._request = self._request, b""
        return request

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send the answer; where the library gives no reason, since it is no request for a websocket, say so."""
        head, empty, _ = bytes(data).partition(_NO_BODY)
        await self._stream.send_all(head + _NO_WEBSOCKET if empty else data)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until there is room for more."""
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Cancel the scope: the request was invalid or refused. The owner closes the stream."""
        self._scope.cancel()
