"""Waiting of threads: for a socket, so that other threads may end the wait, and for each other."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress

from attrs import define, field

GRACE_S = 0.05  # for the leader to end a call in time; then the thread of the call does
_LONGEST_S = 3_600.0


@define(eq=False)
class Alarm:
    """Wakes the thread that waits in `wait`, or the next one that does."""

    _ours: socket.socket = field(init=False)
    _theirs: socket.socket = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)

    def ring(self) -> None:
        """Wake the thread that waits."""
        with suppress(OSError):  # it rings already, or was closed
            self._theirs.send(b"\0")

    def fileno(self) -> int:
        """Return the number of a file that is readable when it rings, for an event loop."""
        return self._ours.fileno()

    def wait(self, socks: Mapping[int, bool], *, seconds: float) -> None:
        """Wait until a socket has something to read (or room, if wanted), until the time is up, or until it rings.

        `socks`: file numbers, and whether room is wanted. A thread that closes one meanwhile must ring.
        """
        if wait_ready(self._ours.fileno(), socks, seconds=max(0.0, min(seconds, _LONGEST_S))):
            with suppress(BlockingIOError):
                while self._ours.recv(64):
                    pass

    def close(self) -> None:
        """Close it; no thread may wait for it."""
        self._ours.close()
        self._theirs.close()


def wait_ready(alarm: int, socks: Mapping[int, bool], *, seconds: float) -> bool:
    """Wait until one of these files is ready; returns whether the alarm is.

    Not all systems have poll, and select takes only low file numbers.
    """
    if not hasattr(select, "poll"):
        with suppress(OSError):  # one was closed
            room = [sock for sock, for_room in socks.items() if for_room]
            return alarm in select.select([alarm, *socks], room, [], seconds)[0]
        return True
    poll = select.poll()
    poll.register(alarm, select.POLLIN)
    for sock, for_room in socks.items():
        poll.register(sock, select.POLLIN | (select.POLLOUT if for_room else 0))
    return alarm in dict(poll.poll(seconds * 1000))


class Place:
    """A thread that waits for a call: asleep until the call is done, or until it is to lead."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """Wake the thread; for the holder of the driver's lock."""
        if self._lock.locked():
            self._lock.release()

    def sleep(self, seconds: float) -> bool:
        """Wait to be woken; returns whether it was, and not too late."""
        return self._lock.acquire(timeout=max(GRACE_S, min(seconds, _LONGEST_S)))
