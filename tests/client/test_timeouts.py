"""Timeouts of handlers, their own and their queue's, under asyncio and trio."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

import fairq
import fairq.testing
from fairq.errors import BadRequest
from fairq.io.cancel_backoff import CancelBackoff
from fairq.wire.worker_session import WorkerSession
from tests.logs import captured_logs
from tests.server.harness import OPERATOR
from tests.store.cases import case

from .runtimes import Service, limits, on_both, wait_state, wait_until, working


@on_both
async def test_a_handler_that_runs_too_long_is_cancelled_and_has_failed(service: Service) -> None:
    app, ends = service.worker(1), list[str]()

    @app.task("emails", timeout=0.05)
    async def handle(task: fairq.Task) -> int:
        if task.attempt == 1:
            try:
                await anyio.sleep_forever()
            finally:
                ends.append(task.id)
        return task.attempt

    async with service.client() as client, working(app):
        task = await client.enqueue("emails", 1, max_attempts=1)
        state = await wait_state(task, "dead")
        assert (state.reason, state.error) == ("exhausted", "timeout: the handler did not end within 0.05 s")
        task = await client.enqueue("emails", 1, result_ttl=60, id="again")
        assert await task.result() == 2, "the worker goes on, and the next attempt counts from its own start"
    assert len(ends) == 2
    assert app.counts == {"dead": 1, "retry": 1, "done": 1}


OUTCOMES = {"cancelled": "cancelled", "too late": "dead", "stopped": "released"}


async def end_handler(how: str, service: Service, app: fairq.Worker, begun: anyio.Event) -> str:
    """Run one task, and end its handler in one of these ways once that has begun; returns the task's state."""
    async with service.client() as client:
        async with working(app):
            task = await client.enqueue("emails", 1, max_attempts=1)
            await begun.wait()
            if how == "cancelled":
                assert await task.cancel() == "running"
            if how != "stopped":
                await wait_until(lambda: app.counts.total() == 1)
        assert app.counts == {OUTCOMES[how]: 1}
        return (await task.state()).state


