"""The arithmetic of the load test."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from loadtest.figures import Lag, judge, lags, percentile, read_records, share_error, spread


def test_percentile_is_the_nearest_rank() -> None:
    found = [percentile([7, 1, 10, 4, 2, 9, 3, 8, 6, 5], percent) for percent in (0, 50, 90, 99, 100)]
    assert found == [1, 5, 9, 10, 10]


def test_percentile_of_nothing_is_nan() -> None:
    assert math.isnan(percentile([], 50))
    assert math.isnan(spread([])["max"])


def test_lag_is_the_due_less_what_was_served() -> None:
    assert lags({"a": 1, "b": 3}, {"a": 4, "b": 4}) == {"a": -2, "b": 2}


def test_lag_sums_up_sizes_whether_behind_or_ahead() -> None:
    assert Lag.of({"a": 1, "b": 1, "c": 2}, {"a": 3, "b": 1, "c": 4}) == Lag(dispatches=8, max=1, mean=0.667)


def test_share_error_is_relative_to_the_due() -> None:
    assert share_error({"a": 1, "b": 1}, {"a": 51, "b": 49}) == pytest.approx(0.02)
    assert share_error({"a": 9, "b": 1}, {"a": 89, "b": 11}) == pytest.approx(0.1)
    assert share_error({"a": 1, "b": 1}, {"a": 3}) == pytest.approx(1)
    assert math.isnan(share_error({"a": 1}, {}))


def test_all_tasks_run_once_is_clean() -> None:
    verdict = judge(["a", "b"], ["b", "a"])
    assert verdict.is_clean
    assert str(verdict) == "2 tasks, each exactly once"


def test_verdict_names_lost_duplicated_and_strange_ids() -> None:
    verdict = judge(["a", "b", "c"], ["a", "a", "c", "x"])
    assert not verdict.is_clean
    assert (verdict.lost, verdict.duplicated, verdict.strange) == (["b"], ["a"], ["x"])
    assert str(verdict) == "1 lost: b; 1 duplicated: a; 1 strange: x"


def test_tasks_left_in_the_queue_are_not_lost() -> None:
    assert judge(["a", "b", "c"], ["a"], left=2).is_clean
    assert judge(["a", "b", "c"], ["a"], left=1).lost == ["c"]


def test_records_are_read_as_the_handlers_write_them(tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.write_text("id-1 acme 1.50 1000.00 5.125\n")
    [record] = read_records(path)
    assert (record.id, record.tenant, record.dwell_ms, record.worked_ms) == ("id-1", "acme", 1.5, 5.125)
