"""Handlers of another event loop: the worker ends, and gives its tasks back."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest
import trio

import fairq
from fairq.client.loops import choose_loop
from fairq.errors import SettingsError
from tests.store.cases import raises_for

from .runtimes import Service, on_both, wait_state, working


async def _open_trio_nursery() -> None:
    async with trio.open_nursery():
        pass


async def _open_asyncio_group() -> None:
    async with asyncio.TaskGroup():
        pass


OF_TRIO: list[Callable[[], Awaitable[Any]]] = [
    partial(trio.sleep, 0.01), lambda: trio.Event().wait(), trio.lowlevel.checkpoint, _open_trio_nursery,
    partial(trio.to_thread.run_sync, print), partial(trio.open_tcp_stream, "127.0.0.1", 9),
]  # fmt: skip
OF_ASYNCIO: list[Callable[[], Awaitable[Any]]] = [
    partial(asyncio.sleep, 0.01), partial(asyncio.sleep, 0), lambda: asyncio.Event().wait(), _open_asyncio_group,
    partial(asyncio.to_thread, print), partial(asyncio.open_connection, "127.0.0.1", 9),
]  # fmt: skip
OTHERS = {"asyncio": OF_TRIO, "trio": OF_ASYNCIO}


@on_both
async def test_what_waits_for_another_loop_ends_the_worker_and_costs_no_attempt(service: Service, runtime: str) -> None:
    async with service.client() as client:
        task = await client.enqueue("emails", None, max_attempts=1)
        for call in OTHERS[runtime]:
            app = service.worker()

            @app.task("emails")
            async def send(task: fairq.Task, call: Callable[[], Awaitable[Any]] = call) -> None:
                await call()

            with raises_for("loop", SettingsError, match="start it with --loop"):
                await app.run()
            assert app.counts == {"released": 1}
        state = await task.state()
        assert (state.state, state.attempt) == ("ready", len(OTHERS[runtime]))
        assert "start it with --loop" in state.error


@on_both
async def test_other_tasks_of_the_worker_end_first(service: Service, runtime: str) -> None:
    app, begun, ended = service.worker(2), anyio.Event(), anyio.Event()

    @app.task("long")
    async def run(task: fairq.Task) -> None:
        begun.set()
        await ended.wait()

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        ended.set()
        await OTHERS[runtime][0]()

    async with service.client() as client:
        long = await client.enqueue("long", None)

        async def enqueue_then() -> None:
            await begun.wait()
            await client.enqueue("emails", None)

        async with anyio.create_task_group() as group:
            group.start_soon(enqueue_then)
            with pytest.raises(SettingsError):
                await app.run()
        assert (await long.state()).state == "done"


@on_both
async def test_an_error_that_only_looks_like_it_is_the_tasks_own(service: Service, runtime: str) -> None:
    """In a thread there is no loop, and a handler may fail of the same kinds of errors."""

    def in_thread() -> None:
        asyncio.get_running_loop()

    async def alike() -> None:
        raise RuntimeError("must be called from async context")

    app = service.worker()

    @app.task("emails", name="thread")
    def plain(task: fairq.Task) -> None:
        in_thread()

    @app.task("emails", name="anyio")
    async def through_anyio(task: fairq.Task) -> None:
        await anyio.to_thread.run_sync(in_thread)

    @app.task("emails", name="own")
    async def through_own(task: fairq.Task) -> None:
        await (trio.to_thread.run_sync(in_thread) if runtime == "trio" else asyncio.to_thread(in_thread))

    @app.task("emails", name="alike")
    async def own(task: fairq.Task) -> None:
        await alike()

    async with service.client() as client, working(app):
        for name in ("thread", "anyio", "own", "alike"):
            task = await client.enqueue("emails", None, name=name, max_attempts=1)
            assert (await wait_state(task, "dead")).reason == "exhausted"


def of_module(names: dict[str, Any], source: str = "async def send(task): ...") -> Any:
    """Define a handler in a module that has these names."""
    module = types.ModuleType("mail")
    vars(module).update(names)
    exec(source, vars(module))
    return module.send


@pytest.mark.parametrize(
    ("names", "loop"),
    [
        ({}, "asyncio"), ({"asyncio": asyncio}, "asyncio"), ({"trio": trio}, "trio"), ({"sleep": trio.sleep}, "trio"),
        ({"sleep": asyncio.sleep}, "asyncio"), ({"Nursery": trio.Nursery}, "trio"), ({"anyio": anyio}, "asyncio"),
    ],
)  # fmt: skip
def test_a_loop_is_chosen_by_what_a_module_imports(names: dict[str, Any], loop: str) -> None:
    app = fairq.Worker()
    app.task("emails")(of_module(names))
    app.task("partial")(partial(of_module(names)))
    app.task("plain")(of_module({"trio": trio, "asyncio": asyncio}, "def send(task): ..."))
    handlers = [handler for kinds in app.handlers.values() for handler in kinds.by_name.values()]
    assert choose_loop(handlers) == loop


def test_modules_that_import_both_leave_the_choice_to_the_operator() -> None:
    app = fairq.Worker()
    app.task("emails")(of_module({"trio": trio}))
    app.task("images")(of_module({"asyncio": asyncio}))
    handlers = [handler for kinds in app.handlers.values() for handler in kinds.by_name.values()]
    with raises_for("loop", SettingsError, match="say --loop asyncio or --loop trio"):
        choose_loop(handlers)
