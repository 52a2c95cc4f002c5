"""Coroutines that run without a task, until they end, need one, or are closed."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator

import pytest
import trio
import trio.lowlevel
import trio.testing
from attrs import define, field

from fairq.io.taskless import Taskless, TaskNeeded, Wait, in_task
from fairq.io.turns import at_end_of_turn
from tests.logs import captured_logs


@define(eq=False)
class Story:
    """What a coroutine did, and what it waits for."""

    wait: Wait = field(factory=lambda: Wait(0.0))
    events: list[object] = field(factory=list)

    async def ask(self) -> None:
        """Wait for a reply."""
        try:
            self.events.append("begun")
            self.events.append(await self.wait)
        except BaseException as error:
            self.events.append(type(error))
            raise


@pytest.fixture
async def taskless() -> AsyncIterator[Taskless]:
    """An owner of coroutines, who ends with the test."""
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            yield Taskless(nursery)
            nursery.cancel_scope.cancel()


async def test_a_coroutine_runs_as_far_as_it_can_at_once_and_goes_on_with_the_reply(taskless: Taskless) -> None:
    story = Story()
    assert taskless.begin(story.ask()) is None
    assert story.events == ["begun"]
    story.wait.end(b"reply")
    assert story.events == ["begun", b"reply"]
    assert not taskless.waiting
    assert not taskless.nursery.child_tasks


async def test_the_same_wait_serves_a_task() -> None:
    story = Story()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(story.ask)
            await trio.testing.wait_all_tasks_blocked()
            story.wait.end(b"reply")
    assert story.events == ["begun", b"reply"]


async def test_a_reply_to_a_task_that_was_cancelled_is_dropped() -> None:
    story = Story()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(story.ask)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    story.wait.end(b"reply")
    assert story.events == ["begun", trio.Cancelled]


async def test_one_that_needs_a_task_at_once_is_finished_by_its_caller(taskless: Taskless) -> None:
    tasks: list[trio.lowlevel.Task] = []

    async def work() -> None:
        await in_task()
        with trio.move_on_after(60):
            await trio.lowlevel.checkpoint()
            tasks.append(trio.lowlevel.current_task())

    rest = taskless.begin(work())
    assert rest is not None
    await rest.finish()
    assert tasks == [trio.lowlevel.current_task()]


async def test_one_that_needs_a_task_later_gets_one_of_its_owner(taskless: Taskless) -> None:
    story, done = Story(), trio.Event()

    async def work() -> None:
        await story.ask()
        await in_task()
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(60):
            await in_task()  # nothing: this is one
            done.set()

    taskless.begin(work())
    story.wait.end(b"reply")
    assert len(taskless.nursery.child_tasks) == 1
    assert not taskless.waiting
    await done.wait()


@pytest.mark.parametrize("is_closed", [False, True])
async def test_one_that_needs_a_task_at_the_end_of_a_turn_gets_one_unless_its_owner_ends(
    is_closed: bool, taskless: Taskless
) -> None:
    story = Story()

    async def work() -> None:
        await in_task()
        await story.ask()

    def begin() -> None:
        taskless.begin_from_end(work())
        if is_closed:
            taskless.close()

    at_end_of_turn(begin)
    await trio.testing.wait_all_tasks_blocked()
    assert len(taskless.nursery.child_tasks) == (not is_closed)
    story.wait.end(b"reply")
    await trio.testing.wait_all_tasks_blocked()
    assert story.events == ([] if is_closed else ["begun", b"reply"])
    assert not taskless.waiting


async def test_one_that_has_a_task_is_cancelled_with_it() -> None:
    seen: list[str] = []

    async def work() -> None:
        await in_task()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            seen.append("cancelled")
            raise

    async with trio.open_nursery() as nursery:
        rest = Taskless(nursery).begin(work())
        assert rest is not None
        nursery.start_soon(rest.finish)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert seen == ["cancelled"]


@pytest.mark.parametrize("kind", ["event", "lot", "sleep", "checkpoint"])
async def test_one_that_waits_for_more_than_a_reply_fails_where_it_waits(kind: str, taskless: Taskless) -> None:
    seen, event, lot = list[type[Exception]](), trio.Event(), trio.lowlevel.ParkingLot()
    waits = {
        "event": event.wait, "lot": lot.park, "sleep": trio.sleep_forever, "checkpoint": trio.lowlevel.checkpoint,
    }  # fmt: skip

    async def work() -> None:
        for _ in range(2):
            try:
                await waits[kind]()
            except RuntimeError as error:
                seen.append(type(error))

    assert taskless.begin(work()) is None
    assert seen == [TaskNeeded]
    assert not taskless.waiting, "the second time it was closed"
    event.set()
    lot.unpark_all()
    await trio.testing.wait_all_tasks_blocked()  # the caller's own task is well


async def test_one_that_does_not_end_when_it_is_closed_is_logged(taskless: Taskless) -> None:
    story = Story()

    async def cling() -> None:
        try:
            await story.ask()
        finally:
            await trio.lowlevel.checkpoint()

    taskless.begin(cling())
    with captured_logs() as logs:
        taskless.close()
    assert [entry["event"] for entry in logs] == ["a coroutine without a task failed"]


async def test_an_error_is_logged_and_reaches_nobody_else(taskless: Taskless) -> None:
    story = Story()

    async def fail() -> None:
        await story.ask()
        raise ZeroDivisionError

    taskless.begin(fail())
    with captured_logs() as logs:
        story.wait.end(b"reply")
    assert [entry["event"] for entry in logs] == ["a coroutine without a task failed"]
    assert not taskless.waiting


async def test_the_end_of_their_owner_closes_all_and_late_replies_are_dropped(taskless: Taskless) -> None:
    stories, late = [Story() for _ in range(3)], Story()
    for story in stories:
        taskless.begin(story.ask())
    taskless.close()
    assert taskless.begin(late.ask()) is None
    for story in (*stories, late):
        story.wait.end(b"reply")
    assert [story.events for story in stories] == [["begun", GeneratorExit]] * 3
    assert late.events == []


async def test_what_other_threads_do_meanwhile_is_done_in_their_tasks(taskless: Taskless) -> None:
    story = Story()

    async def elsewhere() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(story.ask)
            await trio.testing.wait_all_tasks_blocked()
            story.wait.end(b"reply")

    async def work() -> None:
        thread = threading.Thread(target=trio.run, args=(elsewhere,))
        thread.start()
        thread.join(30)
        story.events.append("end")

    assert taskless.begin(work()) is None
    assert story.events == ["begun", b"reply", "end"]
