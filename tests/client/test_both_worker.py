"""The worker under asyncio and trio: what handlers do decides, and nothing it holds is lost when it ends."""

from __future__ import annotations

import asyncio
import functools
import re
import signal
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio

import fairq
from fairq.errors import BadRequest, Forbidden
from tests.server.harness import WORKER, tenant
from tests.store.cases import case, raises_for

from .runtimes import Service, on_both, running_service, wait_state, wait_until, working


@on_both
async def test_async_handlers_run_in_the_loop_and_plain_ones_in_threads(service: Service, runtime: str) -> None:
    app, threads = service.worker(3), set[threading.Thread]()
    together = threading.Barrier(2)

    @app.task("loop")
    async def handle(task: fairq.Task) -> str:
        await anyio.lowlevel.checkpoint()
        if runtime == "asyncio":
            assert asyncio.current_task() is not None
        else:
            assert trio.lowlevel.in_trio_task()
        await task.progress(0.5)
        return task.tenant

    @app.task("threads")
    def work(task: fairq.Task) -> int:
        threads.add(threading.current_thread())
        together.wait(20)
        anyio.from_thread.run(task.progress, 0.5, "half")
        return int(task.payload) + 1

    async with service.client() as client, working(app):
        named = await client.enqueue("loop", None, result_ttl=60)
        tasks = await client.enqueue_many("threads", [1, 2], result_ttl=60)
        assert [await task.result() for task in (named, *tasks)] == ["ada", 2, 3]
    assert len(threads) == 2
    assert threading.current_thread() not in threads


def plain(function: Any) -> Any:
    """Decorate as for plain functions: what `async def` returns is passed on, and awaited by nothing."""

    @functools.wraps(function)
    def call(task: fairq.Task) -> Any:
        return function(task)

    return call


@on_both
async def test_what_a_handler_returns_and_nothing_runs_is_a_failed_attempt(service: Service) -> None:
    app, ran = service.worker(), list[str]()

    async def send(task: fairq.Task) -> None:
        ran.append(task.queue)

    async def forgets_to_await(task: fairq.Task) -> Any:
        return send(task)

    class Sender:
        async def __call__(self, task: fairq.Task) -> None:
            await send(task)

    def steps(task: fairq.Task) -> Any:
        ran.append(task.queue)
        yield

    app.task("decorated")(plain(send))
    app.task("steps")(plain(steps))
    app.task("forgetful")(forgets_to_await)
    app.task("object")(Sender())
    async with service.client() as client, working(app):
        await wait_state(await client.enqueue("object", 1), "done")
        for queue in ("decorated", "forgetful", "steps"):
            dead = await wait_state(await client.enqueue(queue, 1, max_attempts=1), "dead")
            assert re.search(r"returned a (coroutine|generator), which nothing runs", dead.error)
    assert ran == ["object"]


@on_both
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_an_enqueue_that_is_not_awaited_fails_the_attempt(service: Service) -> None:
    app = service.worker()

    @app.task("emails")
    async def forgets_to_await(task: fairq.Task) -> None:
        task.enqueue("images", 1)  # type: ignore[unused-coroutine]

    @app.task("emails", name="awaits")
    async def awaits(task: fairq.Task) -> None:
        task.progress(0.5)  # type: ignore[unused-coroutine]  # nothing is lost with it
        with pytest.raises(BadRequest):
            await task.enqueue("no such name", 1)
        await task.enqueue("images", 1)

    async with service.client() as client, working(app):
        dead = await wait_state(await client.enqueue("emails", 1, max_attempts=1), "dead")
        assert dead.error.endswith("forgets_to_await called task.enqueue without `await`")
        await wait_state(await client.enqueue("emails", 1, name="awaits"), "done")


async def yields(task: fairq.Task) -> Any:
    yield 1


def test_what_does_not_run_when_it_is_called_is_no_handler() -> None:
    cases: list[Any] = [yields, lambda task: (yield), "send", None]
    for function in cases:
        with case(function):
            app = fairq.Worker()
            with raises_for("function", match="without `yield`, not "):
                app.task("emails")(function)
            assert app.handlers == {}


def test_a_handler_that_a_task_alone_cannot_call_is_refused() -> None:
    @functools.wraps(lambda task, database: None)
    def injected(task: fairq.Task) -> None: ...

    cases: list[tuple[Any, str]] = [
        (lambda: None, "too many positional arguments"),
        (lambda task, to: None, "missing a required argument: 'to'"),
        (lambda task, *, to: None, "missing a required (keyword-only )?argument: 'to'"),
    ]
    app = fairq.Worker()
    for function, why in cases:
        with case(function), pytest.raises(BadRequest, match=f"must accept exactly one argument, the task: {why}"):
            app.task("emails")(function)
    app.task("emails")(injected)


