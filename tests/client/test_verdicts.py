"""Whatever a handler raises or cancels has failed its own task and nothing else; only a real stop releases tasks."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest
import trio

import fairq
from fairq.client.handlers import settlement_of
from fairq.io.interrupts import is_of_signal, remembering_interrupts
from fairq.wire.frames import PushedTask
from tests.logs import captured_logs
from tests.store.cases import case

from .runtimes import LIMIT_S, Service, on_both, wait_state, wait_until, working
from .test_isolation import LOOPS, on_loops

QUICK: dict[str, Any] = {"max_attempts": 3, "retry_base": 0.001, "retry_cap": 0.001}


class Odd(BaseException):
    """As libraries in Rust raise for a panic."""


RAISED: dict[str, Callable[[], BaseException]] = {
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "SystemExit: 0": lambda: SystemExit(0),
    "CancelledError": asyncio.CancelledError,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "Odd": Odd,
    "BaseExceptionGroup": lambda: BaseExceptionGroup("two", [KeyboardInterrupt(), asyncio.CancelledError()]),
}


@pytest.mark.parametrize("place", ["async def", "def", "middleware"])
@on_both
async def test_what_a_handler_raises_fails_its_attempt_by_name_and_no_neighbour(service: Service, place: str) -> None:
    app, finish, runs = service.worker(2), anyio.Event(), Counter[str]()

    def fail(task: fairq.Task) -> None:
        runs[task.payload] += 1
        raise RAISED[task.payload]()

    async def fail_here(task: fairq.Task) -> None:
        fail(task)

    app.task("odd")(fail if place == "def" else fail_here)

    @app.task("good")
    async def wait(task: fairq.Task) -> None:
        await finish.wait()
        runs["good"] += 1

    if place == "middleware":

        @app.middleware
        async def around(task: fairq.Task) -> Any:
            if task.queue == "odd":
                await fail_here(task)
            yield

    async with service.client() as client, working(app):
        good = await client.enqueue("good", 1)
        await wait_until(lambda: len(app._run.runners.running) == 1)
        for name in RAISED:
            state = await wait_state(await client.enqueue("odd", name, **QUICK), "dead")
            assert (state.attempt, runs[name]) == (3, 3)
            assert state.error.startswith(name if name != "StopAsyncIteration" or place != "middleware" else "Runtime")
        finish.set()
        await wait_state(good, "done")
    assert runs["good"] == 1


TASK = PushedTask("ada/t1", 1, 3, 3, "ada", 0, None)  # its last attempt
REJECT, RETRY, POSTPONE = fairq.Reject("never"), fairq.Retry("soon", delay=1), fairq.Postpone("late", delay=2)
GROUP = "ExceptionGroup: several; of {} the first is ValueError: broken"
ERROR, OTHER = ValueError("broken"), KeyError("other")


def group(*errors: BaseException) -> BaseException:
    return BaseExceptionGroup("several", errors)


def test_of_a_group_one_verdict_counts_and_an_error_beside_it_is_not_lost() -> None:
    """Beside an error a task is not postponed: that error may come each time, and would never use up an attempt."""
    cases: list[tuple[BaseException, str, int | None, str, bool]] = [
        (group(REJECT), "reject", None, "never", False),
        (group(group(group(RETRY))), "nack", 1000, "soon", False),
        (group(group(POSTPONE)), "release", 2000, "late", False),
        (group(POSTPONE, group(RETRY, REJECT)), "reject", None, "never", False),
        (group(POSTPONE, RETRY), "nack", 1000, "soon", False),
        (group(ERROR, REJECT), "reject", None, "never", True),
        (group(ERROR, group(RETRY)), "nack", 1000, "soon", True),
        (group(POSTPONE, ERROR), "nack", None, GROUP.format(2), True),
        (group(asyncio.CancelledError(), POSTPONE), "release", 2000, "late", False),
        (group(group(ERROR)), "nack", None, "ValueError: broken", True),
        (group(group(ERROR, OTHER)), "nack", None, GROUP.format(2), True),
        (group(asyncio.CancelledError(), group(ERROR, OTHER)), "nack", None, f"Base{GROUP.format(3)}", True),
    ]  # fmt: skip
    for error, action, delay_ms, shown, has_traceback in cases:
        with case(error):
            try:
                raise error
            except BaseExceptionGroup as raised:
                found = settlement_of(TASK, raised)
            assert (found.action, found.delay_ms, found.error) == (action, delay_ms, shown)
            assert bool(found.traceback) == has_traceback
            assert not has_traceback or "ValueError: broken" in found.traceback


@on_loops(*LOOPS)
async def test_a_verdict_that_comes_in_a_task_group_decides(service: Service, loop: str) -> None:
    app = service.worker(1)

    async def fail(error: Exception) -> None:
        raise error

    @app.task("q")
    async def handle(task: fairq.Task) -> None:
        error = {"reject": REJECT, "retry": fairq.Retry("soon", delay=600), "postpone": POSTPONE}[task.payload]
        async with anyio.create_task_group() as outer, anyio.create_task_group() as inner:
            inner.start_soon(anyio.sleep_forever)
            if loop == "trio":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(fail, error)
                    nursery.start_soon(trio.sleep_forever)
            else:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(fail(error))
                    tasks.create_task(asyncio.sleep(60))
            outer.start_soon(anyio.sleep_forever)

    with captured_logs() as lines:
        async with service.client() as client, working(app):
            dead = await wait_state(await client.enqueue("q", "reject"), "dead")
            assert (dead.reason, dead.error, dead.attempt) == ("rejected", "never", 1)
            await wait_state(await client.enqueue("q", "retry"), "delayed")
            await wait_state(await client.enqueue("q", "postpone"), "delayed")
    assert app.counts == {"dead": 1, "retry": 1, "postponed": 1}
    assert not [line for line in lines if line["event"] == "task failed"], "a verdict is no failure"


async def test_a_cancellation_of_trio_that_is_not_the_workers_is_a_failure(service: Service) -> None:
    """It came of a scope of the handler's own, and was raised outside that."""
    app = service.worker(1)

    @app.task("odd")
    async def handle(task: fairq.Task) -> None:
        kept: list[trio.Cancelled] = []
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.sleep_forever()
            except trio.Cancelled as error:
                kept.append(error)
                raise
        raise kept.pop()

    async with service.client() as client, working(app):
        state = await wait_state(await client.enqueue("odd", 1, **QUICK), "dead")
        assert (state.attempt, state.error[:10]) == (3, "Cancelled:")


