"""Functions in threads under asyncio and trio: a thread that is abandoned keeps its place until it ends."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest

from fairq.client.threads import Threads

from .runtimes import on_both, wait_until


@on_both
async def test_an_abandoned_thread_keeps_its_place_until_it_ends() -> None:
    changes: list[int] = []
    threads = Threads(1, lambda: changes.append(threads.abandoned))
    began, leave, ran = threading.Event(), threading.Event(), list[str]()

    def block(_: object) -> None:
        began.set()
        leave.wait(20)

    async with anyio.create_task_group() as group:
        group.start_soon(threads.run, block, None)
        await wait_until(began.is_set)
        group.cancel_scope.cancel()
    assert (threads.abandoned, changes) == (1, [1])
    async with anyio.create_task_group() as group:
        group.start_soon(threads.run, ran.append, "next")
        await anyio.wait_all_tasks_blocked()
        assert not ran, "there is no place"
        leave.set()
    assert ran == ["next"]
    await wait_until(lambda: changes == [1, 0])


@on_both
async def test_a_call_that_is_left_while_it_waits_for_its_thread_is_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, calls, ran = Threads(1), list[Any](), list[str]()

    async def start_late(call: Any, **_: Any) -> None:
        calls.append(call)
        await anyio.sleep_forever()

    with monkeypatch.context() as patch:
        patch.setattr("anyio.to_thread.run_sync", start_late)
        async with anyio.create_task_group() as group:
            group.start_soon(threads.run, ran.append, "left")
            await wait_until(lambda: bool(calls))
            group.cancel_scope.cancel()
    await threads.run(ran.append, "next")  # the place is free
    await anyio.to_thread.run_sync(calls[0])
    assert (ran, threads.abandoned) == (["next"], 0)


@on_both
async def test_what_a_function_returns_or_raises_comes_out() -> None:
    threads = Threads(2)
    assert await threads.run(lambda value: value + 1, 1) == 2
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda value: 1 / value, 0)
    assert threads.abandoned == 0