@on_both
async def test_stop_finishes_what_runs_and_takes_no_more(service: Service) -> None:
    app, finish, began = service.worker(2), anyio.Event(), list[str]()

    @app.task("emails")
    async def handle(task: fairq.Task) -> None:
        began.append(task.id)
        await finish.wait()

    async with service.client() as client:
        tasks = await client.enqueue_many("emails", range(5))
        async with anyio.create_task_group() as group:
            await group.start(app.run)
            await wait_until(lambda: len(began) == 2)
            app.stop()
            finish.set()  # and `run` returns by itself
        states = [(await task.state()).state for task in tasks]
        assert sorted(states) == ["done", "done", "ready", "ready", "ready"]


async def forever(task: fairq.Task) -> None:
    await anyio.sleep_forever()


@pytest.mark.parametrize("how", ["scope", "task", "timeout", "ctrl-C"])
def test_a_cancelled_worker_gives_its_tasks_back(service: Service, how: str) -> None:
    """By asyncio's own means as well, for which anyio's cancel scopes know nothing."""
    app = service.worker(2)
    app.task("emails", timeout=60)(forever)

    async def begun() -> None:
        await wait_until(lambda: hasattr(app, "_run") and len(app._run.runners.running) == 2)

    async def run_for_a_while() -> None:
        async with asyncio.timeout(None) as timeout:
            hurry = asyncio.create_task(begun())
            hurry.add_done_callback(lambda _: timeout.reschedule(0))
            await app.run()

    async def cancel() -> None:
        if how == "scope":
            async with working(app):
                await begun()
        elif how == "timeout":
            with pytest.raises(TimeoutError):
                await run_for_a_while()
        else:
            run = asyncio.create_task(app.run())
            await begun()
            if how == "ctrl-C":
                signal.raise_signal(signal.SIGINT)
                await run
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run

    async def main() -> None:
        async with service.client() as client:
            await client.enqueue_many("emails", range(3), ids=["a", "b", "c"])
            await cancel()

    async def look() -> None:
        async with service.client() as client:
            rows = await client.tasks("emails", ["a", "b", "c"])
            assert [row.state for row in rows] == ["ready"] * 3
        assert app.counts == {"released": 2}

    if how == "ctrl-C":
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(main())
    else:
        asyncio.run(main())
    asyncio.run(look())


def test_a_cancellation_of_another_task_is_a_failed_attempt(service: Service) -> None:
    """It is no cancellation of the worker: that would stop it."""
    app = service.worker(1)

    @app.task("emails")
    async def handle(task: fairq.Task) -> None:
        if task.payload == "raise":
            raise asyncio.CancelledError
        other = asyncio.create_task(asyncio.sleep(60))
        asyncio.get_running_loop().call_soon(other.cancel)
        await other

    async def main() -> None:
        async with service.client() as client, working(app):
            for payload in ("raise", "wait"):
                task = await client.enqueue("emails", payload, max_attempts=1)
                assert "CancelledError" in (await wait_state(task, "dead")).error

    asyncio.run(main())


@on_both
async def test_timeouts_of_a_handlers_own_are_its_own(service: Service, runtime: str) -> None:
    app = service.worker(1)

    @app.task("emails")
    async def handle(task: fairq.Task) -> str:
        with anyio.move_on_after(0.01):
            await anyio.sleep_forever()
        if runtime == "asyncio":
            try:
                async with asyncio.timeout(0.01):
                    await anyio.sleep_forever()
            except TimeoutError:
                pass
        with anyio.fail_after(0.01):
            await anyio.sleep_forever()
        return "never"

    async with service.client() as client, working(app):
        for _ in range(2):
            task = await client.enqueue("emails", 1, max_attempts=1)
            assert (await wait_state(task, "dead")).error.startswith("TimeoutError")


@pytest.fixture
def patient(server_store: str) -> Iterator[Service]:
    """A server that keeps the leases of broken connections for longer than a test lasts."""
    with running_service(server_store, reconnect_grace=60) as service:
        yield service


@on_both
async def test_work_goes_on_when_the_connection_is_lost(patient: Service) -> None:
    app, finish, began = fairq.Worker(patient.proxied, WORKER, 2), anyio.Event(), list[str]()

    @app.task("emails")
    async def handle(task: fairq.Task) -> None:
        began.append(task.id)
        await finish.wait()

    async with patient.client() as client, working(app):
        tasks = await client.enqueue_many("emails", range(4))
        await wait_until(lambda: len(began) == 2)
        patient.soon(patient.proxy.cut)
        await wait_until(lambda: patient.proxy.connections == 2)
        finish.set()
        for task in tasks:
            await wait_state(task, "done")
    assert app.counts == {"done": 4}, "none was run twice"


@on_both
async def test_a_wrong_token_ends_the_worker(service: Service) -> None:
    app = fairq.Worker(service.url, tenant("ada"))
    app.task("emails")(forever)
    with pytest.raises(Forbidden):
        await app.run()


def test_one_worker_may_run_again_under_another_runtime(service: Service) -> None:
    app, done = service.worker(), list[int]()

    @app.task("emails")
    async def handle(task: fairq.Task) -> None:
        done.append(task.payload)

    async def work() -> None:
        async with service.client() as client:
            await client.enqueue("emails", len(done))
        await app.run(burst=True)

    trio.run(work)
    asyncio.run(work())
    trio.run(work)
    assert done == [0, 1, 2]
