"""`fairq why` and what it says."""

from __future__ import annotations

from typing import get_args

import pytest

from fairq.model.checks import MAX_TIME_MS
from fairq.model.texts import say_moment
from fairq.model.waiting import Cause, Why
from fairq.model.why_text import say_why
from tests.server.harness import tenant

from .harness import Commands


@pytest.mark.parametrize("state", ["ready", "pending", "delayed"])
def test_every_cause_is_said_in_words(state: str) -> None:
    for cause in get_args(Cause):
        text = "\n".join(say_why(Why("ada/t", state, 0, [cause], 35_000, 34_000, 7, True, 3, 2, 2, 0.25, 8, 2, 1, 0.5)))
        assert text.startswith(f"ada/t is {state}, and waits:\n- ")
        assert text.endswith("It may start 1970-01-01 00:00:35 UTC (in 35 s), if nothing changes.")
        assert "_" not in text


def test_a_start_after_the_last_year_is_said() -> None:
    lines = list(say_why(Why("ada/t", "delayed", 0, ["start"], MAX_TIME_MS, MAX_TIME_MS, 7)))
    assert lines[1].startswith("- its start time has not come until 9999-12-31 23:59:59 UTC")
    assert say_moment(MAX_TIME_MS) == "9999-12-31 23:59:59+00:00"


def test_of_groups_it_is_said_that_they_take_turns() -> None:
    lines = list(say_why(Why("ada/t", "ready", 0, ["backlog"], ahead=12, is_ahead_exact=True, group_ahead=3, groups=4)))
    assert lines[1] == "- 12 other tasks of its tenant come before it; 3 of its own group, one of 4 that take turns"


def test_of_kept_slots_it_is_said_how_many_they_are() -> None:
    lines = list(say_why(Why("ada/t", "ready", 0, ["reserve"], kept=2, kept_of=10)))
    assert lines[1] == "- 2 of 10 slots are kept for tenants with nothing running"


def test_why_is_said_for_people_and_for_scripts(commands: Commands) -> None:
    ada = tenant("ada")
    commands("enqueue", "emails", "1", "--id", "first", token=ada)
    commands("enqueue", "emails", "1", "--id", "t", token=ada)
    commands("tenants", "pause", "emails", "ada")
    assert commands("why", "emails", "ada/t").out.splitlines() == [
        "ada/t is ready, and waits:",
        "- its tenant is paused until an operator resumes it",
        "- no worker is attached to the queue",
        "- 1 other task of its tenant comes before it",
        "Its start cannot be estimated.",
    ]
    found = commands("why", "emails", "t", "--json", token=ada).json
    assert found["causes"] == ["tenant_paused", "no_worker", "backlog"]
    commands("tasks", "cancel", "emails", "ada/t")
    assert commands("why", "emails", "ada/t").out == "ada/t is cancelled: it does not wait.\n"
    missing = commands("why", "emails", "ada/none")
    assert (missing.code, len(missing.err.splitlines())) == (1, 1)
