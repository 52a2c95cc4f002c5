"""The runtime that runs the SDK, asyncio or trio, bound once for each client.

anyio looks its backend up at each call. That costs more than the call itself where it is made for every task, so those
few functions are kept here, as the runtime has them. Everything else is anyio's.
"""

from __future__ import annotations

import asyncio
import gc
import operator
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from contextlib import asynccontextmanager, suppress
from contextvars import Context, copy_context
from functools import partial
from math import inf
from typing import Any, Protocol

import anyio
from attrs import define, field, frozen

from fairq.io.exception_groups import ungrouped

RECEIVE_BYTES = 65_536
CLOSED = "this end was closed"

Send = Callable[[], None]
Take = Callable[[bytes], bool]


class File(Protocol):
    """What has a file number: below 0 once it is closed."""

    def fileno(self) -> int:
        """Return the number."""


class Event(Protocol):
    """What trio.Event and asyncio.Event have in common."""

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

    While a task waits for bytes, `take(data)` may be given them in its place; it returns whether all is done.
    """

    take: Take | None

    async def receive(self) -> bytes | None:
        """Wait for bytes; empty at the end, None if `take` was given some, and not all is done.

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
    make_reader: Callable[[socket.socket], Reader]
    at_end_of_turn: Callable[[Send], None]  # calls it once when the tasks that are ready now have run
    before_waiting: Callable[[Send], None]  # the same, from a task that waits next: at once if no other is ready
    call_from_end: Callable[[Send], None]  # wakes a task, from within such a call too
    call_from_thread: Callable[[Send], None]  # does nothing once the loop has ended
    call_next: Callable[[Callable[[BaseException | None], None]], None]  # when the step that runs is over; its error
    poller: File | None = None  # the file that the loop waits with; none where a forked process does not share it

    @property
    def title(self) -> str:
        """The name for people: which asyncio it is, too."""
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


def current_runtime() -> Runtime:
    """Return the functions of the running event loop. Raises: RuntimeError outside any."""
    if in_trio():
        return _trio_runtime()
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "there is no event loop here: the client and the worker of fairq run in an async function, under"
            " asyncio.run or trio.run; for threads there is fairq.sync.open_client"
        ) from None
    return _asyncio_runtime(loop)


def in_trio() -> bool:
    """True in a task of trio; another thread may be just importing that."""
    tell: Callable[[], bool] | None = getattr(sys.modules.get("trio.lowlevel"), "in_trio_task", None)
    return tell is not None and tell()


def in_event_loop() -> bool:
    """True in a task of trio or asyncio, not in a thread beside."""
    try:
        return in_trio() or bool(asyncio.get_running_loop())
    except RuntimeError:
        return False


def current_task() -> Any:
    """Return the running scheduler task, trio's or asyncio's."""
    return sys.modules["trio.lowlevel"].current_task() if in_trio() else asyncio.current_task()


def is_cancellation(error: BaseException) -> bool:
    """True for what asyncio or trio raises in a task that is cancelled."""
    return isinstance(error, (asyncio.CancelledError, getattr(sys.modules.get("trio"), "Cancelled", ())))


def is_cancelled() -> bool:
    """True if a scope around this task is cancelled, or if the event loop is gone."""
    try:
        return anyio.current_effective_deadline() == -inf
    except RuntimeError:
        return True


def native_cancels() -> Callable[[], int]:
    """Return what counts the calls of asyncio's `cancel` on this task; trio has none."""
    task = None if in_trio() else asyncio.current_task()
    return task.cancelling if task is not None else lambda: 0


def cancellation_from_here() -> Callable[[], bool]:
    """Return what says in a task below this one whether it is cancelled from here: by scopes, or along with this one.

    The latter as a program does with all tasks of asyncio's loop when it ends.
    """
    cancels = native_cancels()
    before = cancels()
    return lambda: is_cancelled() or cancels() > before


async def forget_native_cancels() -> None:
    """Take back asyncio's cancellation of this task, which someone else's code asked for. Raises: the worker's own."""
    task = asyncio.current_task()
    while task is not None and task.uncancel():
        pass
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:  # until Python 3.13 it comes although it was taken back
        if is_cancelled():
            raise


