"""What an app does at its start and end, and around each task, under asyncio and trio."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import fairq
import fairq.testing
from fairq.client import hooks
from fairq.errors import BadRequest
from tests.logs import captured_logs
from tests.store.cases import case

from .runtimes import Service, limits, on_both, wait_state, wait_until, working


@on_both
async def test_startup_comes_first_and_shutdown_last(service: Service) -> None:
    app, done = service.worker(), list[str]()

    @app.on_startup
    async def open_pool() -> None:
        done.append("open pool")

    def plainly(function: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        return lambda: function()

    @app.on_startup
    @plainly
    async def warm_up() -> None:
        await anyio.lowlevel.checkpoint()
        done.append("warm up")

    @app.on_startup
    def load_model() -> None:
        assert threading.current_thread() is not threading.main_thread()
        done.append("load model")

    @app.on_shutdown
    async def close_pool() -> None:
        await anyio.lowlevel.checkpoint()
        done.append("close pool")

    @app.on_shutdown
    def drop_model() -> None:
        done.append("drop model")

    @app.task("emails")
    async def handle(task: fairq.Task) -> None:
        done.append("task")

    async with service.client() as client:
        for _ in range(2):  # once for each run
            await client.enqueue("emails", 1)
            await app.run(burst=True)
    assert done == ["open pool", "warm up", "load model", "task", "drop model", "close pool"] * 2


@on_both
async def test_a_startup_that_fails_ends_run_and_no_task_is_taken(service: Service) -> None:
    app, done = service.worker(), list[str]()

    @app.on_startup
    def connect() -> None:
        raise ConnectionRefusedError("no database")

    app.on_startup(lambda: done.append("second"))
    app.on_shutdown(lambda: done.append("shutdown"))
    app.task("emails")(lambda task: done.append("task"))
    async with service.client() as client:
        task = await client.enqueue("emails", 1)
        with pytest.raises(ConnectionRefusedError, match="no database"):
            await app.run(burst=True)
        assert (await task.state()).attempt == 0
    assert done == []


@on_both
async def test_shutdown_runs_after_cancellation_too_and_what_fails_there_is_logged(service: Service) -> None:
    app, done, began = service.worker(), list[str](), anyio.Event()

    @app.on_shutdown
    async def close() -> None:
        await anyio.sleep(0.001)
        done.append("close")

    @app.on_shutdown
    async def fail() -> None:
        raise ValueError("broken")

    @app.task("emails")
    async def handle(task: fairq.Task) -> None:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            done.append("handler")

    async with service.client() as client:
        await client.enqueue("emails", 1)
        with captured_logs() as lines:
            async with working(app):
                await began.wait()
    assert done == ["handler", "close"]
    (line,) = [line for line in lines if line["event"] == "on_shutdown failed"]
    assert repr(line["raised"]) == "ValueError('broken')"
    assert "fail" in line["function"]


@on_both
@pytest.mark.parametrize("is_async", [True, False])
async def test_shutdown_is_bounded(service: Service, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    app, leave = service.worker(), threading.Event()
    monkeypatch.setattr(hooks, "SHUTDOWN_S", 0.05)
    app.task("emails")(print)
    if is_async:
        app.on_shutdown(anyio.sleep_forever)
    else:
        app.on_shutdown(lambda: leave.wait(30))
    with captured_logs() as lines:
        await app.run(burst=True)
    leave.set()
    assert [line["limit_s"] for line in lines if line["event"].startswith("on_shutdown took")] == [0.05]


@on_both
async def test_a_stop_while_it_starts_takes_no_task(service: Service) -> None:
    app, done = service.worker(), list[str]()

    @app.on_startup
    async def start() -> None:
        app.stop()

    app.on_shutdown(lambda: done.append("shutdown"))
    app.task("emails")(lambda task: done.append("task"))
    async with service.client() as client:
        await client.enqueue("emails", 1)
        await app.run()
    assert done == ["shutdown"]


variable = contextvars.ContextVar("variable", default="unset")


@on_both
async def test_middleware_nests_around_each_task_of_every_handler(service: Service) -> None:
    app, done = service.worker(1), list[str]()

    @app.middleware
    async def outer(task: fairq.Task) -> AsyncIterator[None]:
        done.append(f"outer {task.payload}")
        token = variable.set("set")
        yield
        variable.reset(token)
        done.append("outer ends")

    @app.middleware
    async def inner(task: fairq.Task) -> AsyncIterator[None]:
        done.append("inner")
        yield
        done.append("inner ends")

    @app.task("emails")
    async def handle(task: fairq.Task) -> str:
        return f"async {variable.get()}"

    @app.task("emails", name="plain")
    def plain(task: fairq.Task) -> str:
        assert threading.current_thread() is not threading.main_thread()
        return f"plain {variable.get()}"

    async with service.client() as client, working(app):
        for name, result in (("", "async set"), ("plain", "plain set")):
            task = await client.enqueue("emails", name, name=name, result_ttl=60)
            assert await task.result() == result
            assert done == [f"outer {name}", "inner", "inner ends", "outer ends"]
            done.clear()


@on_both
async def test_errors_pass_through_middleware_as_in_contextlib(service: Service) -> None:
    app, seen = service.worker(), list[str]()

    @app.middleware
    async def watch(task: fairq.Task) -> AsyncIterator[None]:
        try:
            yield
        except Exception as error:
            seen.append(repr(error))
            if task.payload == "taken":
                return
            if task.payload == "other":
                raise fairq.Reject("instead") from error
            raise
        if task.payload == "late":
            raise ValueError("after the handler")

    @app.middleware
    async def refuse(task: fairq.Task) -> AsyncIterator[None]:
        if task.payload == "refused":
            raise fairq.Reject("ahead of the handler")
        yield

    @app.task("emails", timeout=0.05)
    async def handle(task: fairq.Task) -> None:
        if task.payload == "timeout":
            await anyio.sleep_forever()
        if task.payload != "late":
            raise KeyError(task.payload)

    ends = {"raised": "KeyError: 'raised'", "other": "instead", "late": "ValueError: after the handler"}
    ends |= {"refused": "ahead of the handler", "timeout": "timeout: the handler did not end within 0.05 s"}
    async with service.client() as client, working(app):
        task = await client.enqueue("emails", "taken", result_ttl=60)
        assert await task.result() is None
        for payload, error in ends.items():
            task = await client.enqueue("emails", payload, max_attempts=1)
            assert (await wait_state(task, "dead")).error == error
    assert seen == [
        "KeyError('taken')", "KeyError('raised')", "KeyError('other')",
        "Reject('ahead of the handler')", "TimedOut('the handler did not end within 0.05 s')",
    ]  # fmt: skip


local = threading.local()


@on_both
async def test_plain_middleware_runs_where_the_handler_runs(service: Service) -> None:
    app, done = service.worker(), list[str]()

    @app.middleware
    def mark(task: fairq.Task) -> Iterator[None]:
        local.mark = task.payload
        yield
        done.append(f"{task.payload} {local.mark} {threading.current_thread() is threading.main_thread()}")
        del local.mark

    @app.middleware
    async def loop(task: fairq.Task) -> AsyncIterator[None]:
        assert threading.current_thread() is threading.main_thread()
        assert not hasattr(local, "mark")  # it is outside of the other, though it was registered later
        yield
        assert not hasattr(local, "mark")

    @app.task("emails", name="plain")
    def plain(task: fairq.Task) -> str:
        return f"{local.mark} {threading.current_thread() is threading.main_thread()}"

    @app.task("emails", name="async")
    async def handle(task: fairq.Task) -> str:
        return f"{local.mark} {threading.current_thread() is threading.main_thread()}"

    async with service.client() as client, working(app):
        tasks = [await client.enqueue("emails", n, name="plain", result_ttl=60) for n in range(20)]
        assert [await task.result() for task in tasks] == [f"{n} False" for n in range(20)]
        assert sorted(done) == sorted(f"{n} {n} False" for n in range(20))
        done.clear()
        task = await client.enqueue("emails", "here", name="async", result_ttl=60)
        assert await task.result() == "here True"
        assert done == ["here here True"]


@on_both
async def test_errors_pass_through_plain_middleware_and_its_own_are_the_task_s(service: Service) -> None:
    app, closed = service.worker(), list[str]()

    @app.middleware
    def watch(task: fairq.Task) -> Iterator[None]:
        if task.payload == "refused":
            raise fairq.Reject("ahead of the handler")
        try:
            yield
        except KeyError as error:
            if task.payload == "taken":
                return
            raise fairq.Reject("instead") from error
        finally:
            closed.append(task.payload)
        if task.payload == "late":
            raise ValueError("after the handler")
        if task.payload == "twice":
            yield

    async def fail(task: fairq.Task) -> None:
        if task.payload not in ("late", "twice"):
            raise KeyError(task.payload)

    app.task("emails", name="async")(fail)

    @app.task("emails", name="plain")
    def plain(task: fairq.Task) -> None:
        if task.payload not in ("late", "twice"):
            raise KeyError(task.payload)

    ends = {"other": "instead", "late": "ValueError: after the handler", "refused": "ahead of the handler"}
    ends |= {"twice": "RuntimeError: generator didn't stop"}
    async with service.client() as client, working(app):
        for name in ("plain", "async"):
            task = await client.enqueue("emails", "taken", name=name, result_ttl=60)
            assert await task.result() is None
            for payload, error in ends.items():
                task = await client.enqueue("emails", payload, name=name, max_attempts=1)
                assert (await wait_state(task, "dead")).error == error
    assert closed == ["taken", "other", "late", "twice"] * 2


@on_both
async def test_plain_middleware_of_a_thread_that_was_left_ends_with_its_function(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, began, leave, closed = service.worker(), threading.Event(), threading.Event(), threading.Event()
    of_handlers = limits(monkeypatch)

    @app.middleware
    def close(task: fairq.Task) -> Iterator[None]:
        yield
        closed.set()

    @app.task("emails", timeout=3600)
    def block(task: fairq.Task) -> None:
        began.set()
        leave.wait(30)

    async with service.client() as client:
        with captured_logs() as lines:
            async with working(app):
                task = await client.enqueue("emails", 1, max_attempts=1)
                await wait_until(began.is_set)
                of_handlers[0].cancel()
                assert (await wait_state(task, "dead")).error == "timeout: the handler did not end within 3600 s"
                assert not closed.is_set()
        leave.set()
        assert await anyio.to_thread.run_sync(closed.wait, 30)
    (line,) = [line for line in lines if line["event"].startswith("plain functions still run")]
    assert [name.rpartition(".")[2] for name in line["functions"]] == ["block"]


@contextlib.contextmanager
def manager(task: object) -> Iterator[None]:
    """Be a context manager already."""
    yield


def test_what_is_no_middleware_is_refused() -> None:
    cases: list[Any] = [manager, anyio.sleep, None]
    for middleware in cases:
        with case(middleware), pytest.raises(BadRequest, match="one `yield`"):
            fairq.Worker(token="x").middleware(middleware)
