"""The load test's dashboard: all places are opened and told, a place that is refused fails the run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import trio

from fairq.server.web.dashboard.pages import PAGES
from loadtest.dashboard import QUICK, Sizes, places, run, tables
from loadtest.report import Progress


@pytest.mark.deep("fairness")
async def test_every_place_is_opened_and_the_quiet_tenant_measured(tmp_path: Path) -> None:
    with trio.fail_after(180):
        part = await run(tmp_path, Progress(), quick=True, fsync="everysec")
    assert [row["name"] for row in part["pages"]] == list(places(QUICK))
    assert all(0 < row["p50"] <= row["p95"] <= row["max"] < math.inf for row in part["pages"])
    assert set(part["figures"]) == {"start", "reply"}
    assert part["opened"] > 0
    assert min(part["cores"].values()) >= 0
    assert all(verdict.is_clean for verdict in part["verdicts"].values()), part["verdicts"]
    assert part["verdicts"]["dashboard, the crowd"].expected == QUICK.tenants + QUICK.delayed
    for table in tables(part):
        assert all(len(row) == len(table.headings) for row in table.rows)


def test_every_page_of_the_dashboard_is_among_the_places() -> None:
    opened = [path.partition("?")[0] for path in places(Sizes()).values()]
    missing = {(prefix, page.gather) for page in PAGES for prefix in ("", "/live") if page.is_live or not prefix}
    for page in PAGES:  # some have a second path, for names that a path cannot have
        for prefix in ("", "/live"):
            if any(_fits(path.split("/"), (prefix + page.path).split("/")) for path in opened):
                missing.discard((prefix, page.gather))
    assert not missing


def _fits(path: list[str], wanted: list[str]) -> bool:
    rest = wanted and wanted[-1].endswith(":path}")
    if len(path) != len(wanted) and not (rest and len(path) > len(wanted)):
        return False
    return all(want.startswith("{") or part == want for part, want in zip(path, wanted, strict=False))
