"""A handler's own backoff: how soon and how often its failed tasks are tried again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import fairq
import fairq.testing
from fairq.client.handlers import settlement_of
from fairq.client.timeouts import TimedOut
from fairq.errors import BadRequest
from fairq.wire.frames import PushedTask
from tests.store.cases import case

PUSHED = PushedTask("ada/a", 1, 1, 0, "ada", 0, 1)
BACKOFF = fairq.Backoff(base=2, cap=timedelta(minutes=1), attempts=8)


def test_a_failed_task_waits_for_a_random_part_of_a_span_that_doubles_up_to_its_cap() -> None:
    for attempt, longest in (1, 2_000), (2, 4_000), (5, 32_000), (6, 60_000), (7, 60_000):
        with case(attempt):
            for error in ValueError("no"), TimedOut("late"):
                found = [settlement_of(PUSHED._replace(attempt=attempt), error, b"", BACKOFF) for _ in range(200)]
                delays = [each.delay_ms or 0 for each in found]
                assert {each.action for each in found} == {"nack"}
                assert all(1 <= delay <= longest for delay in delays)
                assert max(delays) - min(delays) > longest / 2


def test_after_its_last_attempt_a_task_is_a_dead_letter_with_its_error() -> None:
    found = settlement_of(PUSHED._replace(attempt=8), ValueError("no"), b"", BACKOFF)
    assert (found.action, found.error) == ("reject", "ValueError: no")
    without_end = settlement_of(PUSHED._replace(attempt=99), ValueError("no"), b"", fairq.Backoff(base=1))
    assert without_end.action == "nack"


def test_what_a_handler_decides_for_one_attempt_goes_before() -> None:
    assert settlement_of(PUSHED, fairq.Retry(delay=9), b"", BACKOFF).delay_ms == 9_000
    assert settlement_of(PUSHED, fairq.Retry(), b"", BACKOFF).delay_ms is None
    assert settlement_of(PUSHED, fairq.Postpone(delay=9), b"", BACKOFF).action == "release"
    assert settlement_of(PUSHED, None, b"", BACKOFF).action == "ack"


@pytest.mark.parametrize(
    ("options", "field"),
    [({"base": -1}, "base"), ({"base": "1"}, "base"), ({"base": 1, "cap": -1}, "cap"), ({"base": 1, "attempts": -1},
     "attempts"), ({"base": 1, "attempts": True}, "attempts")],
)  # fmt: skip
def test_what_is_no_backoff_is_refused(options: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        fairq.Backoff(**options)
    assert refused.value.field == field


async def test_an_app_retries_by_it() -> None:
    app, attempts = fairq.Worker(), []

    @app.task("emails", retry=fairq.Backoff(base=3600, attempts=3))
    async def send(task: fairq.Task) -> None:
        attempts.append(task.attempt)
        raise ValueError("no host")

    async with fairq.testing.run(app) as service:
        task = await service.enqueue("emails", 1)
        await service.drain()
    assert attempts == [1, 2, 3]
    assert (task.outcome, task.reason) == ("dead", "rejected")
