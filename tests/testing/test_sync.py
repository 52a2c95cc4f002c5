"""The service in memory for plain tests, without an event loop; and tasks that are cancelled while they run."""

from __future__ import annotations

import threading

import anyio
import pytest

import fairq
import fairq.sync
import fairq.testing.sync
from fairq.errors import BadRequest, Closed, NotYet
from tests.client.runtimes import on_both


def order(client: fairq.sync.Client, number: int) -> fairq.sync.EnqueuedTask:
    """Code under test, which takes a client of fairq.sync."""
    return client.enqueue("orders", {"number": number}, delay=3600, result_ttl=60)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_plain_test_enqueues_drains_and_looks(loop: str) -> None:
    app, threads, began = fairq.Worker(), list[str](), list[str]()
    app.on_startup(lambda: began.append("startup"))
    app.on_shutdown(lambda: began.append("shutdown"))

    @app.task("orders")
    async def take(task: fairq.Task) -> int:
        await anyio.lowlevel.checkpoint()
        if task.attempt == 1:
            raise ValueError("not yet")
        return int(task.payload["number"])

    @app.task("mails")
    def send(task: fairq.Task) -> str:
        threads.append(threading.current_thread().name)
        child = order(memory, 7)  # a plain function may use the client
        return child.id

    with fairq.testing.sync.run(app, loop=loop) as memory:  # type: ignore[arg-type]
        assert isinstance(memory, fairq.sync.Client)
        task = order(memory, 3)
        assert isinstance(task, fairq.testing.sync.TrackedTask)
        mail = memory.enqueue("mails", None)
        tasks = memory.enqueue_many("orders", [{"number": n} for n in range(3)], max_attempts=1)
        start = memory.now
        memory.advance(3599)
        assert (memory.now - start).total_seconds() >= 3599
        assert (mail.outcome, [each.outcome for each in tasks]) == ("done", ["dead"] * 3)
        with pytest.raises(NotYet):
            task.result(timeout=0.01)
        memory.advance(2)
        memory.advance(10)
        assert (task.outcome, task.attempts, task.result(), str(task.exceptions[0])) == ("done", 2, 3, "not yet")
        batch = memory.as_tenant("bob").open_batch("orders")
        assert batch.add({"number": 1}).outcome == "ready"
        assert memory.as_producer().enqueue("orders", {"number": 1}, tenant="zoo").id.startswith("zoo/")
        with pytest.raises(BadRequest, match="seconds"):
            memory.advance(-1)
    assert began == ["startup", "shutdown"]
    assert threads != [threading.current_thread().name]


def test_threads_share_the_service_and_one_waits_while_another_drains() -> None:
    app, results = fairq.Worker(), list[int]()

    @app.task("orders")
    async def take(task: fairq.Task) -> int:
        return int(task.payload["number"])

    with fairq.testing.sync.run(app) as memory:
        tasks = [order(memory, number) for number in range(20)]
        waiting = [threading.Thread(target=lambda task=task: results.append(task.result(timeout=30))) for task in tasks]
        for thread in waiting:
            thread.start()
        memory.drain()
        for thread in waiting:
            thread.join(30)
    assert sorted(results) == list(range(20))


def test_a_closed_client_takes_no_calls_and_the_others_do() -> None:
    app = fairq.Worker()
    app.task("orders")(print)
    with fairq.testing.sync.run(app) as memory:
        with memory.as_tenant("ada") as client:
            order(client, 1)
        with pytest.raises(Closed):
            order(client, 2)
        order(memory, 3)


@on_both
async def test_an_event_loop_is_asked_to_use_the_async_form() -> None:
    app = fairq.Worker()
    app.task("orders")(print)
    with pytest.raises(RuntimeError, match=r"fairq\.open_client"), fairq.testing.sync.run(app):
        pass


def test_a_handler_in_the_loop_may_not_block_it() -> None:
    app = fairq.Worker()

    @app.task("orders")
    async def take(task: fairq.Task) -> None:
        order(memory, 1)

    with fairq.testing.sync.run(app) as memory:
        task = memory.enqueue("orders", 1, max_attempts=1)
        memory.drain()
    assert task.error.startswith("RuntimeError: this is an event loop")


def test_what_the_worker_lacks_is_reported_at_the_start() -> None:
    with pytest.raises(BadRequest, match="no handlers"), fairq.testing.sync.run(fairq.Worker()):
        pass


@on_both
async def test_a_running_task_is_stopped_when_it_is_cancelled() -> None:
    app, stopped = fairq.Worker(), list[str]()

    @app.task("long")
    async def wait(task: fairq.Task) -> None:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            stopped.append(task.id)
            raise

    @app.task("cancelling")
    async def cancel(task: fairq.Task) -> str:
        while (await long.state()).state != "leased":
            await anyio.lowlevel.checkpoint()
        return await long.cancel() if task.payload == "task" else await batch.cancel()

    async with fairq.testing.run(app) as memory:
        for how, found in (("task", "running"), ("batch", "open")):
            batch = await memory.open_batch("long")
            long = await batch.add(how, id=how, max_attempts=1)
            by = await memory.enqueue("cancelling", how, result_ttl=60)
            await memory.drain()
            assert await by.result() == found
            assert (await long.state()).state == "cancelled"
            assert (await batch.state()).cancelled == 1
    assert stopped == ["task", "batch"]


@on_both
async def test_a_batch_is_watched_and_waited_for_while_the_service_runs() -> None:
    app, seen = fairq.Worker(), list[str]()

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        await anyio.lowlevel.checkpoint()

    async def watch() -> None:
        seen.extend([state.state async for state in batch.watch(every=60)])

    async with fairq.testing.run(app) as memory:
        batch = await memory.open_batch("emails")
        await batch.add_many(range(5), delay=3600)
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await anyio.wait_all_tasks_blocked()
            await batch.close()
            await memory.drain()
        assert seen == ["open", "complete"]
        await memory.advance(86_399)
        assert (await batch.state()).done == 5
        await memory.advance(1)
        with pytest.raises(fairq.NotFound):
            await batch.state()
