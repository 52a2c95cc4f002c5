"""`fairq tenants report`."""

from __future__ import annotations

import pytest
from attrs import asdict

from fairq.cli.report import show_report
from fairq.model.waiting import WAIT_CAUSES, Part, Report

from .harness import Commands

NOTHING = "the server that was asked has started no task of ada in emails in the last 5 minutes; others may have\n"


def test_a_report_of_nothing_says_so(commands: Commands) -> None:
    commands.enqueue("emails", "1")
    done = commands("tenants", "report", "emails", "ada")
    assert (done.code, done.out) == (0, NOTHING)
    found = commands("tenants", "report", "emails", "ada", "--json").json
    assert found == asdict(Report("ada"))


def test_every_reason_has_a_row_in_words(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [Part(cause, 1 / 7, 5, 50) for cause in WAIT_CAUSES]
    report = Report("ada", 9, 40, 1234, parts, 1.5, 2.0, 60_000)
    monkeypatch.setattr("fairq.cli.report.run_with", lambda server, work: report)
    show_report(None, "emails", "ada", json=False)
    out = capsys.readouterr().out
    assert "what 9 tasks of ada in emails waited for" in out
    assert "1,234" in out
    for cause in WAIT_CAUSES:
        assert any(cause in line and "14.3" in line for line in out.splitlines()), cause
    assert out.endswith("share: 1.5 delivered, 2 entitled, in the last 60 s\n")
