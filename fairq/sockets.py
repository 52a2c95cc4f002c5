"""Plain sockets, with as few system calls and turns of the scheduler as they need.

trio's streams look for data before they wait for it, and yield after every call. These functions send without waiting,
and read once there is something. Other streams (TLS, those of tests) are used as they are.
"""

from __future__ import annotations

import os

import trio


def send_now(stream: trio.abc.Stream, data: bytes) -> int:
    """Send what a plain socket takes at once; returns how many bytes. 0 also where it is broken: `send_all` says so."""
    if not isinstance(stream, trio.SocketStream):
        return 0
    try:
        return os.write(stream.socket.fileno(), data)
    except OSError:
        return 0


async def receive_some(stream: trio.abc.Stream, max_bytes: int) -> bytes:
    """Receive what there is, once there is something; empty at the end. Raises: as the stream does."""
    if not isinstance(stream, trio.SocketStream):
        return bytes(await stream.receive_some(max_bytes))
    while True:
        if stream.socket.fileno() < 0:
            raise trio.ClosedResourceError("this end was closed")
        await trio.lowlevel.wait_readable(stream.socket)
        try:
            return os.read(stream.socket.fileno(), max_bytes)
        except BlockingIOError:
            continue  # somebody else has read it, or it was not sound
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error
