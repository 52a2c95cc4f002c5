"""`fairq tenants hours` and `fairq queues hours`: what they say and set, and how they end."""

from __future__ import annotations

import time

from tests.server.harness import daily

from .harness import Commands


def now_ms() -> int:
    return int(time.time() * 1000)


def test_a_tenants_windows_are_set_shown_and_taken_off(commands: Commands) -> None:
    commands.enqueue("emails", "1")
    assert commands("tenants", "hours", "emails", "ada").out == "ada in emails: always open\n"
    shut, wide = daily(now_ms(), 120, 240), daily(now_ms(), -60, 30)
    done = commands("tenants", "hours", "emails", "ada", shut)
    assert done.code == 0, done.err
    text, until = done.out.splitlines()
    assert text == f"ada in emails: {shut}"
    assert until.startswith("  closed until ")
    assert f" {shut.split()[1].split('-')[0]}:00+00:00, for 1 h 5" in until or "2 h 0 min" in until
    assert commands("tenants", "hours", "emails", "ada").out.startswith(f"{text}\n  closed until ")
    assert "  open until " in commands("tenants", "hours", "emails", "ada", wide).out
    assert commands("tenants", "hours", "emails", "ada", "--always").out == "ada in emails: always open\n"


def test_times_are_those_of_the_windows_zone_and_texts_are_reported_as_they_are_kept(commands: Commands) -> None:
    done = commands("queues", "hours", "emails", "Mon-Fri 9:00 - 17:00 , sat 9:00-12:00  Asia/Kathmandu")
    text, until = done.out.splitlines()
    assert text == "all of emails: mon-fri 09:00-17:00, sat 09:00-12:00 Asia/Kathmandu"
    assert ":00:00+05:45, for " in until


def test_a_queues_windows_are_set_and_shown_with_its_tenants(commands: Commands) -> None:
    commands.enqueue("emails", "1")
    assert commands("queues", "hours", "emails").out == "all of emails: always open\n"
    shut, wide = daily(now_ms(), 120, 240), daily(now_ms(), -60, 30)
    commands("queues", "hours", "emails", shut)
    commands("tenants", "hours", "emails", "ada", wide)
    output = commands("tenants", "hours", "emails", "ada").out.splitlines()
    assert [output[0], output[2]] == [f"ada in emails: {wide}", f"all of emails: {shut}"]
    assert ["open" in output[1], "closed" in output[3]] == [True, True]
    found = commands("tenants", "hours", "emails", "ada", "--json").json
    assert [(row["of"], row["text"], row["is_open"]) for row in found["opening_hours"]] == [
        ("queue", shut, False), ("tenant", wide, True),
    ]  # fmt: skip
    assert all(0 < row["changes_at_ms"] - found["now_ms"] <= 7_200_000 for row in found["opening_hours"])
    (row,) = commands("queues", "hours", "emails", "--json").json["opening_hours"]
    assert row["of"] == "queue"


def test_lists_show_who_is_closed(commands: Commands) -> None:
    commands.enqueue("emails", "1", name="ada")
    commands.enqueue("emails", "2", name="bob")
    commands("tenants", "hours", "emails", "bob", daily(now_ms(), 120, 240))
    rows = {row["tenant"]: row["is_closed"] for row in commands("tenants", "list", "emails", "--json").json}
    assert rows == {"ada": False, "bob": True}
    table = commands("tenants", "list", "emails").out.splitlines()
    assert ["yes" in line for line in table if "ada" in line or "bob" in line] == [False, True]
    assert "closed" in "".join(table)
    assert "yes" not in commands("queues", "list").out
    commands("queues", "hours", "emails", daily(now_ms(), 120, 240))
    assert "yes" in commands("queues", "list").out
