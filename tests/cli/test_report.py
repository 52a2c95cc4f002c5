"""`fairq tenants report`."""

from __future__ import annotations

import pytest
from attrs import asdict

from fairq.cli.report import show_report
from fairq.model.history import PERIODS, TenantTotals
from fairq.model.waiting import WAIT_CAUSES, Part, Report

from .harness import Commands, ServerThread

NOTHING = "no task of ada in emails was started in the last 5 minutes\n"


def test_a_report_of_nothing_says_so(commands: Commands) -> None:
    commands.enqueue("emails", "1", name="bob")
    done = commands("tenants", "report", "emails", "ada")
    assert (done.code, done.out) == (0, NOTHING)
    found = commands("tenants", "report", "emails", "ada", "--json").json
    assert found == {
        **asdict(Report("ada")),
        "history": {each: {**asdict(TenantTotals()), "contested": 0.0, "contested_part": None} for each in PERIODS},
    }


def test_what_it_did_in_the_last_hours_is_reported_at_all_servers(commands: Commands, server: ServerThread) -> None:
    commands.enqueue("emails", "1")
    commands.enqueue("emails", "2")
    server.call(server.served.app.recorder.flush)
    out = commands("tenants", "report", "emails", "ada").out
    assert "ada in emails, at all servers" in out
    for period in PERIODS:
        (line,) = (line for line in out.splitlines() if f"│ {period} " in line)
        assert line.split("│")[2].strip() == "2"


def test_every_reason_has_a_row_in_words(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [Part(cause, 1 / 7, 5, 50) for cause in WAIT_CAUSES]
    report = Report("ada", 9, 40, 1234, parts, 1.5, 2.0, 0.25, 60_000, 2)
    monkeypatch.setattr("fairq.cli.report.run_with", lambda server, work: (report, {}))
    show_report(None, "emails", "ada", json=False)
    out = capsys.readouterr().out
    assert "what 9 tasks of ada in emails waited for" in out
    assert "1,234" in out
    for cause in WAIT_CAUSES:
        assert any(cause in line and "14.3" in line for line in out.splitlines()), cause
    assert "2 servers did not answer: what they started is missing\n" in out
    found = "share: 1.5 delivered in the last 60 s: 1.25 contested, where 2 was due, and 0.25 free\n"
    assert out.endswith(found)
