"""Results: a handler's return value comes back to the client that enqueued the task, if it asked for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

import fairq
from fairq.errors import (
    BadRequest,
    Draining,
    FairqError,
    NoResult,
    OutcomeUnknown,
    TaskFailed,
    TooMany,
    Unavailable,
)
from fairq.model.tasks import MAX_RESULT_BYTES
from fairq.server.app import App
from fairq.server.net.connection import Connection
from fairq.server.run import Served
from fairq.server.verbs.table import HANDLERS
from fairq.server.verbs.waits import wait_tasks
from fairq.wire import messages as wire
from tests.server.harness import WORKER, Raw, raw, running, tenant, url_of
from tests.store.cases import case
from tests.store.proxy import Proxy, open_proxy
from tests.store.waiting import wait_until

from .harness import worker_of, working


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


@asynccontextmanager
async def through_proxy(served: Served) -> AsyncIterator[tuple[Proxy, fairq.Client]]:
    """A tenant's client whose connection can be cut."""
    async with (
        open_proxy(served.port) as proxy,
        fairq.open_client(f"ws://127.0.0.1:{proxy.port}", token=tenant("ada")) as client,
    ):
        yield proxy, client


def waiting_at(served: Served) -> int:
    """Count the requests that wait for something in the queue."""
    return len(served.app.queues.long_polls["emails"]._watches) if "emails" in served.app.queues.long_polls else 0


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


@pytest.mark.parametrize("is_running", [False, True])
async def test_a_cancelled_task_has_no_result(served: Served, ada: fairq.Client, is_running: bool) -> None:
    app, began = worker_of(served), trio.Event()

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        began.set()
        await trio.sleep_forever()

    failures = []

    async def wait(task: fairq.EnqueuedTask) -> None:
        with pytest.raises(TaskFailed, match="cancelled") as caught:
            await task.result(timeout=30)
        failures.append(caught.value)

    async with working(app) as nursery:
        task = await ada.enqueue("emails", 1, delay=None if is_running else 3600, result_ttl=60)
        nursery.start_soon(wait, task)
        await wait_until(lambda: waiting_at(served) == 1)
        if is_running:
            await began.wait()
        assert await task.cancel() == ("running" if is_running else "ok")
        await wait_until(lambda: len(failures) == 1)


async def test_a_task_that_nobody_knows_has_no_result(ada: fairq.Client) -> None:
    with pytest.raises(NoResult):
        await fairq.EnqueuedTask("unheard", "emails", client=ada).result(timeout=30)


async def test_a_timeout_that_is_not_a_number_is_refused_and_the_client_goes_on(ada: fairq.Client) -> None:
    task = await ada.enqueue("emails", 1, result_ttl=60)
    with pytest.raises(BadRequest) as caught:
        await task.result(timeout=float("nan"))
    assert caught.value.field == "timeout"
    assert (await task.state()).state == "ready"


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (
            "x" * (MAX_RESULT_BYTES - 1),
            f"the result has {MAX_RESULT_BYTES + 1} bytes; the limit is {MAX_RESULT_BYTES}",
        ),
        (object(), "the result is not JSON: Type is not JSON serializable: object"),
        (nested(251), "the result is not JSON: Recursion limit reached"),
        ({1: "a key that is no text"}, "the result is not JSON: Dict key must be str"),
        ("\ud800", "the result is not JSON: str is not valid UTF-8: surrogates not allowed"),
        ({"sums": [1.0, float("nan")]}, "the result is not JSON: it has a number that is NaN or infinite"),
    ],
    ids=["too large", "no JSON", "too deep", "a number for a key", "a lone surrogate", "NaN"],
)
async def test_a_result_that_cannot_be_kept_makes_a_dead_letter(
    served: Served, ada: fairq.Client, operator: Raw, value: Any, error: str
) -> None:
    app, calls = worker_of(served), 0

    @app.task("emails")
    async def send(task: fairq.Task) -> Any:
        nonlocal calls
        calls += 1
        return value

    async with working(app):
        task = await ada.enqueue("emails", 1, result_ttl=60)
        with pytest.raises(TaskFailed, match="rejected: the result"):
            await task.result(timeout=30)
    (letter,) = (await operator.ask("dead", queue="emails"))["dead"]
    assert (letter["reason"], letter["error"], calls) == ("rejected", error, 1)


