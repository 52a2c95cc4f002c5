"""Tasks without a limit of attempts: they stay until somebody completes them."""

from __future__ import annotations

import pytest
import structlog
import trio

import fairq
import fairq.testing
from fairq.server.run import Served
from tests.server.harness import OPERATOR, WORKER, Raw, raw, url_of

from .harness import wait_state, worker_of, working

WARNING = "a task without a limit of attempts goes on"


@pytest.mark.parametrize("limit", ["the task's", "the queue's"])
async def test_a_task_without_a_limit_of_attempts_stays_until_somebody_completes_it(
    served: Served, ada: fairq.Client, operator: Raw, limit: str
) -> None:
    app, seen = worker_of(served), []

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        seen.append((task.attempt, task.max_attempts, task.is_last_attempt))
        if task.attempt < 22:
            raise fairq.Retry("not yet", delay=0)

    settings = {"max_attempts": 2 if limit == "the task's" else 0, "events_keep": 100}
    with structlog.testing.capture_logs() as logs, trio.fail_after(60):
        await operator.ask("configure", queue="emails", settings=settings)
        task = await ada.enqueue("emails", 1, max_attempts=0 if limit == "the task's" else None, events=True)
        async with working(app):
            await wait_state(task, "done")
        events = (await ada.read_events("emails")).events
    assert seen == [(attempt, 0, False) for attempt in range(1, 23)]
    assert [(event.event, event.attempt) for event in events] == [
        *(("failed", attempt) for attempt in range(1, 22)), ("done", 22),
    ]  # fmt: skip
    warnings = [line for line in logs if line["event"] == WARNING]
    assert [(line["queue"], line["task"], line["attempt"]) for line in warnings] == [
        ("emails", f"ada/{task.id}", 10), ("emails", f"ada/{task.id}", 20),
    ]  # fmt: skip


async def test_a_task_with_a_limit_is_not_warned_of(served: Served, ada: fairq.Client) -> None:
    app = worker_of(served)

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        raise fairq.Retry("not yet", delay=0)

    with structlog.testing.capture_logs() as logs, trio.fail_after(30):
        task = await ada.enqueue("emails", 1, max_attempts=11)
        async with working(app):
            await wait_state(task, "dead")
    assert not [line for line in logs if line["event"] == WARNING]


async def test_lost_workers_never_bury_it(served: Served, ada: fairq.Client, operator: Raw) -> None:
    with trio.fail_after(60):
        await operator.ask("configure", queue="emails", settings={"max_attempts": 1})
        task = await ada.enqueue("emails", 1, max_attempts=0)
        for attempt in range(1, 5):
            async with raw(url_of(served), WORKER) as worker:
                await worker.attach("emails", name=f"w{attempt}")
                (pushed,) = await worker.pushed()
            assert (pushed["attempt"], pushed["max_attempts"]) == (attempt, 0)
        async with raw(url_of(served), WORKER) as worker:
            await worker.attach("emails", name="last")
            (pushed,) = await worker.pushed()
            await worker.settle("emails", "reject", pushed)
        assert ((await task.state()).reason, pushed["attempt"]) == ("rejected", 5)


async def test_a_schedules_tasks_have_no_limit_if_it_says_so(served: Served, ada: fairq.Client) -> None:
    with trio.fail_after(30):
        for name, limit in (("a", None), ("b", 0), ("c", 3)):
            await ada.schedule("emails", name, 1, every=3600, max_attempts=limit)
        told = [(await ada.read_schedule("emails", name)).max_attempts for name in "abc"]
        async with raw(served, OPERATOR) as operator:
            rows = [
                (await operator.ask("schedules", queue="emails", tenant="ada", name=name))["schedules"][0]
                for name in "abc"
            ]
    assert told == [None, 0, 3]
    assert [row.get("max_attempts", "left out") for row in rows] == ["left out", 0, 3]


async def test_the_service_in_memory_has_no_limit_either() -> None:
    app, attempts = fairq.Worker("ws://127.0.0.1:9", WORKER), []

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        attempts.append((task.attempt, task.max_attempts, task.is_last_attempt))
        if task.attempt < 300:
            raise fairq.Retry("not yet", delay=0)

    async with fairq.testing.run(app, settings={"emails": {"max_attempts": 1}}) as service:
        task = await service.enqueue("emails", 1, max_attempts=0)
        await service.drain()
        assert (await task.state()).state == "done"
    assert attempts[-1] == (300, 0, False)
