"""What handlers enqueue, in memory: the same calls and the same rules as at the service."""

from __future__ import annotations

import pytest
import trio

import fairq
import fairq.testing
from fairq.errors import BadRequest, Forbidden
from tests.store.cases import raises_for


async def test_attempts_enqueue_once_and_link_when_they_succeed() -> None:
    app, seen, ids = fairq.Worker(), list[object](), set[str]()

    @app.task("work")
    def work(task: fairq.Task) -> None:
        trio.from_thread.run(task.enqueue, "next", "once")
        ids.add(task.then("next", task.attempt))
        if task.attempt < 4:
            raise fairq.Retry(delay=1200)  # its queue remembers the id for an hour

    @app.task("next")
    async def follow(task: fairq.Task) -> None:
        seen.append(task.payload)

    with trio.fail_after(30):
        async with fairq.testing.run(app) as service:
            task = await service.enqueue("work", {})
            await service.drain()
            assert (task.outcome, task.attempts) == ("done", 4)
    assert seen == ["once", 4]
    assert len(ids) == 1


async def test_what_is_refused_says_why() -> None:
    app, tasks = fairq.Worker(), list[fairq.Task]()

    @app.task("work")
    async def work(task: fairq.Task) -> None:
        with raises_for("expires_in"):
            await task.enqueue("next", 1, delay=5, expires_in=3)
        with raises_for("id"):
            task.then("work", 1, id=task.id)
        tasks.append(task)

    with trio.fail_after(30):
        async with fairq.testing.run(app) as service:
            await service.enqueue("work", {})
            await service.drain()
            with pytest.raises(Forbidden):
                await tasks[0].enqueue("next", 1)
            with pytest.raises(BadRequest, match="the handler has ended"):
                tasks[0].then("next", 1)


async def test_an_attempt_has_failed_whose_links_are_too_many_for_the_tenant() -> None:
    app = fairq.Worker()

    @app.task("work")
    async def work(task: fairq.Task) -> None:
        for n in range(3):
            task.then(task.payload, n)

    for target in ("work", "next"):
        async with fairq.testing.run(app) as service:
            await service.as_operator().set_limits(target, queued=2)
            task = await service.enqueue("work", target, max_attempts=1)
            await service.drain()
            assert (task.outcome, task.reason) == ("dead", "exhausted")
            assert task.error == "the server refused its links: the tenant has reached its limit queued"


def test_a_task_made_by_hand_keeps_its_links_and_enqueues_nothing() -> None:
    task = fairq.Task("a", "q", "ada", 1, 5, None, 0)
    assert task.then("next", 1) != task.then("next", 1)
    with pytest.raises(BadRequest):
        trio.run(task.enqueue, "next", 1)
