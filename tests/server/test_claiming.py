"""The dispatcher's timing, without I/O: which step comes next, and what each end of a claim leaves behind."""

from __future__ import annotations

from math import inf

import pytest

from fairq.model.tasks import MAX_LEASES
from fairq.server.engine.dispatch.claiming import (
    FEW_TASKS,
    MAX_PACE_S,
    PACE_S,
    SHARED_PACE_S,
    Claiming,
    Phase,
    SharedPace,
    Step,
)

OFFERED = 10


def waiting(*, is_empty: bool = False) -> Claiming:
    """A queue whose last claim came back in no time, at 0 s."""
    claiming = Claiming()
    claiming.sent()
    claiming.answered(is_empty, 0.0)
    claiming.step(0, OFFERED, 0.0)
    return claiming


def test_the_first_claim_leaves_at_once_and_the_next_at_its_pace_or_with_half_of_the_credit() -> None:
    assert Claiming().step(1, OFFERED, 0.0) == (Step.CLAIM, 0.0)
    claiming = waiting()
    assert claiming.step(OFFERED // 2 - 1, OFFERED, 0.0) == (Step.SLEEP, PACE_S)
    assert claiming.step(OFFERED // 2, OFFERED, 0.0) == (Step.CLAIM, 0.0)
    assert claiming.step(1, OFFERED, PACE_S) == (Step.CLAIM, PACE_S)
    assert claiming.step(MAX_LEASES, 10 * MAX_LEASES, 0.0) == (Step.CLAIM, 0.0)


def test_claims_of_queues_that_share_workers_leave_together_or_with_half_of_the_credit() -> None:
    pace, queues = SharedPace(), [Claiming() for _ in range(3)]
    for claiming in queues:
        claiming.shared = pace
    for claiming in queues[:2]:
        assert claiming.step(1, OFFERED, 0.001) == (Step.CLAIM, 0.001)
        claiming.sent()
    until = 0.001 + SHARED_PACE_S
    assert queues[2].step(1, OFFERED, 0.002) == (Step.SLEEP, until)
    assert not queues[2].promise_claim(1, 1, OFFERED, 0.002)
    assert queues[2].step(OFFERED // 2, OFFERED, 0.002) == (Step.CLAIM, 0.002)
    assert queues[2].step(1, OFFERED, until) == (Step.CLAIM, until)


@pytest.mark.parametrize(("took_s", "pace_s"), [(0.0, PACE_S), (0.02, 0.02), (3.0, MAX_PACE_S)])
def test_the_pace_is_what_the_last_claim_took(took_s: float, pace_s: float) -> None:
    claiming = Claiming()
    claiming.step(1, OFFERED, 10.0)
    claiming.sent()
    claiming.answered(False, 10.0 + took_s)
    assert claiming.step(1, OFFERED, 10.0 + took_s) == (Step.SLEEP, 10.0 + took_s + pace_s)


def test_without_credit_or_tasks_it_sleeps_until_something_changes() -> None:
    assert waiting().step(0, OFFERED, 9.0) == (Step.SLEEP, inf)
    claiming = waiting(is_empty=True)
    assert claiming.step(OFFERED, OFFERED, 9.0) == (Step.SLEEP, inf)
    claiming.notify()
    assert claiming.step(OFFERED, OFFERED, 9.0) == (Step.CLAIM, 9.0)


def test_a_notification_during_a_claim_that_finds_nothing_is_not_lost() -> None:
    claiming = waiting()
    claiming.sent()
    claiming.notify()
    claiming.answered(True, 0.0)
    assert not claiming.is_empty


@pytest.mark.parametrize("phase", [Phase.BUSY, Phase.CLAIMING, Phase.IN_DOUBT])
def test_tasks_are_promised_to_no_claim_but_one_that_leaves_at_once(phase: Phase) -> None:
    claiming = waiting()
    assert claiming.promise_claim(2, 3, OFFERED, PACE_S)
    assert not claiming.promise_claim(2, 3, OFFERED, PACE_S), "two of the three places are promised"
    assert not waiting().promise_claim(1, 3, OFFERED, 0.0), "it waits for its turn"
    claiming = waiting()
    claiming.phase = phase
    assert not claiming.promise_claim(1, 3, OFFERED, PACE_S)


def test_with_half_of_the_credit_free_tasks_are_promised_to_the_claim_that_leaves_before_its_time() -> None:
    claiming = waiting()
    assert claiming.promise_claim(1, OFFERED // 2, OFFERED, 0.0)
    assert claiming.step(1, OFFERED, 0.0)[0] is Step.CLAIM, "another queue has taken the rest since"


def test_a_promise_that_cannot_be_kept_is_none_any_more() -> None:
    for spoil in ("room", "stop", "doubt"):
        claiming = waiting()
        claiming.promise_claim(2, 3, OFFERED, PACE_S)
        claiming.is_stopping = spoil == "stop"
        if spoil == "doubt":
            claiming.phase = Phase.IN_DOUBT
        step, _ = claiming.step(1 if spoil == "room" else 3, OFFERED, PACE_S)
        assert step is (Step.END if spoil == "stop" else Step.CLAIM), spoil
        assert not claiming.promised, spoil


def test_a_claim_with_a_promise_keeps_it() -> None:
    claiming = waiting()
    claiming.promise_claim(2, 3, OFFERED, PACE_S)
    assert claiming.step(2, OFFERED, PACE_S)[0] is Step.CLAIM
    claiming.sent()
    assert claiming.arrived == 0
    claiming.answered(False, PACE_S)
    assert claiming.step(0, OFFERED, 1.0)[0] is Step.SLEEP, "nothing is promised any more"


def test_in_doubt_the_same_claim_leaves_again_whatever_is_free_but_not_at_the_end() -> None:
    claiming = waiting()
    assert not claiming.sent()
    claiming.lost()
    assert claiming.step(0, OFFERED, 0.0) == (Step.CLAIM, 0.0)
    assert claiming.sent()
    claiming.answered(True, 0.0)
    assert not claiming.is_empty, "it may repeat the tasks of the lost claim, and there may be more"
    claiming.sent()
    claiming.lost()
    claiming.is_stopping = True
    assert claiming.step(9, OFFERED, 0.0)[0] is Step.END


def test_one_more_is_wanted_than_are_expected() -> None:
    claiming = waiting(is_empty=True)
    claiming.promise_claim(3, 9, OFFERED, PACE_S)
    assert claiming.wanted(OFFERED) == 4
    claiming.notify()
    assert claiming.wanted(OFFERED) == FEW_TASKS


@pytest.mark.parametrize(
    ("offered", "most"),
    [(1, FEW_TASKS), (2 * FEW_TASKS, FEW_TASKS), (119, 60), (2 * MAX_LEASES, MAX_LEASES), (9_999, MAX_LEASES)],
)
def test_a_claim_leaves_half_of_the_credit_to_the_next_one(offered: int, most: int) -> None:
    assert waiting().wanted(offered) == most
    assert waiting().promise_claim(most, offered + most, offered, PACE_S)
    assert not waiting().promise_claim(most + 1, offered + most, offered, PACE_S), "one claim cannot take them all"


def test_who_was_called_first_passes_on_if_there_may_be_more() -> None:
    claiming = waiting()
    assert claiming.claim_first(1)
    claiming.sent()
    assert claiming.answered(False, 0.0)
    claiming.sent()
    assert not claiming.answered(False, 0.0)
    assert not waiting().claim_first(0)
    claiming.sent()
    claiming.claim_first(1)  # the call is for the next claim
    assert not claiming.answered(False, 0.0)
    claiming.sent()
    assert claiming.answered(False, 0.0)


def test_a_failed_claim_leaves_nothing_known_but_that_a_deleted_queue_is_empty() -> None:
    claiming = waiting()
    for is_deleted in (False, True):
        claiming.sent()
        claiming.failed(is_deleted=is_deleted)
        assert claiming.is_empty == is_deleted


def test_a_claim_that_is_repeated_is_dated_by_the_first() -> None:
    claiming = Claiming()
    claiming.step(1, OFFERED, 1.0)
    claiming.sent()
    claiming.lost()
    claiming.step(1, OFFERED, 5.0)
    assert claiming.sent()
    assert claiming.first_left_at == 1.0
    claiming.answered(False, 6.0)
    claiming.step(1, OFFERED, 7.0)
    claiming.sent()
    assert claiming.first_left_at == 7.0
