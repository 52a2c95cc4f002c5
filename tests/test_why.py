"""Why a task waits: what holds whatever the facts are. What the store makes of each cause: tests/lua/test_why.py."""

from __future__ import annotations

from typing import get_args

import pytest
from attrs import evolve, fields
from hypothesis import given, settings
from hypothesis import strategies as st

from fairq.model.waiting import CLOSED, PAUSED, RATE_LIMITED, Cause, Facts, Waiting, Why, explain
from fairq.model.why_text import say_why
from fairq.model.workers import SilentWorker

NOW = 1_700_000_000_000
COUNTS = st.integers(0, 1000).map(float)
MS = st.sampled_from([0.0, 0.5, 1.0, 250.0, 1e7])
TIMES = st.sampled_from([0.0, NOW - 1e6, float(NOW), NOW + 5.5, NOW + 1e6])
ORDER: tuple[Cause, ...] = get_args(Cause)
VALUES: dict[str, st.SearchStrategy[float]] = {
    "weight": st.sampled_from([1.0, 1000.0, 1e7]),
    "queue_weight_sum": st.sampled_from([0.0, 1000.0, 1e9]),
    "blocked": st.integers(0, PAUSED | CLOSED | RATE_LIMITED).map(float),
    "queue_blocked": st.integers(0, PAUSED | CLOSED).map(float),
    "rate": st.sampled_from([0.0, 0.001, 1.5, 1e6]),
    "debt": MS,
    **dict.fromkeys(("estimate", "queue_estimate"), MS),
    **dict.fromkeys(("theoretical_arrival", "opening_changes_at", "queue_opening_changes_at"), TIMES),
    **dict.fromkeys(("is_exact", "competes", "is_awake"), st.sampled_from([0.0, 1.0])),
}
FACTS = st.builds(Facts, **{each.name: VALUES.get(each.name, COUNTS) for each in fields(Facts)})
TASKS = st.builds(
    Waiting, st.just(NOW), st.sampled_from(["ready", "pending", "delayed"]), st.integers(0, 3),
    st.sampled_from([0, NOW - 5, NOW + 5000]), FACTS,
)  # fmt: skip
SLOTS = st.sampled_from([0, 0.5, 1, 7, 1000])


@settings(max_examples=40)
@given(TASKS, SLOTS)
def test_causes_stand_in_their_order_and_a_start_is_no_earlier_than_the_clocks_allow(
    task: Waiting, slots: float
) -> None:
    found = explain("t", task, slots)
    assert found.causes == sorted(set(found.causes), key=ORDER.index)
    assert 0 <= found.share <= 1
    assert found.until_ms == 0 or found.until_ms > NOW
    hold = {"queue_paused", "tenant_paused", "no_worker"}.intersection(found.causes)
    assert bool(hold) <= (found.starts_at_ms is None)
    if found.starts_at_ms is not None:
        assert found.starts_at_ms >= max(NOW, found.until_ms)


@settings(max_examples=40)
@given(TASKS, SLOTS, st.integers(1, 100))
def test_who_has_more_before_it_starts_no_earlier(task: Waiting, slots: float, more: int) -> None:
    assert task.facts is not None
    further = evolve(task, facts=evolve(task.facts, ahead=task.facts.ahead + more))
    near, far = explain("t", task, slots).starts_at_ms, explain("t", further, slots).starts_at_ms
    assert far is None or (near is not None and near <= far)


@settings(max_examples=40)
@given(TASKS, st.sampled_from([0.5, 1, 7]), st.floats(1, 100))
def test_more_workers_start_it_no_later(task: Waiting, slots: float, times: float) -> None:
    few, many = explain("t", task, slots).starts_at_ms, explain("t", task, slots * times).starts_at_ms
    assert few is None or (many is not None and many <= few)


@settings(max_examples=40)
@given(TASKS, SLOTS)
def test_each_cause_is_named_and_none_that_has_ended_remains(task: Waiting, slots: float) -> None:
    assert task.facts is not None
    free = evolve(task.facts, blocked=0.0, queue_blocked=0.0, max_running=0.0, ahead=0.0, queue_leased=0.0, leased=0.0)
    found = explain("t", evolve(task, state="ready", facts=free), slots)
    assert found.causes == ([] if slots else ["no_worker"])
    paused = evolve(free, blocked=float(PAUSED))
    assert explain("t", evolve(task, state="ready", facts=paused), slots).causes[0] == "tenant_paused"


SAID = [
    (SilentWorker("imp-2", 24_000, 3, 0), "imp-2 silent for 24 s, holds 3 tasks"),
    (SilentWorker("imp-2", 63_000, 1, 2), "imp-2 silent for 1 min 3 s, holds 1 task, lost 2 tasks"),
    (SilentWorker("imp-2", 63_000, 0, 3), "imp-2 silent for 1 min 3 s, lost 3 tasks"),
    (SilentWorker("imp-2", 30_000, 0, 0), "imp-2 silent for 30 s, holds 0 tasks"),
]


@pytest.mark.parametrize(("silent", "said"), SAID)
def test_a_silent_worker_is_shown_beside_the_state_and_the_causes(silent: SilentWorker, said: str) -> None:
    assert list(say_why(Why("ada/a", "leased", 0, silent=[silent])))[1:] == [said]
    waits = list(say_why(Why("ada/a", "ready", 0, causes=["no_worker"], silent=[silent])))
    assert waits[1:3] == ["- all workers of the queue are silent", said]


DIED = [
    ((1, 3, False), "Its worker's process died once (of at most 3) while it ran."),
    ((2, 3, True), "Its worker's process died 2 times (of at most 3) while it ran, so it runs alone next time."),
    # Of its last attempt:
    ((1, 3, True), "Its worker's process died once (of at most 3) while it ran, so it runs alone next time."),
    ((1, 0, True), "Its worker's process died once while it ran, so it runs alone next time."),
]


@pytest.mark.parametrize(("facts", "said"), DIED)
def test_it_is_said_how_often_its_process_died_and_whether_it_runs_alone(
    facts: tuple[int, int, bool], said: str
) -> None:
    lost, most, alone = facts
    why = Why("ada/a", "ready", 0, lost_leases=lost, max_lost_leases=most, runs_alone=alone)
    assert list(say_why(why))[1:] == [said]
