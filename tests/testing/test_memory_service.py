"""The testing aid: an app's handlers in memory and in virtual time."""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import trio
import trio.testing

import fairq
import fairq.testing
from fairq.errors import Forbidden, NoResult
from fairq.testing import MemoryService
from fairq.testing.running import MAX_RUNS
from tests.store.cases import case, raises_for

from .apps import make_app


@pytest.fixture
async def service() -> AsyncIterator[MemoryService]:
    """The service in memory, with the app of all outcomes."""
    with trio.fail_after(30):
        async with fairq.testing.run(make_app()) as service:
            yield service


def ways(*ways: Any) -> dict[str, Any]:
    """The payload of a task that ends in these ways."""
    return {"ways": list(ways)}


async def test_time_passes_by_as_much_as_is_said(service: MemoryService) -> None:
    early = await service.enqueue("emails", ways("ok"), delay=10, result_ttl=25)
    late = await service.enqueue("images", ways("ok"), start_at=service.now + timedelta(seconds=30))
    before = service.now
    await service.advance(0)
    assert [early.outcome, late.outcome] == ["delayed", "delayed"]
    await service.advance(10)
    assert [early.outcome, late.outcome, await early.result()] == ["done", "delayed", None]
    await service.advance(25)
    assert late.outcome == "done"
    with pytest.raises(NoResult):
        await early.result()
    assert timedelta(seconds=35) <= service.now - before < timedelta(seconds=40)


async def test_what_a_handler_raised_can_be_looked_into(service: MemoryService) -> None:
    task = await service.enqueue("emails", ways("retry", "fail", "reject"))
    await service.drain()
    assert [type(error) for error in task.exceptions] == [fairq.Retry, ZeroDivisionError, fairq.Reject]
    assert task.exceptions[1].__traceback__ is not None
    with pytest.raises(fairq.Reject, match="bad address"):
        raise task.exceptions[-1]
    assert repr(task) == (
        f"TrackedTask('emails', '{task.id}', outcome='dead', attempts=3, reason='rejected', error='bad address')"
    )


async def test_a_handler_may_enqueue_more_and_a_queue_without_a_handler_keeps_its_tasks() -> None:
    app = fairq.Worker()

    @app.task("first")
    async def first(task: fairq.Task) -> None:
        more.append(await service.enqueue("second", task.payload, delay=60))
        more.append(await service.enqueue("nobody", task.payload))

    @app.task("second")
    def second(task: fairq.Task) -> None:
        pass

    more: list[fairq.testing.TrackedTask] = []
    async with fairq.testing.run(app) as service:
        await service.enqueue("first", 1)
        await service.drain()
    assert [task.outcome for task in more] == ["done", "ready"]


async def test_never_more_run_at_once_than_the_concurrency() -> None:
    app, running, most = fairq.Worker(concurrency=3), 0, 0

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.testing.wait_all_tasks_blocked()
        running -= 1

    async with fairq.testing.run(app) as service:
        await service.enqueue_many("emails", range(10))
        await service.drain()
    assert most == 3


async def test_settings_of_queues_hold(autojump_clock: object) -> None:
    settings = {"emails": {"max_attempts": 2, "retry_base_ms": 86_400_000, "retry_cap_ms": 86_400_000}}
    async with fairq.testing.run(make_app(), settings=settings, seed=1) as service:
        before = service.now
        task = await service.enqueue("emails", ways("fail"))
        await service.drain()
        assert (task.reason, task.attempts) == ("exhausted", 2)
        waited = service.now - before
    assert timedelta(minutes=1) < waited < timedelta(days=1)
    async with fairq.testing.run(make_app(), settings=settings, seed=1) as service:
        before = service.now
        await service.enqueue("emails", ways("fail"))
        await service.drain()
        assert service.now - before == waited  # the jitter is the seed's


async def test_under_a_mock_clock_handlers_sleep_in_virtual_time_too(autojump_clock: object) -> None:
    app, order = fairq.Worker(concurrency=2), []

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        await trio.sleep(task.payload)
        order.append((task.payload, round(trio.current_time() - began)))

    began = trio.current_time()
    async with fairq.testing.run(app) as service:
        before = service.now
        slow = await service.enqueue("emails", 3_600)
        quick = await service.enqueue("emails", 10, delay=60)  # becomes due while the other runs
        late = await service.enqueue("emails", 1, delay=60, expires_in=3_600.5)
        await service.drain()
        assert [task.outcome for task in (slow, quick, late)] == ["done"] * 3
        assert service.now - before == timedelta(hours=1)
        await trio.sleep(30)
        assert service.now - before == timedelta(hours=1, seconds=30)
    assert order == [(10, 70), (1, 71), (3_600, 3_600)]


