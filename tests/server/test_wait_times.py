"""The parts of a waiting time: they sum to it, whatever happened; and a claim's leases are noted at little cost."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fairq.model.tasks import Lease
from fairq.model.waiting import WAIT_CAUSES, BlockedInterval, Part, WaitCause
from fairq.server.engine.stats.wait_times import (
    MAX_INTERVALS,
    MAX_TENANTS,
    MAX_WAITS,
    PERIOD_MS,
    WaitTimes,
    percentile,
    split,
    summarize,
)

TIMES = st.integers(0, 1000)
SPANS = st.lists(st.builds(BlockedInterval, st.just("ada"), st.sampled_from(WAIT_CAUSES[:5]), TIMES, TIMES), max_size=8)


def lease(ready: int, tenant: str = "ada", *, attempt: int = 1, start: int = 0) -> Lease:
    """A lease of a task that was enqueued at a time, and was to start at another."""
    return Lease("t", 70, attempt, 5, tenant, ready, start, 0, b"1")


def causes_of(wait_times: WaitTimes, now: int = 0, tenant: str = "ada") -> list[dict[WaitCause, int]]:
    """The parts that took any time, of each start."""
    return [{cause: ms for cause, ms in parts.items() if ms} for parts in wait_times.parts(tenant, now)]


def served() -> WaitTimes:
    """WaitTimes of a queue that has had a worker from the beginning."""
    wait_times = WaitTimes()
    wait_times.claimed(0, [], [])
    return wait_times


@settings(max_examples=40)
@given(TIMES, TIMES, TIMES, SPANS)
def test_parts_sum_to_the_waiting_time(begin: int, end: int, last: int, intervals: list[BlockedInterval]) -> None:
    parts = split(begin, end, last, intervals)
    assert sum(parts.values()) == max(0, end - begin)
    assert min(parts.values()) >= 0
    for cause in WAIT_CAUSES[:5]:
        longest = sum(max(0, min(s.end, end) - max(s.begin, begin)) for s in intervals if s.cause == cause)
        assert parts[cause] <= longest


@settings(max_examples=20)
@given(st.lists(st.tuples(TIMES, TIMES, SPANS), min_size=1, max_size=20))
def test_parts_sum_to_the_waiting_time_of_any_claims(claims: list[tuple[int, int, list[BlockedInterval]]]) -> None:
    wait_times, wholes = WaitTimes(), []
    for now, waited, intervals in sorted(claims, key=lambda claim: claim[0]):
        causes_of = [each for each in intervals if each.begin <= each.end <= now]
        wait_times.claimed(1000 + now, [lease(1000 + now - waited)], causes_of)
        wholes.append(waited)
    assert [sum(parts.values()) for parts in wait_times.parts("ada", 2000)] == wholes


def test_what_a_tenant_waits_for_behind_its_own_start_is_share_and_before_it_backlog() -> None:
    wait_times = served()
    wait_times.claimed(100, [lease(40)], [])
    wait_times.claimed(300, [lease(50), lease(60)], [])
    assert causes_of(wait_times) == [{"share": 60}, {"backlog": 50, "share": 200}, {"backlog": 240}]


def test_waiting_time_begins_with_the_start_and_later_attempts_have_none() -> None:
    wait_times = served()
    wait_times.claimed(100, [lease(10, start=90), lease(20, attempt=2), lease(30, start=5)], [])
    assert causes_of(wait_times) == [{"share": 10}, {"backlog": 70}]


def test_what_kept_the_tenant_out_goes_before_the_rest() -> None:
    wait_times = served()
    wait_times.claimed(1000, [lease(0)], [BlockedInterval("ada", "max_running", 200, 900)])
    again = [BlockedInterval("ada", "max_running", 200, 900)]
    wait_times.claimed(1100, [lease(0)], again)  # it counts once
    assert causes_of(wait_times) == [
        {"max_running": 700, "share": 300},
        {"max_running": 700, "backlog": 300, "share": 100},
    ]


def test_times_of_one_cause_that_follow_each_other_are_one() -> None:
    wait_times = served()
    for n in range(200):
        wait_times.claimed(n * 200 + 199, [lease(0)], [BlockedInterval("ada", "rate", n * 200, n * 200 + 198)])
    assert causes_of(wait_times)[-1]["rate"] == 199 * 200 + 198


def test_the_time_without_a_worker_is_nobodys() -> None:
    wait_times = WaitTimes()
    wait_times.claimed(100, [lease(40)], [])
    wait_times.left(200)
    wait_times.claimed(500, [lease(150)], [])
    assert causes_of(wait_times) == [{"no_worker": 60}, {"no_worker": 300, "share": 50}]


def test_the_time_for_which_claims_saw_the_queue_blocked_is_that() -> None:
    wait_times = served()
    for now in (100, 200, 300):
        wait_times.claimed(now, [], [BlockedInterval("", "paused", now, now)])
    wait_times.claimed(400, [], [BlockedInterval("", "closed", 400, 400)])
    wait_times.claimed(500, [lease(50)], [])
    assert causes_of(wait_times) == [{"paused": 300, "closed": 100, "share": 50}]


def test_what_is_kept_has_bounds() -> None:
    wait_times = served()
    for n in range(MAX_TENANTS + 50):
        wait_times.claimed(n, [lease(n, f"t{n}")], [])
    assert list(wait_times._rows) == [f"t{n}" for n in range(50, MAX_TENANTS + 50)]
    for n in range(MAX_WAITS + 50):
        wait_times.claimed(n * 1000, [lease(n)], [BlockedInterval("ada", "max_running", n * 1000, n * 1000 + 500)])
    assert len(wait_times.parts("ada", 0)) == MAX_WAITS
    assert len(wait_times._rows["ada"].intervals) == MAX_INTERVALS
    assert len(wait_times.parts("ada", (MAX_WAITS + 49) * 1000 + PERIOD_MS - 5000)) == 5


def test_a_summary_names_what_took_time() -> None:
    wait_times = served()
    wait_times.claimed(1000, [lease(0)], [BlockedInterval("ada", "max_running", 0, 750)])
    wait_times.claimed(2000, [lease(1000)], [])
    max_running, share = summarize(wait_times.parts("ada", 2000))
    assert max_running == Part("max_running", 0.375, 0, 750)
    assert share == Part("share", 0.625, 250, 1000)
    assert summarize([]) == []
    assert [percentile(range(1, 101), p) for p in (1, 50, 99)] == [1, 50, 99]


def test_to_note_a_start_costs_little() -> None:
    wait_times, leases = served(), [lease(n, f"t{n % 50}") for n in range(100)]
    wait_times.claimed(100, leases, [])
    lines = 0

    def count(frame: object, event: str, arg: object) -> Callable[..., Any]:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        wait_times.claimed(200, leases, [])
    finally:
        sys.settrace(before)
    assert 100 < lines < 100 * 15, "a dozen lines for a lease, however many there were before"
