"""Plain sockets with few system calls and few turns of the scheduler.

trio's streams try to read before they wait for data, and yield after every call. These functions send without waiting,
and read only when data is there. Other streams (TLS, those of tests) are used through trio's own methods.
"""

from __future__ import annotations

import os
import select

import trio


def send_now(stream: trio.abc.Stream, data: bytes) -> int:
    """Send what a plain socket takes at once; returns the bytes sent, 0 also if it is broken (`send_all` raises)."""
    if not isinstance(stream, trio.SocketStream):
        return 0
    try:
        return os.write(stream.socket.fileno(), data)
    except OSError:
        return 0


async def receive_some(stream: trio.abc.Stream, max_bytes: int) -> bytes:
    """Wait for data and receive up to `max_bytes`; empty at the end. Raises: as the stream does."""
    if not isinstance(stream, trio.SocketStream):
        return bytes(await stream.receive_some(max_bytes))
    while True:
        if (fd := stream.socket.fileno()) < 0:
            raise trio.ClosedResourceError("this end was closed")
        await trio.lowlevel.wait_readable(fd)
        try:
            return os.read(stream.socket.fileno(), max_bytes)  # -1: it was closed meanwhile
        except BlockingIOError:
            continue  # another reader took it, or the kernel dropped it
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error


def socket_of(stream: trio.abc.Stream) -> trio.socket.SocketType | None:
    """Return the socket of a TCP stream, under TLS or not; None of another one."""
    tcp = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    return tcp.socket if isinstance(tcp, trio.SocketStream) else None


def is_over(stream: trio.abc.Stream) -> bool:
    """True if the other end of a TCP stream has closed, even if something that it sent is still unread."""
    if (sock := socket_of(stream)) is None:
        return False
    poll = select.poll()  # macOS says it only of a connection that has ended both ways
    poll.register(sock.fileno(), getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))
