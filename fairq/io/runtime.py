"""The SDK's interface to an event loop, bound once for each client.

anyio looks its backend up at each call. That costs more than the call itself where it is made for every task, so those
few functions are kept here, as the loop has them. Everything else is anyio's.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from attrs import frozen

RECEIVE_BYTES = 65_536
CLOSED = "this end was closed"

Send = Callable[[], None]
Take = Callable[[bytes], bool]


class File(Protocol):
    """An object with a file number: below 0 once it is closed."""

    def fileno(self) -> int:
        """Return the number."""


class Event(Protocol):
    """The common part of trio.Event and asyncio.Event."""

    def set(self) -> None:
        """Wake those that wait, now and later."""

    def wait(self) -> Awaitable[Any]:
        """Wait until it is set."""


class Lot(Protocol):
    """A line of waiting tasks, as trio.lowlevel.ParkingLot."""

    async def park(self) -> None:
        """Wait to be woken. Cancelled: the place in the line is given up."""

    def unpark(self) -> Any:
        """Wake the first of the line, if there is one."""


class Reader(Protocol):
    """The reading side of a connected socket.

    While a task waits for bytes, `take(data)` may get them instead; it returns whether the task need not be woken.
    """

    async def receive(self) -> bytes | None:
        """Wait for bytes; empty at the end, None if `take` got some, and wants the task woken.

        Cancelled: none are lost. Raises: OSError, also if it was closed.
        """

    def close(self) -> None:
        """Wait no more; to be called first, when the socket is closed."""


@frozen(eq=False)
class Runtime:
    """The event loop of a client, and the functions of it that are called for every task."""

    name: str
    loop: object
    current_loop: Callable[[], object]
    current_time: Callable[[], float]
    checkpoint: Callable[[], Awaitable[None]]
    make_event: Callable[[], Event]
    make_wakeup: Callable[[], Event]  # an event that one task waits for, once
    make_lot: Callable[[], Lot]
    make_reader: Callable[[socket.socket, Take], Reader]
    at_end_of_turn: Callable[[Send], None]  # calls it once when the tasks that are ready now have run
    before_waiting: Callable[[Send], None]  # the same, from a task that waits next: at once if no other is ready
    call_from_end: Callable[[Send], None]  # wakes a task, also from within such a call
    call_from_thread: Callable[[Send], None]  # does nothing once the loop has ended
    call_next: Callable[
        [Callable[[BaseException | None], None]], None
    ]  # at the end of the running step, with its error
    has_daemon_threads: bool  # a process does not wait for the threads of anyio when it ends
    poller: File | None = None  # the file that the loop waits with; none where a forked process does not share it

    @property
    def title(self) -> str:
        """The name as people read it; it also says if asyncio runs on uvloop."""
        return f"{self.name} (uvloop)" if type(self.loop).__module__.startswith("uvloop") else self.name

    def check(self) -> None:
        """Raise RuntimeError unless this runs in the client's own event loop."""
        try:
            is_ours = self.current_loop() is self.loop
        except RuntimeError:
            is_ours = False
        if not is_ours:
            raise RuntimeError(
                f"this client of fairq was opened in another event loop ({self.name}): open one in each loop that"
                " enqueues, and call it only there"
            )