async def _cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(60)


async def _have_itself_cancelled() -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().call_soon(task.cancel)
    await asyncio.sleep(60)


async def _swallow_it() -> None:
    with pytest.raises(asyncio.CancelledError):
        await _cancel_itself()


async def _leave_it_behind() -> None:
    for _ in range(2):
        task = asyncio.current_task()
        assert task is not None
        task.cancel()


async def _cancel_the_idle() -> None:
    for task in asyncio.all_tasks():
        if "_run_tasks" in task.get_name() and task is not asyncio.current_task():
            task.cancel()


CANCELS = {
    "itself": (_cancel_itself, "dead"),
    "by another": (_have_itself_cancelled, "dead"),
    "swallowed": (_swallow_it, "done"),
    "left behind": (_leave_it_behind, "done"),
    "the idle": (_cancel_the_idle, "done"),
}


def test_cancellations_of_a_handlers_own_in_asyncio_end_no_other_handler_and_no_slot(service: Service) -> None:
    app, both = service.worker(2), asyncio.Barrier(2)

    @app.task("odd")
    async def handle(task: fairq.Task) -> None:
        await CANCELS[task.payload][0]()

    @app.task("good")
    async def meet(task: fairq.Task) -> None:
        runners = [each for each in asyncio.all_tasks() if each.get_name().endswith(("keep_running", "runner"))]
        assert len(runners) == 4  # of each slot, and who keeps it running; connections may be closing
        assert sum(each.cancelling() for each in runners) == 0
        async with asyncio.TaskGroup() as group:  # it minds cancellations that are left
            group.create_task(both.wait())  # so both slots are there

    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), service.client() as client, working(app):
            for name, (_, end) in CANCELS.items():
                odd = await client.enqueue("odd", name, **QUICK)
                state = await wait_state(odd, end)
                if end == "dead":
                    assert (state.attempt, state.error) == (3, "CancelledError: "), name
                for task in await client.enqueue_many("good", range(2), max_attempts=1):
                    await wait_state(task, "done")

    asyncio.run(main())
    assert app.counts == {"retry": 4, "dead": 2, "done": 3 + 2 * len(CANCELS)}


def _run_in_asyncio(app: fairq.Worker) -> None:
    """As programs do that use no runner: ctrl-C is raised wherever their code stands."""
    loop = asyncio.new_event_loop()
    run = loop.create_task(app.run())
    try:
        loop.run_until_complete(run)
    finally:
        with suppress(KeyboardInterrupt, SystemExit):
            loop.run_until_complete(run)
        run.exception()
        loop.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("run", [_run_in_asyncio, lambda app: trio.run(app.run)], ids=["asyncio", "trio"])
def test_what_a_signal_raises_amid_a_handler_stops_the_worker_and_costs_no_attempt(
    service: Service, run: Callable[[fairq.Worker], None], number: signal.Signals
) -> None:
    app = service.worker(2)

    @app.task("good")
    async def wait(task: fairq.Task) -> None:
        await anyio.sleep_forever()

    @app.task("odd")
    async def handle(task: fairq.Task) -> None:
        await wait_until(lambda: len(app._run.runners.running) == 2)
        signal.raise_signal(number)

    async def enqueue() -> None:
        async with service.client() as client:
            await client.enqueue("good", 1, id="good")
            await client.enqueue("odd", 1, id="odd")

    async def look() -> None:
        async with service.client() as client:
            for queue in ("good", "odd"):
                state = (await client.tasks(queue, [queue]))[0]
                assert (state.state, state.error) == ("ready", "")

    trio.run(enqueue)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    try:
        with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
            run(app)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (app.counts, app.ended) == ({"released": 2}, "cancelled")
    trio.run(look)


def test_a_signals_exception_is_known_while_workers_run_and_its_function_is_set_again_at_their_end() -> None:
    before = signal.getsignal(signal.SIGINT)
    first, second = remembering_interrupts(), remembering_interrupts()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # in no order
    with pytest.raises(KeyboardInterrupt) as caught:
        signal.raise_signal(signal.SIGINT)
    assert is_of_signal(caught.value)
    assert not is_of_signal(KeyboardInterrupt())
    second.__exit__(None, None, None)
    assert signal.getsignal(signal.SIGINT) is before
    with remembering_interrupts():
        signal.signal(signal.SIGINT, ours := lambda *_: None)
    assert signal.getsignal(signal.SIGINT) is ours
    signal.signal(signal.SIGINT, before)