@on_both
@pytest.mark.parametrize("where", ["its own task", "a child"])
@pytest.mark.parametrize("how", OUTCOMES)
async def test_a_handler_that_swallows_its_cancellation_is_not_cancelled_again_and_again(
    service: Service, how: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it keeps a processor busy; it is cancelled again after a while, and this one ends then."""
    monkeypatch.setattr("fairq.io.cancel_backoff.AGAIN_S", 0.2)
    app, swallowed, seen = service.worker(1), 0, anyio.Event()
    rested, lock = anyio.Event(), anyio.Lock()

    @app.task("emails", timeout=0.05 if how == "too late" else None)
    async def handle(task: fairq.Task) -> None:
        async with anyio.create_task_group() as group:
            if where == "a child":
                group.start_soon(swallow)
            else:
                await swallow()

    async def swallow() -> None:
        nonlocal swallowed
        while swallowed < 100_000:
            try:
                seen.set()
                await anyio.sleep(0.01)
                if where == "its own task":
                    async with lock:  # where a cancellation is due, anyio waits for it busily
                        pass
                if swallowed:
                    rested.set()
                    break
            except anyio.get_cancelled_exc_class():
                swallowed += 1
        await anyio.sleep_forever()

    state = await end_handler(how, service, app, seen)
    assert rested.is_set()
    if how != "cancelled":
        assert state == {"too late": "dead", "stopped": "ready"}[how]


async def ends_with_its_group(how: str, service: Service, clean_up: Callable[[], Awaitable[None]]) -> bool:
    """Run a handler that waits for a child which cleans up; returns whether the handler ended when that had."""
    app, seen, went_on = service.worker(1), anyio.Event(), False

    @app.task("emails", timeout=0.05 if how == "too late" else None)
    async def handle(task: fairq.Task) -> None:
        nonlocal went_on
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
        went_on = True

    async def wait() -> None:
        try:
            seen.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await clean_up()

    await end_handler(how, service, app, seen)
    return not went_on


@on_both
@pytest.mark.parametrize("how", OUTCOMES)
async def test_a_handler_that_cleans_up_slowly_stays_cancelled(service: Service, how: str) -> None:
    """Its task group would take the cancellation for its own, if it saw none around it when it ends."""

    async def clean_up() -> None:
        for _ in range(30):
            await anyio.sleep(0.01)

    assert await ends_with_its_group(how, service, clean_up)


@on_both
@pytest.mark.parametrize("how", OUTCOMES)
async def test_a_handler_whose_own_scopes_end_while_it_cleans_up_stays_cancelled(
    service: Service, how: str, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a sleep that is over, but whose task has not gone on yet."""
    looks, slow = 0, getattr(CancelBackoff, f"_slow_{runtime}")

    def look(backoff: CancelBackoff) -> Any:
        nonlocal looks
        pause_s = slow(backoff)
        looks += 1
        return pause_s

    monkeypatch.setattr(CancelBackoff, f"_slow_{runtime}", look)
    monkeypatch.setattr("fairq.io.cancel_backoff.AGAIN_S", 0.05)

    async def clean_up() -> None:
        while looks < 2:
            with anyio.CancelScope() as own:
                own.cancel()
                await anyio.lowlevel.checkpoint()

    assert await ends_with_its_group(how, service, clean_up)


@on_both
async def test_the_timeout_of_the_queue_holds_where_it_is_shorter(service: Service) -> None:
    app = service.worker(3)

    @app.task("emails", name="own", timeout=0.05)
    @app.task("emails")
    async def handle(task: fairq.Task) -> None:
        await anyio.sleep_forever()

    async with service.client() as client, fairq.open_operator(service.url, token=OPERATOR) as operator, working(app):
        await operator.configure("emails", run_timeout_ms=100)
        tasks = [await client.enqueue("emails", 1, name=name, max_attempts=1) for name in ("own", "")]
        errors = [(await wait_state(task, "dead")).error for task in tasks]
        assert [error.split()[-2] for error in errors] == ["0.05", "0.1"]
        await operator.configure("emails", run_timeout_ms=0)
        task = await client.enqueue("emails", 1, max_attempts=1)
        await wait_until(lambda: len(app._run.runners.running) == 1)
        assert (await task.state()).state == "leased"


@on_both
async def test_the_slot_of_a_plain_function_is_kept_while_its_thread_runs(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_handlers = limits(monkeypatch)
    app, leave, began, ran = service.worker(1), threading.Event(), threading.Event(), list[Any]()

    @app.task("emails")
    @app.task("emails", name="short", timeout=3600)
    def handle(task: fairq.Task) -> None:
        if task.payload == "block":
            began.set()
            leave.wait(20)
        ran.append(task.payload)

    async with service.client() as client, working(app):
        blocked = await client.enqueue("emails", "block", name="short", max_attempts=1)
        await wait_until(began.is_set)
        of_handlers[0].cancel()
        assert (await wait_state(blocked, "dead")).error.startswith("timeout: ")
        assert app._run.threads.names_of_abandoned() == [handle.__qualname__]
        task = await client.enqueue("emails", "next")
        await wait_until(lambda: app._run.driver.session.sent_credit == 0)
        assert (await task.state()).state == "ready"
        leave.set()
        await wait_state(task, "done")
    assert ran == ["block", "next"]


@on_both
async def test_threads_reach_the_event_loop_and_hear_of_cancellation(service: Service) -> None:
    app, heard = service.worker(1), list[str]()

    @app.task("emails")
    def handle(task: fairq.Task) -> None:
        anyio.from_thread.run(task.progress, 0.5)
        anyio.from_thread.run_sync(heard.append, "in the loop")
        try:
            while True:
                anyio.from_thread.check_cancelled()
                threading.Event().wait(0.01)
        except BaseException as error:
            heard.append(type(error).__name__)
            raise

    async with service.client() as client, working(app):
        task = await client.enqueue("emails", 1)
        await wait_until(lambda: len(heard) == 1)
        assert await task.cancel() == "running"
        await wait_until(lambda: len(heard) == 2)
        assert heard == ["in the loop", "CancelledError" if heard[1] == "CancelledError" else "Cancelled"]
        await wait_until(lambda: app._run.threads.abandoned == 0)


def test_a_timeout_that_cannot_be_is_refused() -> None:
    cases: list[Any] = [0, -1, float("nan"), float("inf"), 10**9, "5", True]
    for timeout in cases:
        with case(timeout), pytest.raises(BadRequest, match="timeout"):
            fairq.Worker(token="x").task("emails", timeout=timeout)


async def test_timeouts_work_in_memory(autojump_clock: object) -> None:
    app = fairq.Worker()
    register: Callable[..., Any] = app.task("emails", timeout=3600)

    @register
    async def handle(task: fairq.Task) -> None:
        await anyio.sleep(task.payload)

    settings = {"emails": {"max_attempts": 1}, "calls": {"max_attempts": 1, "run_timeout_ms": 60_000}}
    app.task("calls")(handle)
    async with fairq.testing.run(app, settings=settings) as service:
        late = await service.enqueue("emails", 3601)
        good = await service.enqueue("emails", 3599)
        call = await service.enqueue("calls", 61)
        await service.drain()
    assert (late.outcome, late.error) == ("dead", "timeout: the handler did not end within 3600 s")
    assert (call.outcome, call.error) == ("dead", "timeout: the handler did not end within 60 s")
    assert good.outcome == "done"


@on_both
async def test_a_burst_whose_slots_are_all_kept_waits_for_one_and_does_not_ask_on_and_on(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, leave, asked = service.worker(1), threading.Event(), list[str]()
    began, of_handlers = threading.Event(), limits(monkeypatch)
    monkeypatch.setattr("fairq.server.engine.dispatch.dispatcher._EMPTY_S", 60.0)  # else it asks once a second
    request = WorkerSession.request

    def counted(self: WorkerSession, verb: str, *args: Any) -> Any:
        asked.append(verb)
        return request(self, verb, *args)

    @app.task("emails")
    @app.task("emails", name="short", timeout=3600)
    def handle(task: fairq.Task) -> None:
        if task.payload == "block":
            began.set()
            leave.wait(20)

    with captured_logs() as lines:
        async with service.client() as client, anyio.create_task_group() as group:
            blocked = await client.enqueue("emails", "block", name="short", max_attempts=1)
            await client.enqueue("emails", "next")
            monkeypatch.setattr(WorkerSession, "request", counted)
            group.start_soon(partial(app.run, burst=True))
            await wait_until(began.is_set)
            of_handlers[0].cancel()
            await wait_state(blocked, "dead")
            for _ in range(50):
                await blocked.state()
            assert asked.count("idle") < 5
            leave.set()
    assert app.counts == {"dead": 1, "done": 1}
    assert [line["functions"] for line in lines if "keep all slots" in line["event"]] == [[handle.__qualname__]]
