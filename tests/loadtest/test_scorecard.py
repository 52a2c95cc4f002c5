"""The scorecard's arithmetic, on queues that were made up."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from loadtest.figures import Record
from loadtest.scorecard import Account, Contest, Sample, Score, contests, counts, follows_after, jain, max_lag


def account(delivered: float, entitled: float, *, ready: int = 9, weight: float = 1.0, done: int = 0) -> Account:
    """Make an account."""
    return Account(weight, ready, 5, done, delivered, entitled)


def contest(began: float, got: Mapping[str, float], due: Mapping[str, float] | None = None) -> Contest:
    """Make a contest of a second, among equals by default."""
    equal = {name: sum(got.values()) / len(got) for name in got}
    return Contest(began, began + 1, got, due or equal, dict.fromkeys(got, 1.0))


def test_contest_is_between_those_who_had_ready_tasks_at_both_looks() -> None:
    first = Sample(0.0, {"a": account(0, 0), "b": account(0, 0), "dry": account(0, 0)})
    second = Sample(1.0, {"a": account(3, 2), "b": account(1, 2), "dry": account(1, 1, ready=0)})
    [met] = contests([first, second], ["a", "b", "dry"])
    assert (met.got, met.due) == ({"a": 3, "b": 1}, {"a": 2, "b": 2})


def test_due_is_a_part_of_what_the_contestants_got_in_proportion_to_their_entitlement() -> None:
    first = Sample(0.0, {"a": account(0, 0), "b": account(0, 0)})
    second = Sample(1.0, {"a": account(2, 3), "b": account(2, 1)})  # a quiet tenant got the rest
    [met] = contests([first, second], ["a", "b"])
    assert met.due == {"a": 3, "b": 1}


def test_jain_is_one_when_fair_and_one_nth_when_one_has_all() -> None:
    assert jain([1.0, 1.0, 1.0]) == pytest.approx(1)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert math.isnan(jain([]))


def test_lag_adds_up_and_spans_from_ahead_to_behind() -> None:
    ahead, behind = contest(0, {"a": 3, "b": 1}), contest(1, {"a": 0, "b": 4})
    assert max_lag([ahead]) == 1
    assert max_lag([ahead, ahead._replace(began=1, ended=2)]) == 2
    assert max_lag([ahead, behind]) == 2  # one ahead, then two behind from there
    assert max_lag([]) == 0


def test_lag_begins_anew_after_a_tenant_was_not_backlogged() -> None:
    ahead = contest(0, {"a": 3, "b": 1})
    assert max_lag([ahead, ahead._replace(began=5, ended=6)]) == 1


def test_counts_are_starts_within_contests_against_the_weights() -> None:
    met = [Contest(1.0, 2.0, {"a": 0, "b": 0}, {"a": 0, "b": 0}, {"a": 3.0, "b": 1.0})]
    starts = [(0.5, "a"), (1.0, "a"), (1.2, "quiet"), (1.5, "a"), (1.6, "b"), (1.7, "a"), (2.0, "b")]
    assert counts(met, starts) == ({"a": 3, "b": 1}, {"a": 3.0, "b": 1.0})


def record(tenant: str, started_ms: float, worked_ms: float = 10.0, dwell_ms: float = 1.0) -> Record:
    """Make a record of a start."""
    return Record(f"{tenant}-{started_ms}", tenant, dwell_ms, started_ms, worked_ms)


def test_shares_follow_once_a_whole_window_has_them() -> None:
    weights = {"a": 3.0, "b": 1.0}
    old, new = ["b", "b", "b", "a"] * 10, ["a", "quiet", "a", "a", "b"] * 10
    assert follows_after(new, weights, period=8, slack=0) == 0
    assert follows_after(old + new, weights, period=8, slack=0) == 38  # the last two of the old fit
    assert follows_after(old, weights, period=8, slack=0) == -1
    assert follows_after([], weights, period=8) == -1


def test_score_of_a_fair_case() -> None:
    samples = [
        Sample(n / 10, {"a": account(n, n, done=10 * n), "b": account(n, n, done=10 * n), "q": account(0, 0, ready=0)})
        for n in range(11)
    ]
    starts = [record(tenant, 5000 + 10 * n) for n in range(100) for tenant in ("a", "b")]
    starts.append(record("q", 5500, dwell_ms=7.0))
    score = Score.of(samples, ["a", "b"], starts, 5000, ["q"], 20)
    assert (score.contested_s, score.time_error, score.count_error, score.entitled_error) == (1.0, 0, 0, 0)
    assert (score.max_lag, score.lag_unit_ms, score.jain) == (0, 100, 1)
    assert score.of_due == {"a": 1, "b": 1}
    assert (score.quiet_p99_ms, score.makespan_s, score.busy, score.longest_gap_s) == (7, 1.0, 0.75, 0.1)
