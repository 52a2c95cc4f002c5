"""The fairness cases: what arrives follows from the data alone."""

from __future__ import annotations

from collections import Counter

from loadtest.cases import BOUNDS, CASES, CREDIT, WAY_MS, AtOnce, Case, Period, Poisson, Stream, arrivals, scaled


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


def test_random_arrivals_keep_their_rate_and_differ_between_tenants() -> None:
    streams = (Stream("a", Poisson(50.0), (1,)), Stream("b", Poisson(50.0), (1,)))
    come = arrivals(Case("two", "", streams), 100.0)
    per_tenant = Counter(arrival.tenant for arrival in come)
    assert all(4_500 < count < 5_500 for count in per_tenant.values())
    assert len({arrival.at for arrival in come}) == len(come)


def test_scaled_case_has_all_times_multiplied() -> None:
    whole = Case("c", "", (Stream("t", AtOnce(0.5, at=0.5), (20, 40)),), period=Period(8.0, 0.5, {"t": 1.0}))
    small = scaled(whole, 0.1)
    assert small.streams[0].lengths_ms == (2, 4)
    assert small.period == Period(0.8, 0.5, {"t": 1.0})
    assert [arrival.at for arrival in arrivals(small, 0.8)] == [0.4]
