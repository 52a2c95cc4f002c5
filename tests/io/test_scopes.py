"""Jobs that run side by side, and begin at once."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from fairq.io.scopes import begin_all
from fairq.io.taskless import Taskless, Wait, in_task
from fairq.io.turns import before_sending


class Jobs:
    """Two jobs that wait for a reply each, and what they have done."""

    def __init__(self) -> None:
        self.waits = [Wait(0.0), Wait(0.0)]
        self.events: list[object] = []

    async def first(self) -> None:
        self.events.append("first")
        self.events.append(await self.waits[0])

    async def second(self) -> None:
        self.events.append("second")
        if (reply := await self.waits[1]) == "a task, please":
            await in_task()
            await trio.lowlevel.checkpoint()
        self.events.append(reply)
        raise ValueError(reply)


async def run(jobs: Jobs, nursery: trio.Nursery, *, is_taskless: bool) -> None:
    """Begin both jobs, and note how they end."""

    async def both() -> None:
        before_sending(lambda: jobs.events.append("the turn ends"))
        try:
            await begin_all(jobs.first, jobs.second)
        except ValueError as error:
            jobs.events.append(error.args)

    if is_taskless:
        rest = Taskless(nursery).begin(both())
        assert rest
        await rest.finish()
    else:
        await both()


@pytest.mark.parametrize("is_taskless", [False, True])
@pytest.mark.parametrize("reply", ["reply", "a task, please"])
async def test_all_begin_in_the_callers_turn_and_a_failure_is_raised_at_the_end(is_taskless: bool, reply: str) -> None:
    jobs = Jobs()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: run(jobs, nursery, is_taskless=is_taskless))
            await trio.testing.wait_all_tasks_blocked()
            assert jobs.events == ["first", "second", "the turn ends"]
            jobs.waits[1].end(reply)
            await trio.testing.wait_all_tasks_blocked()
            assert jobs.events[3:] == [reply]
            jobs.waits[0].end(b"late")
    assert jobs.events[3:] == [reply, b"late", (reply,)]


async def test_a_caller_that_is_cancelled_waits_for_none_of_them() -> None:
    jobs = Jobs()
    with trio.move_on_after(0.01) as scope:
        await begin_all(jobs.first, jobs.second)
    assert scope.cancelled_caught
    jobs.waits[0].end(b"late")
    assert jobs.events == ["first", "second"]
