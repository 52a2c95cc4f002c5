"""The runtime of asyncio and uvloop: its turns end where the callbacks that are ready now have run."""

from __future__ import annotations

import asyncio
import gc
import operator
import socket
import sys
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from attrs import define, field, frozen

from fairq.io.runtime import CLOSED, RECEIVE_BYTES, File, Runtime, Send, Take


def asyncio_runtime(loop: asyncio.AbstractEventLoop) -> Runtime:
    """Return the functions of a running loop of asyncio or uvloop."""
    ends = _AsyncioEnds(loop)

    def call_from_thread(wake: Send) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(wake)

    def call_next(end: Callable[[BaseException | None], None]) -> None:
        loop.call_soon(lambda: end(sys.exception()))
        ready = getattr(loop, "_ready", None) or next(filter(_is_deque, gc.get_referents(loop)))  # uvloop has one
        ready.rotate(1)

    return Runtime(
        name="asyncio",
        loop=loop,
        current_loop=asyncio.get_running_loop,
        current_time=loop.time,
        checkpoint=partial(asyncio.sleep, 0),
        make_event=asyncio.Event,
        make_wakeup=partial(_AsyncioWakeup, loop=loop),
        make_lot=_AsyncioLot,
        make_reader=partial(_AsyncioReader, loop),
        at_end_of_turn=ends.at_end_of_turn,
        before_waiting=ends.before_waiting,
        call_from_end=operator.call,
        call_from_thread=call_from_thread,
        call_next=call_next,
        has_daemon_threads=False,
        poller=_asyncio_poller(loop),
    )


def _is_deque(value: object) -> bool:
    return type(value) is deque


def _asyncio_poller(loop: Any) -> File | None:
    """Return the file that the loop polls; uvloop shows only its number."""
    if hasattr(loop, "_get_backend_id"):
        return _Number(loop._get_backend_id())
    selector = getattr(loop, "_selector", None)
    return selector if hasattr(selector, "fileno") else None


@frozen
class _Number:
    """A file known only by its number."""

    number: int

    def fileno(self) -> int:
        return self.number


class _AsyncioWakeup(asyncio.Future[None]):
    """A future as an event: asyncio's own event takes a lock, and asks the system which process this is."""

    __slots__ = ()

    def set(self) -> None:
        """Wake the one that waits."""
        if not self.done():
            self.set_result(None)

    def wait(self) -> asyncio.Future[None]:
        """Wait until it is set."""
        return self


@define(eq=False)
class _AsyncioReader:
    """Reads as soon as there is something: to be woken first would cost a turn and two system calls."""

    loop: asyncio.AbstractEventLoop
    socket: socket.socket
    take: Take
    _is_left: bool = field(default=False, init=False)  # `take` has left something to do
    _arrived: bytes = field(default=b"", init=False)
    _has_ended: bool = field(default=False, init=False)
    _error: OSError | None = field(default=None, init=False)
    _is_reading: bool = field(default=False, init=False)
    _waiter: asyncio.Future[None] | None = field(default=None, init=False)

    async def receive(self) -> bytes | None:
        """Wait for bytes; empty at the end."""
        while not self._arrived and not self._has_ended and not self._is_left:
            if self._error:
                raise self._error
            if not self._is_reading:
                self._is_reading = True
                self.loop.add_reader(self.socket, self._ready)
            self._waiter = self.loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._is_left:
            self._is_left = False
            return None
        data, self._arrived = self._arrived, b""
        return data

    def _ready(self) -> None:
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._error = error
        else:
            if data and self._waiter is not None and not self._waiter.done():
                if self.take(data):
                    return
                self._is_left = True
            else:
                self._arrived += data
                self._has_ended = not data
        if self._error or self._has_ended or len(self._arrived) >= RECEIVE_BYTES:
            self._stop()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _stop(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self.loop.remove_reader(self.socket)

    def close(self) -> None:
        """Wait no more."""
        self._stop()
        self._error = OSError(CLOSED)
        self._wake()


@define(eq=False)
class _AsyncioEnds:
    """Calls functions once the tasks that are ready now have run, each once."""

    loop: asyncio.AbstractEventLoop
    due: dict[Send, None] = field(factory=dict, init=False)
    _context: Context = field(factory=copy_context, init=False)  # not the context of the handler that sends first
    _ready: Collection[object] = field(init=False)  # what is left to run in this turn; uvloop hides it

    @_ready.default
    def _find_ready(self) -> Collection[object]:
        return getattr(self.loop, "_ready", ("unknown",))

    def at_end_of_turn(self, send: Send) -> None:
        """Call `send` once at the end of this turn, however often it is registered until then."""
        if not self.due:
            self.loop.call_soon(self._send_all, context=self._context)
        self.due[send] = None

    def _send_all(self) -> None:
        due, self.due = self.due, {}
        for send in due:
            self._send(send)

    def before_waiting(self, send: Send) -> None:
        """Call `send` now if this is the end of the turn, since nothing else is ready to run."""
        if self._ready:
            self.at_end_of_turn(send)
        else:
            self._send(send)

    def _send(self, send: Send) -> None:
        try:
            send()
        except Exception as error:
            self.loop.call_exception_handler({"message": "fairq: sending failed", "exception": error})


@define(eq=False)
class _AsyncioLot:
    """A line of tasks; those that were cancelled are passed over."""

    _line: deque[asyncio.Future[None]] = field(factory=deque, init=False)

    async def park(self) -> None:
        """Wait to be woken. Cancelled: the place in the line is given up."""
        place = asyncio.get_running_loop().create_future()
        self._line.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                self.unpark()  # it was woken just then: the next one takes over
            raise

    def unpark(self) -> None:
        """Wake the first of the line, if there is one."""
        while self._line:
            place = self._line.popleft()
            if not place.done():
                place.set_result(None)
                return
