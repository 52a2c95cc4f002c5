"""The fairness cases: what arrives follows from the data alone."""

from __future__ import annotations

from collections import Counter

import pytest

from loadtest.cases import (
    BOUNDS,
    CASES,
    CREDIT,
    WAY_MS,
    AtOnce,
    Case,
    Period,
    Poisson,
    Stream,
    Trickle,
    arrivals,
    scaled,
)


def one(stream: Stream) -> Case:
    """Make a case of one stream."""
    return Case("one", "", (stream,))


def test_cases_have_names_of_their_own_and_windows_in_which_all_of_their_tenants_have_come() -> None:
    assert len({case.name for case in (*CASES, *BOUNDS)}) == len(CASES) + len(BOUNDS)
    for case in BOUNDS:
        assert case.period, case.name
        assert case.period.seconds <= 40, case.name
        come = {arrival.tenant for arrival in arrivals(case, 10.0) if arrival.at <= 10.0 * case.period.begins}
        assert come == {*case.backlogged, *case.quiet}, case.name
        assert set(case.period.due) <= set(case.backlogged), case.name
        assert 0 < sum(case.period.due.values()) <= CREDIT + 1e-9, case.name


def test_arrivals_are_the_same_each_time_and_in_order() -> None:
    for case in (*CASES, *BOUNDS):
        come = arrivals(case, 3.0)
        assert come == arrivals(case, 3.0), case.name
        assert [arrival.at for arrival in come] == sorted(arrival.at for arrival in come), case.name
        assert {arrival.tenant for arrival in come} >= set(case.backlogged), case.name


def test_work_fills_all_slots_for_the_length_of_the_case() -> None:
    [arrival] = arrivals(one(Stream("t", AtOnce(1.0), (20, 40))), 5.0)
    assert len(arrival.lengths_ms) == round(5.0 * CREDIT * 1000 / (30 + WAY_MS))
    assert arrival.lengths_ms[:3] == [20, 40, 20]


def test_connections_share_a_tenants_tasks() -> None:
    come = arrivals(one(Stream("t", AtOnce(1.0), connections=3)), 1.0)
    assert [arrival.connection for arrival in come] == [0, 1, 2]
    whole = arrivals(one(Stream("t", AtOnce(1.0))), 1.0)
    assert sum(len(arrival.lengths_ms) for arrival in come) == len(whole[0].lengths_ms)


def test_burst_comes_late_and_a_herd_is_due_late() -> None:
    [burst] = arrivals(one(Stream("t", AtOnce(0.1, at=0.25))), 8.0)
    [herd] = arrivals(one(Stream("t", AtOnce(0.1, due=0.25))), 8.0)
    assert (burst.at, burst.delay) == (2.0, 0.0)
    assert (herd.at, herd.delay) == (0.0, 2.0)


def test_random_arrivals_keep_their_rate_and_differ_between_tenants() -> None:
    streams = (Stream("a", Poisson(50.0), (1,)), Stream("b", Poisson(50.0), (1,)))
    come = arrivals(Case("two", "", streams), 100.0)
    per_tenant = Counter(arrival.tenant for arrival in come)
    assert all(4_500 < count < 5_500 for count in per_tenant.values())
    assert len({arrival.at for arrival in come}) == len(come)


def test_what_trickles_is_not_foreseen() -> None:
    case = one(Stream("t", Trickle()))
    assert arrivals(case, 5.0) == []
    assert case.backlogged == case.quiet == []


def test_skew_is_nine_tenths_of_one_tenant() -> None:
    skew = next(case for case in CASES if case.name == "skew")
    tasks = Counter[str]()
    for arrival in arrivals(skew, 10.0):
        if arrival.tenant in skew.backlogged:
            tasks[arrival.tenant] += len(arrival.lengths_ms)
    assert tasks["heavy"] / tasks.total() == pytest.approx(0.9, abs=0.01)


def test_tenants_work_comes_in_two_parts_of_different_lengths() -> None:
    first = Stream("t", AtOnce(at=0.1, tasks=3), (1,), hand_backs=2)
    case = Case("two", "", (first, Stream("t", AtOnce(0.5, at=0.5), (200,))))
    assert case.backlogged == ["t"]
    short, long = arrivals(case, 10.0)
    assert (short.at, short.lengths_ms, short.hand_backs) == (1.0, [1, 1, 1], 2)
    assert (long.at, set(long.lengths_ms), long.hand_backs) == (5.0, {200}, 0)


def test_scaled_case_has_all_times_multiplied() -> None:
    whole = Case("c", "", (Stream("t", AtOnce(0.5, at=0.5), (20, 40)),), period=Period(8.0, 0.5, {"t": 1.0}))
    small = scaled(whole, 0.1)
    assert small.streams[0].lengths_ms == (2, 4)
    assert small.period == Period(0.8, 0.5, {"t": 1.0})
    assert [arrival.at for arrival in arrivals(small, 0.8)] == [0.4]


def test_heavy_tail_is_due_by_weight() -> None:
    [case] = [case for case in BOUNDS if case.name == "heavy-tail"]
    assert case.period
    assert sum(case.period.due.values()) == pytest.approx(CREDIT)
    assert case.period.due["2-ms"] == 2 * case.period.due["1-ms"]
    longest = next(stream for stream in case.streams if stream.tenant == "2000-ms").lengths_ms
    assert 1_500 <= min(longest) < 1_700
    assert 2_300 < max(longest) <= 2_500
