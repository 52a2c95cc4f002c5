"""A client's stream as hypercorn sees it: each send has a deadline, and closing takes no time.

Hypercorn shields its sends from cancellation and gives them no deadline: without this a client that reads nothing
would keep a connection, and the end of the server, for as long as it likes.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from fairq.io.transport import PIECE_BYTES
from fairq.server.engine.net.transport import SEND_S, Stream


class BoundedStream:
    """A stream that is closed if the other side does not take PIECE_BYTES within SEND_S; `is_broken` says so.

    `ended()` is called when the other side has closed, or is cut off.
    """

    def __init__(self, stream: Stream, ended: Callable[[], None] = lambda: None) -> None:
        self.stream, self.ended = stream, ended
        self.socket = stream.transport_stream.socket if isinstance(stream, trio.SSLStream) else stream.socket
        self.is_broken = False

    async def send_all(self, data: bytes) -> None:
        """Send all of it. Raises: trio.BrokenResourceError, also if a piece takes too long."""
        is_sent = False
        try:
            for start in range(0, len(data), PIECE_BYTES):
                with trio.fail_after(SEND_S):
                    await self.stream.send_all(data[start : start + PIECE_BYTES])
            is_sent = True
        except trio.TooSlowError:
            await trio.aclose_forcefully(self.stream)
            raise trio.BrokenResourceError("the client reads too slowly") from None
        finally:
            if not is_sent:
                self.is_broken = True
                self.ended()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Receive what has come; empty at the end."""
        data = bytes(await self.stream.receive_some(max_bytes))
        if not data:
            self.ended()
        return data

    async def send_eof(self) -> None:
        """End what is sent, where the stream can do that."""
        if isinstance(self.stream, trio.SocketStream):
            await self.stream.send_eof()

    async def aclose(self) -> None:
        """Close at once."""
        await trio.aclose_forcefully(self.stream)
