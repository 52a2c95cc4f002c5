"""Tasks that a prefetching worker must not begin, or not hold: they go back, and cost no attempt."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio

import fairq
from fairq.server.run import Served
from fairq.wire.frames import Dismiss, Push
from tests.server.clock import StoreClock
from tests.server.harness import running, tenant, url_of
from tests.server.test_reconnect import LONG, end_grace
from tests.store.proxy import Proxy, open_proxy
from tests.store.waiting import wait_until

from .harness import wait_state, working
from .runtimes import limits
from .test_worker_prefetch import count_leased, prefetching, recording


@asynccontextmanager
async def behind_a_proxy(store: str) -> AsyncIterator[tuple[Served, Proxy, fairq.Client]]:
    """A server that keeps the leases of broken connections until a test ends that, a proxy to it, and a client."""
    async with (
        running(store, reconnect_grace=LONG) as served,
        open_proxy(served.port) as proxy,
        fairq.open_client(url_of(served), token=tenant("ada")) as ada,
    ):
        yield served, proxy, ada


async def holding(app: fairq.Worker, waiting: int) -> None:
    """Wait until so many tasks wait in a worker."""
    await wait_until(lambda: len(app._run.runners.waiting) == waiting)


@pytest.mark.parametrize("is_back_in_time", [True, False])
async def test_none_begins_while_the_worker_is_cut_off(server_store: str, is_back_in_time: bool) -> None:
    """Each has one attempt. When the worker comes back too late, that of the one that ran is over, and that of the next
    one, which may have begun as far as the server knows; the others lose none.
    """
    with trio.fail_after(60):
        async with behind_a_proxy(server_store) as (served, proxy, ada):
            app, finish = prefetching(served, concurrency=1, prefetch=3), trio.Event()
            app.url = f"ws://127.0.0.1:{proxy.port}"
            began = recording(app, finish)
            first, second, *others = await ada.enqueue_many("emails", range(4), max_attempts=1)
            async with working(app):
                await holding(app, 3)
                proxy.is_refusing = True
                proxy.cut()
                await wait_until(lambda: not app._run.driver.session.is_connected and bool(served.app.leases.kept))
                assert not app._run.runners.waiting
                if not is_back_in_time:
                    await end_grace(served)
                    assert [(await task.state()).state for task in (first, second, *others)] == ["dead"] * 2 + [
                        "ready"
                    ] * 2
                finish.set()
                await wait_until(lambda: not app._run.runners.running)
                assert began == [0]
                proxy.is_refusing = False
                for task in others:
                    await wait_state(task, "done")
                for task in (first, second):
                    await wait_state(task, "done" if is_back_in_time else "dead")
            assert sorted(began) == ([0, 1, 2, 3] if is_back_in_time else [0, 2, 3])


@pytest.mark.parametrize("ahead_s", [7200, -7200])
async def test_none_begins_after_its_expiry_however_wrong_the_workers_clock_is(
    served: Served, ada: fairq.Client, server_store: str, monkeypatch: pytest.MonkeyPatch, ahead_s: int
) -> None:
    clock = StoreClock(monkeypatch, "emails")  # else a slow machine pushes no task that expires so soon
    clock.govern(server_store)
    monkeypatch.setattr("fairq.client.worker_run.time", SimpleNamespace(time=lambda: time.time() + ahead_s))
    app, finish = prefetching(served, concurrency=1, prefetch=1), trio.Event()
    began = recording(app, finish)
    await ada.enqueue("emails", "first")
    async with working(app):
        await wait_until(lambda: began == ["first"])
        brief = await ada.enqueue("emails", "brief", expires_in=1)
        await holding(app, 1)
        await trio.sleep_until(app._run.runners.waiting[0][2])  # its expiry
        clock.move(clock.now_ms + 1000)
        finish.set()
        await wait_until(lambda: app.counts["done"] == 1 and not app._run.driver.session.holding)
        await wait_state(await ada.enqueue("emails", "third"), "done")
        await wait_state(brief, "dead")
    assert began == ["first", "third"]


async def test_no_more_wait_than_are_held_when_tasks_come_and_are_cancelled(served: Served, ada: fairq.Client) -> None:
    app, finish = prefetching(served, concurrency=1, prefetch=2), trio.Event()

    recording(app, finish)
    await ada.enqueue("emails", "running")
    async with working(app):
        await wait_until(lambda: bool(app._run.runners.running))
        for _ in range(3):
            tasks = await ada.enqueue_many("emails", range(2))
            await holding(app, 2)
            for task in tasks:
                await task.cancel()
            await wait_until(lambda: app._run.driver.session.holding == 1)
            assert not app._run.runners.waiting
        finish.set()


async def test_a_push_that_is_under_way_when_the_worker_stops_goes_back(served: Served, ada: fairq.Client) -> None:
    app, began = prefetching(served, concurrency=1, prefetch=2), []

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        began.append(task.payload)

    async with trio.open_nursery() as nursery:
        await nursery.start(app.run)
        driver = app._run.driver
        await wait_until(lambda: driver.session.is_attached)
        take = driver.handle

        def stop_and_take(push: Push | Dismiss) -> None:
            app.stop()
            take(push)

        driver.handle = stop_and_take
        tasks = await ada.enqueue_many("emails", range(3), max_attempts=1)
    for task in tasks:
        await wait_state(task, "ready")
    assert began == []
    async with working(app):
        await wait_until(lambda: len(began) == 3)
    assert began == [0, 1, 2]


async def test_what_a_worker_gives_back_keeps_its_order(served: Served, ada: fairq.Client) -> None:
    app, finish = prefetching(served, concurrency=1, prefetch=3), trio.Event()
    began = recording(app, finish)
    async with trio.open_nursery() as nursery:
        await nursery.start(app.run)
        *_, last = await ada.enqueue_many("emails", range(5))
        await holding(app, 3)
        app.stop()
        finish.set()
    async with working(app):
        await wait_state(last, "done")
    assert began == [0, 1, 2, 3, 4]


async def test_a_push_that_is_under_way_to_an_abandoned_thread_goes_back(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, finish, pushes = threading.Event(), threading.Event(), []
    of_handlers = limits(monkeypatch)
    with trio.fail_after(60):
        async with behind_a_proxy(server_store) as (served, proxy, ada):
            app = prefetching(served, concurrency=1, prefetch=1)
            app.url = f"ws://127.0.0.1:{proxy.port}"

            @app.task("emails", timeout=3600)
            def send(task: fairq.Task) -> None:
                began.set()
                finish.wait(30)

            await ada.enqueue("emails", "slow", max_attempts=1)
            async with working(app):
                working_, take = app._run, app._run.driver.handle

                def count(push: Push | Dismiss) -> None:
                    pushes.append(push)
                    take(push)

                await wait_until(began.is_set)
                working_.driver.handle = count
                proxy.hold()
                late = await ada.enqueue("emails", "late", max_attempts=1)

                async def is_pushed() -> bool:
                    return (await late.state()).state == "leased"

                await wait_until(is_pushed)
                of_handlers[0].cancel()
                await wait_until(lambda: working_.threads.abandoned == 1)
                proxy.release()
                await wait_state(late, "ready")
                assert await count_leased(served) == 0
                assert len(pushes) == 1, "it comes back only when there is a place"
                finish.set()
                await wait_state(late, "done")


async def test_a_task_begins_when_its_server_knows_how_the_one_in_its_place_ended(
    served: Served, ada: fairq.Client
) -> None:
    """Else the server takes one that ended its worker for one that had not begun, and its attempts never end."""
    app, begun = prefetching(served, concurrency=2, prefetch=3), []  # so the server counts three as begun

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        begun.append(len(app._run.runners.running) + app._run.driver.session.unsent)

    tasks = await ada.enqueue_many("emails", range(20))
    async with working(app):
        await wait_until(lambda: app.counts["done"] == len(tasks))
    assert max(begun) <= 3


async def test_a_worker_that_is_stopped_before_it_begins_does_not_begin(ada: fairq.Client) -> None:
    app, began = fairq.Worker("ws://127.0.0.1:1", "token"), []
    app.task("emails")(print)
    app.on_startup(lambda: began.append("startup"))
    app.stop()
    async with trio.open_nursery() as nursery:
        await nursery.start(app.run)
    assert began == []
