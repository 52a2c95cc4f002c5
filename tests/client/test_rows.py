"""Rows of the lineage that are tested inside the store, tried through server and SDK, on each kind of store."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

import fairq
from fairq.server.run import Served
from tests.server.harness import WORKER, raw, tenant, url_of
from tests.store.waiting import wait_until

from .harness import working

pytestmark = pytest.mark.usefixtures("plain_logs")


@pytest.fixture
def server_store(store_url: str) -> str:
    return store_url


def worker(served: Served, concurrency: int, *, name: str = "mill") -> fairq.Worker:
    """A worker without handlers."""
    return fairq.Worker(url_of(served), WORKER, concurrency, name=name)


async def test_a_task_that_is_done_is_done_once_and_its_id_is_remembered(served: Served, ada: fairq.Client) -> None:
    """S2.3."""
    app, runs = worker(served, 5), Counter[str]()

    @app.task("emails")
    async def count(task: fairq.Task) -> None:
        runs[task.id] += 1

    async with working(app):
        for _ in range(3):
            tasks = await ada.enqueue_many("emails", range(20), ids=[f"t{n}" for n in range(20)])
        assert all(task.is_duplicate for task in tasks)
        await wait_until(lambda: app.counts["done"] == 20)
        assert (await ada.enqueue("emails", 1, id="t1")).is_duplicate
    assert set(runs.values()) == {1}


@pytest.mark.usefixtures("no_polls")
async def test_tasks_are_pushed_without_polls(served: Served, ada: fairq.Client) -> None:
    """S2.4: no server or client looks again by itself, and each task starts."""
    app, started = worker(served, 5), list[int]()

    @app.task("emails")
    async def note(task: fairq.Task) -> None:
        started.append(task.payload)

    async with working(app):
        for n in range(20):
            await ada.enqueue("emails", n)
            await wait_until(lambda n=n: len(started) == n + 1)  # type: ignore[misc]
    assert started == list(range(20))


async def test_priorities_order_a_tenants_tasks_and_buy_no_share(served: Served, boss: fairq.OperatorClient) -> None:
    """S3.1, S4.1, S5.2: most urgent first, first in first out, and each tenant in turn whatever it asks for."""
    async with (
        fairq.open_client(url_of(served), token=tenant("ada")) as ada,
        fairq.open_client(url_of(served), token=tenant("bob")) as bob,
        raw(served, WORKER) as mill,
    ):
        await boss.configure("emails", share="count")
        await ada.enqueue_many("emails", range(50), ids=[f"late-{n}" for n in range(50)], priority=99)
        await ada.enqueue_many("emails", range(50), ids=[f"soon-{n}" for n in range(50)], priority=0)
        await bob.enqueue_many("emails", range(100), ids=[f"b-{n}" for n in range(100)])
        await mill.attach("emails", credit=20)
        order: list[str] = []
        while len(order) < 100:
            pushed = await mill.pushed()
            order += [task["id"] for task in pushed]
            for task in pushed:
                await mill.settle("emails", "ack", task)
    shares = Counter(id.partition("/")[0] for id in order)
    assert abs(shares["ada"] - shares["bob"]) <= 8
    adas = [id for id in order if id.startswith("ada/")]
    assert adas == [f"ada/soon-{n}" for n in range(len(adas))][:50]
    assert [id for id in order if id.startswith("bob/")] == [f"bob/b-{n}" for n in range(shares["bob"])]


async def test_a_dead_workers_tasks_come_back_within_the_limit_of_their_batch(
    served: Served, boss: fairq.OperatorClient, ada: fairq.Client
) -> None:
    """S3.6."""
    await boss.configure("emails", lease_ms=200)
    batch = await ada.open_batch("emails", max_running=2)
    await ada.enqueue_many("emails", range(6), batch=batch.id)
    await batch.close()
    async with raw(served, WORKER) as dying:
        await dying.attach("emails", credit=10)
        assert len(await dying.pushed()) == 2
    app, running_now, most = worker(served, 10), 0, 0

    @app.task("emails")
    async def count(_: fairq.Task) -> None:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        await trio.lowlevel.checkpoint()
        running_now -= 1

    async with working(app):
        state = await batch.wait()
    assert (state.done, most <= 2) == (6, True)