async def test_a_task_that_expires_while_all_places_are_taken_never_runs(autojump_clock: object) -> None:
    app = fairq.Worker(concurrency=1)

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        await trio.sleep(20)

    async with fairq.testing.run(app) as memory:
        first = await memory.enqueue("emails", 1)
        second = await memory.enqueue("emails", 2, expires_in=15)
        await memory.advance(10)  # the first goes on beyond that
        assert (first.outcome, second.outcome, second.reason) == ("done", "dead", "expired")


async def test_under_a_mock_clock_time_does_not_jump_while_a_thread_runs(autojump_clock: object) -> None:
    app, leave = fairq.Worker(concurrency=1), threading.Event()

    @app.task("images")
    def draw(task: fairq.Task) -> None:
        leave.wait(0.2)

    async with fairq.testing.run(app) as service:
        tasks = await service.enqueue_many("images", [1, 2], expires_in=60)
        await service.drain()
        assert [task.outcome for task in tasks] == ["done", "done"]


async def test_a_drain_that_is_cancelled_gives_its_tasks_back() -> None:
    app, began, order = fairq.Worker(concurrency=1), trio.Event(), []

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        order.append(task.payload)
        if not began.is_set():
            began.set()
            await trio.sleep_forever()

    async with fairq.testing.run(app) as service:
        task, _ = await service.enqueue_many("emails", [1, 2], max_attempts=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.drain)
            await began.wait()
            nursery.cancel_scope.cancel()
        assert task.outcome == "ready"
        await service.drain()
        assert (task.outcome, task.attempts) == ("done", 2)
    assert order == [1, 1, 2]  # back at the head


async def test_an_endless_chain_of_tasks_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    app = fairq.Worker()
    monkeypatch.setattr("fairq.testing.running.MAX_RUNS", 100)

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        await chain.enqueue("emails", task.payload, delay=1)

    async with fairq.testing.run(app) as chain:
        await chain.enqueue("emails", 1)
        with pytest.raises(RuntimeError, match="endless"):
            await chain.drain()
    assert MAX_RUNS == 100_000


async def test_a_handlers_interrupt_is_its_failure_and_that_of_ctrl_c_comes_out_of_drain() -> None:
    app = fairq.Worker()

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        if task.payload == "its own":
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    async with fairq.testing.run(app) as service:
        task = await service.enqueue("emails", "its own", max_attempts=3)
        await service.drain()
        state = await task.state()
        assert (state.state, state.attempt, state.error) == ("dead", 3, "KeyboardInterrupt: ")
        await service.enqueue("emails", "ctrl-C")
        with pytest.raises(KeyboardInterrupt):
            await service.drain()


async def test_mistakes_in_the_test_are_reported_at_its_start() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tenant": "a/b"}, "tenant"),
        ({"settings": {"Emails": {"max_attempts": 1}}}, "queue"),
        ({"settings": {"emails": {"max_attempts": -1}}}, "max_attempts"),
        ({"settings": {"emails": {"speed": 1}}}, "speed"),
    ]
    for arguments, field in cases:
        with case(arguments, field), raises_for(field):
            async with fairq.testing.run(make_app(), **arguments):
                pass


async def test_time_goes_forward_only(service: MemoryService) -> None:
    for seconds in [-1, float("nan"), float("inf")]:
        with case(seconds), raises_for("seconds"):
            await service.advance(seconds)


async def test_a_verb_that_is_not_in_memory_is_refused(service: MemoryService) -> None:
    with pytest.raises(Forbidden, match="`queues`: test it with a real server"):
        await service.request("queues")
    assert len(repr(service)) < 100


async def test_progress_is_kept_for_the_test() -> None:
    app = fairq.Worker()

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        await task.progress(0.5, "half")
        await task.progress(1)

    async with fairq.testing.run(app) as memory:
        task = await memory.enqueue("emails", 1)
        await memory.drain()
    assert task.progress == ((0.5, "half"), (1.0, ""))
