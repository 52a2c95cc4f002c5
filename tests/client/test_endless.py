"""Tasks without a limit of attempts: they stay until somebody completes them."""

from __future__ import annotations

import pytest
import structlog

import fairq
import fairq.testing
from fairq.server.run import Served
from tests.server.harness import Raw

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
    with structlog.testing.capture_logs() as logs:
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

    with structlog.testing.capture_logs() as logs:
        task = await ada.enqueue("emails", 1, max_attempts=11)
        async with working(app):
            await wait_state(task, "dead")
    assert not [line for line in logs if line["event"] == WARNING]
