"""The arithmetic of the cases with a period, on queues that were made up."""

from __future__ import annotations

import pytest

from loadtest.bounds import Bound, bounds_of
from loadtest.cases import AtOnce, Case, Period, Stream
from loadtest.figures import Record
from loadtest.scorecard import Account, Sample

CASE = Case(
    "case", "", (Stream("own", AtOnce(0.5)), Stream("other", AtOnce(0.5))), period=Period(10.0, 0.2, {"own": 4.0})
)


def look(at: float, own: float, other: float, *, ready: int = 9, own_ready: int = 9) -> Sample:
    """Make a look at the two tenants, who had so much worker time."""
    return Sample(at, {"own": Account(1, own_ready, 5, 0, own, 0), "other": Account(1, ready, 5, 0, other, 0)})


def record(tenant: str, started_ms: float, worked_ms: float) -> Record:
    """Make a record of a start."""
    return Record(f"{tenant}-{started_ms}", tenant, 1.0, started_ms, worked_ms)


LOOKS = [look(0, 9, 1), look(2, 10, 10), look(6, 20, 40), look(10, 42, 58), look(12, 70, 70)]
STARTS = [record("own", 5_500, 1_000), record("own", 7_500, 100), record("other", 6_500, 1_000)]
WAY_MS = 1000 * (140 - 2.1) / 3


def test_slots_are_parts_of_the_worker_time_in_the_window() -> None:
    found = bounds_of(CASE, LOOKS, STARTS, 5_000)
    assert (found.began_s, found.window_s, found.longest_gap_s, found.ran_dry) == (2, 8, 4, [])
    assert [(bound.tenant, bound.due, bound.got) for bound in found.tenants] == [("own", 4, 4)]
    assert found.holds


def test_slack_is_three_of_the_longest_leases_that_ran_in_the_window() -> None:
    found = bounds_of(CASE, LOOKS, STARTS, 5_000)
    assert found.longest_ms == pytest.approx(100 + WAY_MS + 900, abs=0.1)  # one ended before the period began
    assert found.tenants[0].slack == pytest.approx(3 * found.longest_ms / 8_000, abs=0.001)
    assert found.tenants[0].tasks == 1


def test_window_begins_when_all_have_ready_tasks() -> None:
    late = [look(0, 9, 1), look(2, 10, 10, own_ready=0), *LOOKS[2:]]
    found = bounds_of(CASE, late, STARTS, 5_000)
    assert (found.began_s, found.window_s) == (6, 4)
    assert found.tenants[0].got == 5.5


def test_case_in_which_a_tenant_runs_out_of_tasks_says_nothing() -> None:
    dry = [*LOOKS[:3], look(10, 42, 58, ready=0), LOOKS[4]]
    found = bounds_of(CASE, dry, STARTS, 5_000)
    assert (found.ran_dry, found.holds) == (["other"], False)
    never = bounds_of(CASE, [look(at, 1, 1, ready=0) for at in (2, 6, 10)], STARTS, 5_000)
    assert (never.ran_dry, never.tenants, never.holds) == (["own", "other"], [], False)


def test_bound_is_on_both_sides() -> None:
    for got, is_kept in ((3.4, False), (3.6, True), (4.5, True), (4.6, False)):
        assert Bound("own", got, 4.0, 0.5, 1).is_kept == is_kept, got
