"""The load test's purge: all tasks go, the quiet tenant's are all measured, ratios are to the rounds without."""

from __future__ import annotations

import math
from pathlib import Path

import trio

from loadtest.purge import Sizes, measure, row_of, table
from loadtest.report import Progress

SMALL = Sizes(tasks=700, seconds=0.1, limit=60.0)


async def test_a_quiet_tenant_is_measured_while_all_tasks_of_another_are_purged(tmp_path: Path) -> None:
    with trio.fail_after(120):
        row, verdicts = await measure(tmp_path / "purge", Progress(), SMALL, fsync="everysec")
    assert row["tasks"] == 700
    assert row["seconds"] > 0
    assert set(row["figures"]) == {"start", "reply"}
    for told in row["figures"].values():
        assert all(0 < value < math.inf for side in told.values() for value in side.values())
    (verdict,) = verdicts.values()
    assert verdict.is_clean
    assert verdict.expected > 20, "of the warm-up and of three rounds"


def test_percentiles_are_told_as_parts_of_those_without_a_purge() -> None:
    row = row_of(1_000, 2.0, {"start": [1.0] * 98 + [4.0] * 2}, {"start": [2.0] * 98 + [5.0] * 2})
    assert row["figures"]["start"] == {
        "without": {"p50": 1.0, "p99": 4.0}, "purge": {"p50": 2.0, "p99": 5.0}, "of_without": {"p50": 2.0, "p99": 1.25},
    }  # fmt: skip
    shown = table(row)
    assert "1,000 waiting tasks" in shown.title
    assert "2 s (500/s)" in shown.title
    assert shown.rows == [["start", 1.0, 4.0, 2.0, 5.0, 2.0, 1.25]]
    assert len(shown.headings) == len(shown.rows[0])
