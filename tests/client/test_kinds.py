"""Several kinds of task in one queue: the task's name chooses its handler."""

from __future__ import annotations

from datetime import timedelta

import pytest

import fairq
from fairq.errors import BadRequest

from .runtimes import Service, on_both, wait_state, working

YEAR = timedelta(days=365)


@on_both
async def test_the_name_of_a_task_chooses_its_handler(service: Service) -> None:
    app = service.worker()

    @app.task("emails", name="welcome")
    async def welcome(task: fairq.Task) -> str:
        return f"welcome {task.name}"

    @app.task("emails", name="bye")
    def bye(task: fairq.Task) -> str:
        return f"bye {task.name}"

    @app.task("emails")
    async def other(task: fairq.Task) -> str:
        return f"other {task.name}"

    async with service.client() as client, working(app):
        for name in ("welcome", "bye", "", "unknown"):
            task = await client.enqueue("emails", 1, name=name, result_ttl=60)
            expected = f"{name if name in ('welcome', 'bye') else 'other'} {name}"
            assert await task.result() == expected


@on_both
async def test_a_name_without_a_handler_is_a_failed_attempt_that_another_worker_may_make_good(service: Service) -> None:
    old, new = service.worker(), fairq.Worker(service.url, "dev-worker", name="worker-2")
    for app in (old, new):
        app.task("emails", name="bye")(print)

    @new.task("emails", name="welcome")
    async def welcome(task: fairq.Task) -> int:
        return task.attempt

    async with service.client() as client:
        async with working(old):
            # A backoff of up to a year: the old worker has no second attempt.
            task = await client.enqueue("emails", 1, name="welcome", result_ttl=60, retry_base=YEAR, retry_cap=YEAR)
            nameless = await client.enqueue("emails", 1, max_attempts=1)
            state = await wait_state(task, "delayed")
            assert state.error == (
                "NoHandler: queue emails has no handler for tasks named 'welcome' in this worker;"
                " it has handlers for 'bye'"
            )
            state = await wait_state(nameless, "dead")
            assert (state.reason, "tasks without a name" in state.error) == ("exhausted", True)
        assert await task.reschedule() == "ok"
        async with working(new):
            assert await task.result() == 2


def test_two_handlers_of_one_name_are_refused() -> None:
    app = fairq.Worker(token="x")
    app.task("emails", name="welcome")(print)
    with pytest.raises(BadRequest, match="queue emails already has a handler for tasks named 'welcome'"):
        app.task("emails", name="welcome")(print)
    with pytest.raises(BadRequest, match="name"):
        app.task("emails", name="n" * 129)
    assert list(app.handlers) == ["emails"]
    assert list(app.handlers["emails"].by_name) == ["welcome"]


def test_an_error_tells_a_few_of_many_names() -> None:
    app = fairq.Worker(token="x")
    for number in range(500):
        app.task("emails", name=f"{number:03}")(print)
    with pytest.raises(Exception, match=r"'019' and 480 more"):
        app.handlers["emails"].find("x").function(_Named()).send(None)


class _Named:
    name = "x"
