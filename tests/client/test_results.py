"""Results: a handler's return value comes back to the client that enqueued the task, if it asked for it."""

from __future__ import annotations

from typing import Any

import pytest
import trio

import fairq
from fairq.errors import NoResult
from fairq.model.tasks import MAX_RESULT_BYTES
from fairq.server.run import Served
from tests.server.harness import WORKER, raw
from tests.store.cases import case, raises_for
from tests.store.waiting import wait_until

from .harness import through_proxy, waiting_at, worker_of, working


def nested(depth: int) -> Any:
    """Lists in lists."""
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def echo(served: Served) -> fairq.Worker:
    """A worker whose handler returns the payload."""
    app = worker_of(served, 20)

    @app.task("emails")
    async def send(task: fairq.Task) -> Any:
        return task.payload

    return app


VALUES: dict[str, Any] = {
    "an object": {"to": ["ada", "é"], "n": [1.5, -3, None, True]},
    "null": None,
    "text": "done",
    "nothing to see": "",
    "deep": nested(240),
    "the largest": "x" * (MAX_RESULT_BYTES - 2),
}


async def test_what_a_handler_returns_is_the_result(served: Served, ada: fairq.Client) -> None:
    for name, value in VALUES.items():
        with case(name):
            async with working(echo(served)):
                task = await ada.enqueue("emails", value, result_ttl=60)
                assert await task.result(timeout=30) == value
                assert await task.result(timeout=0) == value  # it can be read again


async def test_a_result_that_the_limit_leaves_no_room_for_is_named(
    served: Served, ada: fairq.Client, boss: fairq.OperatorClient
) -> None:
    app = worker_of(served, 20)

    @app.task("emails")
    async def send(task: fairq.Task) -> Any:
        return "r" * 20_000

    tasks = await ada.enqueue_many("emails", range(50), result_ttl=60)
    await boss.set_limits("emails", "ada", stored_bytes=100_000)
    async with working(app):
        ends = [await ended(task) for task in tasks]
    assert ends.count("stored_bytes") == 50 - ends.count("kept")
    assert 1 <= ends.count("kept") <= 4
    (share,) = (await boss.request("tenants", {"queue": "emails", "tenant": "ada"}))["tenants"]
    assert share["stored_bytes"] <= 100_000


async def ended(task: fairq.EnqueuedTask) -> str:
    """Say whether a task's result is kept, or why not."""
    try:
        await task.result(timeout=30)
    except NoResult as error:
        return error.field or ""
    return "kept"


async def test_a_timeout_that_is_not_a_number_is_refused_and_the_client_goes_on(ada: fairq.Client) -> None:
    task = await ada.enqueue("emails", 1, result_ttl=60)
    with raises_for("timeout"):
        await task.result(timeout=float("nan"))
    assert (await task.state()).state == "ready"


@pytest.mark.parametrize("is_lost", [False, True])
async def test_waiting_goes_on_over_a_connection_that_breaks(served: Served, is_lost: bool) -> None:
    results = []

    async def wait(task: fairq.EnqueuedTask) -> None:
        results.append(await task.result(timeout=30))

    async with through_proxy(served) as (proxy, client), trio.open_nursery() as nursery:
        task = await client.enqueue("emails", "late", result_ttl=60)
        nursery.start_soon(wait, task)
        await wait_until(lambda: waiting_at(served) == 1)
        if is_lost:
            proxy.hold()  # the task ends, and the news of it goes into a connection that breaks
        else:
            proxy.cut()
        async with raw(served, WORKER) as worker:
            await worker.attach("emails")
            (pushed,) = await worker.pushed()
            assert await worker.settle("emails", "ack", pushed, result="late") == ["ok"]
        if is_lost:
            await wait_until(lambda: waiting_at(served) == 0)
            proxy.cut()
            proxy.release()
    assert results == ["late"]
