"""Tasks that a worker holds beside those that run: they begin at once, and go back when they cannot begin."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio

import fairq
from fairq.errors import BadRequest
from fairq.server.run import Served
from fairq.wire.terms import MAX_CREDIT
from tests.store.cases import case
from tests.store.waiting import wait_until

from .harness import wait_state, worker_of, working


def prefetching(served: Served, concurrency: int, prefetch: int) -> fairq.Worker:
    """A worker without handlers yet."""
    app = worker_of(served, concurrency)
    app.prefetch = prefetch
    return app


def recording(app: fairq.Worker, finish: trio.Event) -> list[Any]:
    """Give a worker a handler that waits; returns the payloads of the tasks that it has begun."""
    began = list[Any]()

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        began.append(task.payload)
        await finish.wait()

    return began


async def count_leased(served: Served) -> int:
    """How many tasks workers hold."""
    return (await served.app.store.queue("emails")).leased


async def test_as_many_run_as_may_and_the_next_are_there_already(served: Served, ada: fairq.Client) -> None:
    app, began, may_end = prefetching(served, concurrency=2, prefetch=3), [], trio.Semaphore(0)

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        began.append(task.payload)
        await may_end.acquire()

    async def is_full() -> bool:
        return await count_leased(served) == 5 and len(app._run.runners.waiting) == 3

    await ada.enqueue_many("emails", range(20))
    async with working(app):
        await wait_until(is_full)
        assert began == [0, 1]
        for _ in range(20):
            may_end.release()
        await wait_until(lambda: app.counts["done"] == 20)
    assert began == list(range(20))


async def test_those_that_wait_go_back_when_the_worker_stops(served: Served, ada: fairq.Client) -> None:
    app, finish = prefetching(served, concurrency=1, prefetch=2), trio.Event()

    recording(app, finish)
    running, *others = await ada.enqueue_many("emails", range(3), max_attempts=1)
    async with working(app):
        await wait_until(lambda: len(app._run.runners.waiting) == 2)
        app.stop()
        for task in others:
            await wait_state(task, "ready")  # their only attempt is still to come
        finish.set()
        await wait_state(running, "done")


async def test_none_wait_behind_a_thread_that_was_abandoned(served: Served, ada: fairq.Client) -> None:
    app, began, finish = prefetching(served, concurrency=1, prefetch=2), threading.Event(), threading.Event()

    @app.task("emails")
    def send(task: fairq.Task) -> None:
        began.set()
        finish.wait(30)

    running, *others = await ada.enqueue_many("emails", range(3))
    async with working(app):
        await wait_until(lambda: began.is_set() and len(app._run.runners.waiting) == 2)
        await running.cancel()
        for task in others:
            await wait_state(task, "ready")
        finish.set()
        for task in others:
            await wait_state(task, "done")


async def test_more_than_a_worker_may_hold_is_refused() -> None:
    for prefetch in [-1, MAX_CREDIT - 4]:
        with case(prefetch):
            app = fairq.Worker(token="x", concurrency=5, prefetch=prefetch)
            app.task("emails")(print)
            with pytest.raises(BadRequest, match="prefetch"):
                await app.run()
