"""The part of a connection that trio-websocket sees: the HTTP request, and nothing behind it.

The library reads the request and answers it. The frames that follow are processed by fairq/wire/websocket.py, with
limits that the library does not have.
"""

from __future__ import annotations

import trio

from fairq.transport import Stream
from fairq.turns import Gate

_END = b"\r\n\r\n"
_NO_BODY = b"content-length: 0" + _END  # of the library's answer to what is no request for a websocket
_REASON = b"this port is for websockets; the HTTP API has one of its own (http_port; 7701 with --dev)\n"
_NO_WEBSOCKET = b"content-type: text/plain\r\ncontent-length: %d" % len(_REASON) + _END + _REASON


class Opening(trio.abc.Stream):
    """A stream that ends with the request; `rest` holds the bytes behind it. Without a request, `scope` is cancelled.

    Each read passes the gate, because thousands of clients may connect at once.
    """

    def __init__(self, stream: Stream, scope: trio.CancelScope, gate: Gate) -> None:
        self.rest = b""
        self._stream, self._scope, self._gate = stream, scope, gate
        self._tail = b""
        self._is_read = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Receive more of the request; once it is complete, wait until cancelled."""
        if self._is_read:
            await trio.sleep_forever()
        try:
            data = bytes(await self._stream.receive_some(max_bytes))
        except trio.BrokenResourceError:
            data = b""
        if not data:
            self._scope.cancel()
        await self._gate.enter()
        _, end, rest = (self._tail + data).partition(_END)
        if end:
            self._is_read, self.rest = True, rest
        self._tail = (self._tail + data)[1 - len(_END) :]
        return data[: len(data) - len(self.rest)]

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
