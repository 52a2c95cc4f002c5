"""Runs workers until a signal stops them, under asyncio or trio."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Set
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from math import inf
from typing import Protocol, TypeVar

import anyio
from anyio.abc import TaskStatus

from fairq.cli import ending
from fairq.client.loops import Loop
from fairq.errors import FairqError
from fairq.io.event_loop import current_runtime
from fairq.io.exception_groups import ungrouped
from fairq.io.forks import OwnProcess, replacing_signal
from fairq.log import Log

log = Log("fairq.worker")

T = TypeVar("T")

_CANCELLED = "a handler has cancelled tasks of its worker; no signal came"
_MAX_SIGNALS = 16  # received, and not handled yet


def _may_be_ctrl_c() -> bool:
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Works(ending.Ends, Protocol):
    """A worker, or a service of several; `running`: how many tasks run."""

    @property
    def running(self) -> int: ...

    async def run(self, *, burst: bool = False, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Work until stopped."""

    def stop(self) -> None:
        """Take no more tasks."""


def run_in(loop: Loop, main: Callable[[], Awaitable[T]]) -> T:
    """Run an async function under asyncio, by uvloop if that is installed, or under trio."""
    if loop == "trio":
        return anyio.run(main, backend="trio")
    with asyncio.Runner(loop_factory=_uvloop_factory()) as runner:
        return _run_to_its_end(runner.get_loop(), main)


def _uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if find_spec("uvloop") is None:
        return None
    from uvloop import new_event_loop

    return new_event_loop


def _run_to_its_end(loop: asyncio.AbstractEventLoop, main: Callable[[], Awaitable[T]]) -> T:
    """Run an async function to its end, even if another task or callback raises an exit, which stops asyncio's loop.

    Without a signal, a handler has caused that. A handler that waits for such a task gets the exception.
    """

    async def run() -> T:
        return await main()

    task = loop.create_task(run())
    while True:
        try:
            with OwnProcess():
                return loop.run_until_complete(task)
        except asyncio.CancelledError:
            raise FairqError(_CANCELLED) from None
        except (KeyboardInterrupt, SystemExit) as error:
            if task.done() or _may_be_ctrl_c():
                raise
            said = "a task or callback of a handler's own raised an exit; the worker goes on"
            loop.call_soon(partial(log.error, said, exc_info=error))


async def work_until_stopped(
    app: Works, end: ending.Ending, grace: float, burst: bool = False, on_start: Callable[[], None] | None = None
) -> None:
    """Run a worker until a stop signal; it then finishes its tasks, for at most `grace` seconds.

    A second signal cancels it. `end` sees to it that this process ends. `on_start` is a supervisor's, called when the
    worker has begun: then a second SIGTERM does nothing, for one may come from the supervisor and one from the system;
    SIGINT cancels. Raises: FairqError if it was cancelled without a signal.
    """
    is_over = False
    with ungrouped():
        async with anyio.create_task_group() as group:
            more = {signal.SIGINT} if on_start else {signal.SIGINT, signal.SIGTERM}
            await group.start(_watch_signals, app, end, grace, more, group.cancel_scope)

            async def work(*, task_status: TaskStatus[None]) -> None:
                nonlocal is_over
                await app.run(burst=burst, task_status=task_status)
                is_over = True
                group.cancel_scope.cancel()

            await group.start(work)
            if on_start:
                on_start()
    end.has_left = True
    if not is_over and group.cancel_scope.deadline == inf:  # no signal came
        raise FairqError(_CANCELLED)


@contextmanager
def _receiving(noted: Callable[[int], object], *numbers: signal.Signals) -> Iterator[AsyncIterable[int]]:
    """Receive signals, also those that come while asyncio has left its loop: uvloop's own receiver misses them.

    `noted` is called at once, also while a handler blocks the loop.
    """
    runtime = current_runtime()
    send, signals = anyio.create_memory_object_stream[int](_MAX_SIGNALS)

    def put(number: int) -> None:
        with suppress(anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            send.send_nowait(number)

    def note(number: int, _: object) -> None:
        noted(number)
        runtime.call_from_thread(partial(put, number))

    with send, signals, ExitStack() as handled:
        for number in numbers:
            handled.enter_context(replacing_signal(number, note))
        yield signals


async def _watch_signals(
    app: Works, end: ending.Ending, grace: float, more: Set[int], scope: anyio.CancelScope,
    *, task_status: TaskStatus[None],
) -> None:  # fmt: skip
    """Stop the worker at a signal; cancel it at another one, if that is one of `more`."""
    is_signalled = False

    def note(number: int) -> None:
        nonlocal is_signalled
        if not is_signalled or number in more:
            end.within(ending.KILL_S + (0 if is_signalled else grace))
        is_signalled = True

    with _receiving(note, signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            if scope.deadline == inf:
                scope.deadline = anyio.current_time() + grace
                app.stop()
                log.info(_say_stopping(app.running, grace, signal.SIGTERM in more), signal=signal.Signals(number).name)
            elif number in more:
                scope.cancel()


def _say_stopping(running: int, grace: float, again_ends: bool) -> str:
    """Print what a stopping worker does: at a terminal the next ctrl-C is near."""
    if not running:
        return "stopping: no task runs"
    tasks = "1 task runs" if running == 1 else f"{running} tasks run"
    return f"stopping: {tasks}; {grace:g} s left" + ("; again to give them back" if again_ends else "")
