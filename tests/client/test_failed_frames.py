"""What a failed handler held is free when its task has ended: nothing waits for Python's collector, or for the next."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import logging
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator

import anyio
import pytest
import trio

import fairq
from fairq.client.threads import Threads
from fairq.client.timeouts import TimedOut

from .runtimes import Service, limits, wait_until, working
from .test_isolation import LOOPS, on_loops

SHARED = ValueError("one exception for all")


class Held:
    """What a handler has in a local variable."""


async def fail_in_group(loop: str, error: Exception) -> None:
    async def fail() -> None:
        raise error

    if loop == "trio":
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
    else:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())


async def fail_in_anyio(loop: str, error: Exception) -> None:
    async with anyio.create_task_group() as outer, anyio.create_task_group() as inner:
        inner.start_soon(anyio.sleep_forever)
        outer.start_soon(fail_in_group, loop, error)


async def wait_in_group(loop: str) -> None:
    if loop == "trio":
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
    else:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(60))


def fail(kind: str) -> None:
    """Fail as plain functions and others do."""
    match kind:
        case "error":
            raise ValueError("broken")
        case "Retry":
            raise fairq.Retry("later", delay=600)
        case "Postpone":
            raise fairq.Postpone("later", delay=600)
        case "Reject":
            raise fairq.Reject("never")
        case "from":
            try:
                fail("error")
            except ValueError as error:
                raise fairq.Retry("later", delay=600) from error
        case "kept":  # in a frame that its traceback names
            last = None
            try:
                fail("from")
            except fairq.Retry as error:
                last = error
            if last is not None:
                raise last
        case "shared":
            raise SHARED
        case "stop":
            raise StopIteration
        case "stack":  # contextlib keeps it
            with contextlib.ExitStack() as stack:
                stack.callback(fail, "from")
                fail("error")


PLAIN = ("error", "Retry", "Postpone", "Reject", "from", "kept", "shared", "stop", "stack")
ASYNC = (
    "child", "group", "anyio", "verdict in group", "async stack", "exc_info", "timeout", "group timeout", "cancel",
    "group cancel",
)  # fmt: skip


async def fail_async(kind: str, loop: str, here: object = None) -> None:
    """Fail as async functions do."""
    match kind:
        case "child" if loop != "trio":
            child = asyncio.create_task(fail_async("error", loop))
            await asyncio.wait_for(child, 20)
        case "group":
            await fail_in_group(loop, ValueError("broken"))
        case "anyio" | "child":
            await fail_in_anyio(loop, ValueError("broken"))
        case "verdict in group":
            await fail_in_anyio(loop, fairq.Reject("never"))
        case "async stack":  # contextlib keeps its traceback in a coroutine
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_callback(fail_async, "from", loop)
                fail("error")
        case "exc_info":  # as many programs that report errors
            try:
                fail("error")
            except ValueError:
                info = sys.exc_info()
                raise KeyError("reported") from info[1]
        case "timeout" | "cancel":
            await anyio.sleep_forever()
        case "group timeout" | "group cancel":
            await wait_in_group(loop)
        case _:
            fail(kind)


class Writer(logging.StreamHandler[io.StringIO]):
    """Writes lines, and takes their exceptions off: pytest's own handler keeps its records."""

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        record.exc_info = None


@pytest.fixture
def collected_by_nobody() -> Iterator[io.StringIO]:
    """Turn the collector off, and write the log."""
    written = io.StringIO()
    writer = Writer(written)
    logging.getLogger("fairq.worker").addHandler(writer)
    gc.collect()
    gc.disable()
    yield written
    gc.enable()
    logging.getLogger("fairq.worker").removeHandler(writer)


@pytest.mark.parametrize("has_middleware", [False, True])
@pytest.mark.parametrize("is_plain", [True, False])
@on_loops(*LOOPS)
async def test_the_frames_of_a_failed_handler_are_free_when_its_task_has_ended(
    service: Service, loop: str, is_plain: bool, has_middleware: bool, collected_by_nobody: io.StringIO
) -> None:
    app, held, kept = service.worker(1), list[weakref.ref[Held]](), list[str]()
    app.prefetch = 2  # the next task waits, and begins as soon as it may

    def hold(task: fairq.Task) -> Held:
        here = Held()
        kept.extend(task.payload for each in held if each() is not None)
        held.append(weakref.ref(here))
        return here

    def handle(task: fairq.Task) -> None:
        here = hold(task)
        fail(task.payload)
        del here

    async def handle_async(task: fairq.Task) -> None:
        here = hold(task)
        await fail_async(task.payload, loop, here)
        del here

    app.task("q")(handle if is_plain else handle_async)
    app.task("q", name="timeout", timeout=0.01)(handle_async)
    if has_middleware:

        @app.middleware
        async def around(task: fairq.Task) -> AsyncIterator[None]:
            try:
                yield
            except ValueError as error:
                raise fairq.Retry("later", delay=600) from error

        @app.middleware
        def inside(task: fairq.Task) -> Iterator[None]:
            try:
                yield
            except fairq.Reject as error:
                raise KeyError("inside") from error

    async with service.client() as client, working(app):
        for kind in PLAIN if is_plain else PLAIN + ASYNC:
            held.clear()
            for number, task in enumerate(
                await client.enqueue_many("q", [kind] * 3, name=kind.rpartition(" ")[2], retry_base=600)
            ):
                await wait_until(lambda number=number: len(held) > number)  # type: ignore[misc]
                if kind.endswith("cancel"):
                    await task.cancel()
            await wait_until(lambda: not app.running)
            await task.state()  # the worker has a turn
            kept.extend(kind for each in held if each() is not None)
            assert (len(held), kept) == (3, [])
    assert "task failed" in collected_by_nobody.getvalue()


@pytest.mark.parametrize("is_late", [False, True])
@on_loops(*LOOPS)
async def test_the_frames_of_a_thread_that_nobody_waits_for_are_free_when_it_ends(
    loop: str, is_late: bool, collected_by_nobody: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, held, leave = Threads(1), list[weakref.ref[Held]](), threading.Event()

    def handle(kind: str) -> None:
        here = Held()
        held.append(weakref.ref(here))
        assert leave.wait(20)
        fail(kind)

    async def end_with_it(_: Threads, call: Callable[[], None]) -> None:
        """Be cancelled in the turn in which the function has ended."""
        leave.set()
        call()
        await anyio.sleep_forever()

    if not is_late:
        monkeypatch.setattr(Threads, "_in_thread", end_with_it)
    of_threads = limits(monkeypatch)

    async def end_time() -> None:
        await wait_until(lambda: bool(held))
        of_threads[0].cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(end_time)
        with contextlib.suppress(TimedOut):  # pytest's own would keep it
            await threads.run(handle, "kept" if is_late else "error", 3600)
    leave.set()
    await wait_until(lambda: not threads.abandoned)
    await wait_until(lambda: bool(held) and held[0]() is None, 5)
    threads.close()
