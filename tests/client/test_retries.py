"""What a handler says of its tasks' attempts: how many, and the waits between them."""

from __future__ import annotations

from typing import Any

import pytest

import fairq
from fairq.client.retries import AS_QUEUED, Retries
from fairq.model.tasks import Settlement
from fairq.wire.frames import PushedTask
from tests.store.cases import raises_for

from .runtimes import Service, on_both, wait_state, working


def pushed(attempt: int, max_attempts: int, uncounted: int = 0) -> PushedTask:
    return PushedTask("ada/t", 7, attempt, max_attempts, "ada", 0, None, uncounted_attempts=uncounted)


def ended(retries: Retries, task: PushedTask, delay_ms: int | None = None) -> Settlement:
    """How a failed attempt ends."""
    return retries.settle(task, Settlement("nack", task.id, task.lease, delay_ms, "it failed"))


@pytest.mark.parametrize(
    ("mine", "task", "limit", "action"),
    [
        (0, pushed(5, 25), 25, "nack"), (3, pushed(2, 25), 3, "nack"), (3, pushed(3, 25), 3, "reject"),
        (9, pushed(3, 3), 3, "nack"), (3, pushed(3, 0), 3, "reject"), (3, pushed(4, 27, 2), 5, "nack"),
        (3, pushed(5, 27, 2), 5, "reject"), (3, pushed(4, 0, 2), 5, "nack"), (3, pushed(9, 25), 3, "reject"),
    ],
)  # fmt: skip
def test_the_lower_limit_holds_of_the_attempts_that_count(mine: int, task: PushedTask, limit: int, action: str) -> None:
    retries = Retries.of(mine, None, None)
    assert retries.limit(task).max_attempts == limit
    assert ended(retries, task).action == action
    assert ended(retries, task).error == "it failed"


def test_waits_double_up_to_the_cap_and_stay_below() -> None:
    retries = Retries.of(0, 2, 9)
    for attempt, longest_ms in ((1, 2000), (2, 4000), (3, 8000), (4, 9000), (999, 9000)):
        delay_ms = ended(retries, pushed(attempt, 0)).delay_ms
        assert delay_ms is not None
        assert 1 <= delay_ms <= longest_ms
    assert ended(retries, pushed(4, 0)) == ended(retries, pushed(4, 0)), "drawn by the task's id and attempt"
    assert (ended(retries, pushed(50, 0, 49)).delay_ms or 0) <= 2000, "49 attempts did not count"


def test_what_is_said_of_one_attempt_comes_first() -> None:
    retries = Retries.of(3, 60, 60)
    assert ended(retries, pushed(1, 25), delay_ms=5).delay_ms == 5
    assert ended(AS_QUEUED, pushed(1, 25)).delay_ms is None
    for action in ("ack", "reject", "release"):
        settlement = Settlement(action, "ada/t", 7)
        assert retries.settle(pushed(3, 25), settlement) is settlement


def test_one_of_two_waits_is_enough() -> None:
    assert Retries.of(0, 5, None) == Retries(0, 5_000, 3_600_000)
    assert Retries.of(0, None, 60) == Retries(0, 1_000, 60_000)
    assert Retries.of(0, None, None) == AS_QUEUED


@pytest.mark.parametrize(
    "wrong", [{"max_attempts": -1}, {"max_attempts": 1001}, {"retry_base": -1}, {"retry_cap": "x"}]
)
def test_what_no_handler_can_say_is_refused_by_its_name(wrong: dict[str, Any]) -> None:
    with raises_for(next(iter(wrong))):
        fairq.Worker().task("emails", **wrong)


@on_both
async def test_a_handlers_limit_counts_no_postponed_attempt(service: Service) -> None:
    app, seen = service.worker(), list[tuple[int, int, bool]]()

    @app.task("emails", max_attempts=2, retry_cap=0.001)
    async def send(task: fairq.Task) -> None:
        seen.append((task.attempt, task.max_attempts, task.is_last_attempt))
        if task.attempt in (1, 3):
            raise fairq.Postpone("not now", delay=0)
        raise RuntimeError("it failed")

    async with service.client() as client, working(app):
        task = await client.enqueue("emails", None)
        dead = await wait_state(task, "dead")
    assert (dead.reason, dead.error, dead.attempt) == ("rejected", "RuntimeError: it failed", 4)
    assert seen == [(1, 2, False), (2, 3, False), (3, 3, True), (4, 4, True)]
    assert app.counts == {"postponed": 2, "retry": 1, "dead": 1}