@asynccontextmanager
async def background(service: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run a service until the block is left; under asyncio that may be in another task, as of a test's fixtures."""
    if current_runtime().name == "trio":
        with ungrouped():
            async with anyio.create_task_group() as group:
                group.start_soon(service)
                try:
                    yield
                finally:
                    group.cancel_scope.cancel()
        return
    task = asyncio.create_task(service())
    try:
        await asyncio.sleep(0)  # one that is cancelled before it has begun would not clean up
        yield
    finally:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()):
            raise error


def _trio_runtime() -> Runtime:
    import trio

    from fairq.io.turns import at_end_of_turn, call_from_end

    token = trio.lowlevel.current_trio_token()
    context: Any = trio._core._run.GLOBAL_RUN_CONTEXT

    def call_from_thread(wake: Send) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(wake)

    def call_next(end: Callable[[BaseException | None], None]) -> None:
        class Step(trio.abc.Instrument):
            def after_task_step(self, task: Any) -> None:
                raised = () if task.coro.cr_frame else getattr(task.parent_nursery, "_pending_excs", ())
                end(raised[-1] if raised else None)

        trio.lowlevel.add_instrument(Step())

    return Runtime(
        name="trio",
        loop=token,
        current_loop=trio.lowlevel.current_trio_token,
        current_time=trio.lowlevel.current_clock().current_time,
        checkpoint=trio.lowlevel.checkpoint,
        make_event=trio.Event,
        make_wakeup=trio.Event,
        make_lot=trio.lowlevel.ParkingLot,
        make_reader=partial(_TrioReader, trio.lowlevel.wait_readable, trio.ClosedResourceError),
        at_end_of_turn=at_end_of_turn,
        before_waiting=at_end_of_turn,  # a turn's end costs nothing
        call_from_end=call_from_end,
        call_from_thread=call_from_thread,
        call_next=call_next,
        poller=getattr(context.runner.io_manager, "_epoll", None),
    )


@define(eq=False)
class _TrioReader:
    """Waits for bytes and reads them; the task that has waited runs at once, and takes them itself."""

    wait_readable: Callable[[socket.socket], Awaitable[None]]
    closed: type[Exception]
    socket: socket.socket
    take: Take | None = None

    async def receive(self) -> bytes | None:
        """Wait for bytes; empty at the end."""
        while True:
            try:
                await self.wait_readable(self.socket)
                data = self.socket.recv(RECEIVE_BYTES)
            except self.closed:
                raise OSError(CLOSED) from None
            except (BlockingIOError, InterruptedError):
                continue  # the kernel dropped it
            if not data or self.take is None:
                return data
            if not self.take(data):
                return None

    def close(self) -> None:
        """Do nothing: trio wakes the reader when the socket is closed."""


def _asyncio_runtime(loop: asyncio.AbstractEventLoop) -> Runtime:
    ends = _AsyncioEnds(loop)

    def call_from_thread(wake: Send) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(wake)

    def call_next(end: Callable[[BaseException | None], None]) -> None:
        loop.call_soon(lambda: end(sys.exception()))
        ready = getattr(loop, "_ready", None) or next(filter(_is_deque, gc.get_referents(loop)))  # uvloop's only one
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
        poller=_asyncio_poller(loop),
    )


def _is_deque(value: object) -> bool:
    return type(value) is deque


def _asyncio_poller(loop: Any) -> File | None:
    """Return the file that a loop waits with; a number of uvloop's."""
    if hasattr(loop, "_get_backend_id"):
        return _Number(loop._get_backend_id())
    selector = getattr(loop, "_selector", None)
    return selector if hasattr(selector, "fileno") else None


@frozen
class _Number:
    """A file of which only the number is known."""

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
    take: Take | None = None
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
            if data and self.take is not None and self._waiter is not None and not self._waiter.done():
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
    _context: Context = field(factory=copy_context, init=False)  # not that of the handler which is the first to send
    _ready: Collection[object] = field(init=False)  # what is still to run in this turn; uvloop does not tell

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