async def test_many_wait_at_once(served: Served, ada: fairq.Client) -> None:
    results: dict[int, Any] = {}

    async def wait(number: int, task: fairq.EnqueuedTask) -> None:
        results[number] = await task.result(timeout=30)

    tasks = await ada.enqueue_many("emails", range(120), result_ttl=60)
    async with trio.open_nursery() as nursery:
        for number, task in enumerate(tasks):
            nursery.start_soon(wait, number, task)
        await wait_until(lambda: waiting_at(served) == 120)
        async with working(echo(served)):
            await wait_until(lambda: len(results) == 120)
    assert results == {number: number for number in range(120)}
    await wait_until(lambda: waiting_at(served) == 0)


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
            proxy.hold()  # the task ends, and its end is told into a connection that breaks
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


async def test_waiting_goes_on_over_a_server_that_stops_and_comes_back(server_store: str) -> None:
    results = []

    async def wait(task: fairq.EnqueuedTask) -> None:
        results.append(await task.result(timeout=30))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            async with running(server_store) as first:
                port = first.port
                client = await nursery.start(_keep_open, url_of(first))
                task = await client.enqueue("emails", "late", result_ttl=60)
                nursery.start_soon(wait, task)
                await wait_until(lambda: waiting_at(first) == 1)
                await first.app.drain(1)
            await trio.testing.wait_all_tasks_blocked()
            async with running(server_store, port=port) as second, working(echo(second)):
                await wait_until(lambda: results == ["late"])
            nursery.cancel_scope.cancel()


async def _keep_open(url: str, task_status: trio.TaskStatus[fairq.Client] = trio.TASK_STATUS_IGNORED) -> None:
    async with fairq.open_client(url, token=tenant("ada")) as client:
        task_status.started(client)
        await trio.sleep_forever()


@pytest.mark.usefixtures("no_polls")
async def test_a_result_is_waited_for_at_another_server(server_store: str) -> None:
    with trio.fail_after(30):
        async with (
            running(server_store) as one,
            running(server_store) as two,
            fairq.open_client(url_of(one), token=tenant("ada")) as client,
        ):
            task = await client.enqueue("emails", "there", delay=0.1, result_ttl=60)
            async with working(echo(two)):
                assert await task.result(timeout=60) == "there"


async def test_the_wait_ends_also_while_the_service_is_away(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairq.wire.waits.ANSWER_S", 0.1)
    async with through_proxy(served) as (proxy, client):
        task = await client.enqueue("emails", 1, result_ttl=60)
        proxy.is_refusing = True
        proxy.cut()
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await task.result(timeout=0.2)


@pytest.mark.parametrize("error", [TooMany("too many requests wait"), Draining("the server is stopping")])
async def test_a_wait_goes_on_when_a_server_refuses_the_request(
    served: Served, ada: fairq.Client, monkeypatch: pytest.MonkeyPatch, error: FairqError
) -> None:
    refused: list[wire.WaitTasks] = []

    async def refusing(app: App, connection: Connection, request: wire.WaitTasks) -> Any:
        if not refused:
            refused.append(request)
            raise error
        return await wait_tasks(app, connection, request)

    monkeypatch.setitem(HANDLERS, wire.WaitTasks, refusing)
    app = worker_of(served)
    app.task("emails")(lambda task: 42)
    task = await ada.enqueue("emails", 1, result_ttl=60)
    async with working(app):
        assert await task.result() == 42
    assert refused
