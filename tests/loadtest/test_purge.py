"""The load test's purge: all tasks go, the quiet tenant's are all measured, ratios are to the rounds without."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import trio

import loadtest.__main__ as program
from loadtest.processes import RunFailed
from loadtest.purge import QUICK, VARIABLE, Purge, Sizes, measure, row_of, sizes_of, table
from loadtest.report import Progress
from loadtest.scenarios import SCENARIOS, Scenario

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


@pytest.mark.deep("fairness")
async def test_a_purge_that_leaves_tasks_fails_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(purge: Purge) -> None:
        purge.seconds = 1.0

    monkeypatch.setattr(Purge, "run", nothing)
    with trio.fail_after(120), pytest.raises(RunFailed, match="purge: 0 of 700 tasks were cancelled"):
        await measure(tmp_path / "purge", Progress(), SMALL, fsync="everysec")


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


def test_how_many_tasks_are_purged_can_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert (sizes_of(quick=False), sizes_of(quick=True)) == (Sizes(), QUICK)
    monkeypatch.setenv(VARIABLE, "1000000")
    assert sizes_of(quick=False) == Sizes(tasks=1_000_000)
    assert sizes_of(quick=True).tasks == 1_000_000


async def test_the_option_reaches_the_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    found: list[int] = []

    async def run(*_: object, quick: bool, **__: object) -> dict[str, Any]:
        found.append(sizes_of(quick=quick).tasks)
        raise RunFailed("not today")

    monkeypatch.setattr(program, "SCENARIOS", {"features": Scenario(run, SCENARIOS["features"].tables)})
    assert await program.main(program.arguments_of(["features", "--purge-tasks", "1234"])) == 1
    assert found == [1234]


def test_a_number_of_tasks_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("0", "-1", "1.5", "many", ""):
        with pytest.raises(SystemExit, match=r"^2$"):
            program.arguments_of(["features", "--purge-tasks", text])
        assert "--purge-tasks" in capsys.readouterr().err, text
