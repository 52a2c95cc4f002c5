"""The event loop in which the caller runs, asyncio's or trio's, and what has cancelled its task."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from math import inf
from typing import Any

import anyio

from fairq.io.asyncio_runtime import asyncio_runtime
from fairq.io.exception_groups import ungrouped
from fairq.io.runtime import Runtime


def current_runtime() -> Runtime:
    """Return the functions of the running event loop. Raises: RuntimeError outside any."""
    if in_trio():
        from fairq.io.trio_runtime import trio_runtime  # a program on asyncio may do without trio

        return trio_runtime()
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "there is no event loop here: the client and the worker of fairq run in an async function, under"
            " asyncio.run or trio.run; for threads there is fairq.sync.open_client"
        ) from None
    return asyncio_runtime(loop)


def in_trio() -> bool:
    """True in a task of trio; another thread may be just importing that."""
    tell: Callable[[], bool] | None = getattr(sys.modules.get("trio.lowlevel"), "in_trio_task", None)
    return tell is not None and tell()


def in_event_loop() -> bool:
    """True in a task of trio or asyncio, not in another thread."""
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
    """Return a function that counts asyncio's `cancel` calls on this task; under trio it returns 0."""
    task = None if in_trio() else asyncio.current_task()
    return task.cancelling if task is not None else lambda: 0


def cancellation_from_here() -> Callable[[], bool]:
    """Return a function that a child task asks whether it is being cancelled along with this task, or by a scope.

    A program that ends cancels all tasks of asyncio's loop.
    """
    cancels = native_cancels()
    before = cancels()
    return lambda: is_cancelled() or cancels() > before


async def forget_native_cancels() -> None:
    """Undo cancellations of this task by code that is not ours. Raises: CancelledError if the worker itself ends."""
    task = asyncio.current_task()
    while task is not None and task.uncancel():
        pass
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:  # before Python 3.13 it is raised although it was undone
        if is_cancelled():
            raise


@asynccontextmanager
async def background(service: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Run a service until the block is left. Under asyncio another task may leave it, as a test's fixtures do."""
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
