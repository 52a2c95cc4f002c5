"""The load test's purge: all tasks go, the quiet tenant's are all measured, ratios are to the rounds without."""

from __future__ import annotations

from loadtest.purge import row_of, table


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
