"""`fairq schedules`: what it prints, as a table and as JSON, and how it ends."""

from __future__ import annotations

import io
import sys

import pytest

from tests.server.harness import OPERATOR, tenant

from .harness import Commands, Finished

NIGHTLY = ("create", "reports", "nightly", '{"kind": "sales"}', "--cron", "0 3 * * *", "--zone", "Europe/Copenhagen")


def schedules(commands: Commands, *argv: str, token: str = "") -> Finished:
    """Run the command as a tenant."""
    return commands("schedules", *argv, token=token or tenant("ada"))


def test_a_schedule_is_created_and_its_next_three_fires_are_shown(commands: Commands) -> None:
    done = schedules(commands, *NIGHTLY)
    assert done.code == 0, done.err
    head, *fires = done.out.splitlines()
    assert head == "nightly in reports fires next at"
    assert len(fires) == 3
    assert all(" 03:00:00+0" in fire for fire in fires)
    body = schedules(commands, *NIGHTLY, "--json").json
    assert (body["queue"], body["name"], len(body["fires_at"])) == ("reports", "nightly", 3)


def test_schedules_are_listed_paused_resumed_and_removed(commands: Commands) -> None:
    assert "no schedules" in schedules(commands, "list", "reports").out
    schedules(commands, *NIGHTLY, "--misfire", "once")
    schedules(commands, "create", "reports", "pulse", "null", "--every", "90")
    table = schedules(commands, "list", "reports").out
    for words in ("nightly", "0 3 * * *", "Europe/Copenhagen", "once", "pulse", "every 90 s", "skip", "03:00:00+0"):
        assert words in table
    assert "paused" in schedules(commands, "pause", "reports", "pulse").out
    rows = {row["name"]: row for row in schedules(commands, "list", "reports", "--json").json}
    assert (rows["pulse"]["is_paused"], rows["nightly"]["is_paused"]) == (True, False)
    assert (rows["pulse"]["every_ms"], rows["nightly"]["cron"]) == (90_000, "0 3 * * *")
    assert "payload" not in rows["pulse"]
    assert "resumed" in schedules(commands, "resume", "reports", "pulse").out
    assert "removed" in schedules(commands, "remove", "reports", "pulse").out
    assert [row["name"] for row in schedules(commands, "list", "reports", "--json").json] == ["nightly"]


def test_an_operator_names_the_tenant_and_sees_all(commands: Commands) -> None:
    for name in ("ada", "bob"):
        done = schedules(commands, *NIGHTLY, "--tenant", name, token=OPERATOR)
        assert done.code == 0, done.err
    rows = schedules(commands, "list", "reports", "--json", token=OPERATOR).json
    assert sorted(row["tenant"] for row in rows) == ["ada", "bob"]
    assert len(schedules(commands, "list", "reports", "--json", "--tenant", "bob", token=OPERATOR).json) == 1
    assert "removed" in schedules(commands, "remove", "reports", "nightly", "--tenant", "bob", token=OPERATOR).out


def test_a_payload_may_come_from_standard_input(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"from": "stdin"}')))
    assert schedules(commands, "create", "reports", "pulse", "-", "--every", "60", "--dedupe-key", "pulse").code == 0
