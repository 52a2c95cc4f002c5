"""`fairq queues`: who made a queue, and how one is deleted."""

from __future__ import annotations

import re

import pytest

from fairq.model.places import partition_of
from fairq.store.partitions import place_in, places_of
from tests.server.harness import lose, tenant

from .harness import TIMEOUTS, Commands, ServerThread, bury, check_error
from .test_commands import lines


def test_the_list_says_who_made_a_queue(commands: Commands) -> None:
    commands.enqueue("emails", "1")
    assert commands("queues", "set", "ours", "lease_ms=1000").code == 0
    rows = {row["queue"]: row["made_by"] for row in commands("queues", "list", "--json").json}
    assert rows == {"emails": "ada", "ours": ""}
    table = "\n".join(lines(commands("queues", "list")))
    assert "made by" in table
    assert "ada" in table


def test_a_queue_that_is_not_empty_is_deleted_with_purge_only(commands: Commands) -> None:
    for delay in ("0", "60", "60"):
        commands.enqueue("emails", "1", "--delay", delay)
    check_error(commands("queues", "delete", "emails"), 1, "queue emails is not empty: 1 ready, 2 delayed")
    done = commands("queues", "delete", "emails", "--purge", "--yes")
    assert (done.code, done.out) == (0, "emails: deleted, with 1 ready, 2 delayed\n")
    assert commands("queues", "list", "--json").json == []
    check_error(commands("queues", "delete", "emails", "--purge", "--yes"), 1, "there is no queue emails")


def test_an_empty_queue_is_deleted(commands: Commands) -> None:
    commands("queues", "set", "emails", "lease_ms=1000")
    assert commands("queues", "delete", "emails").out == "emails: deleted\n"
    commands.enqueue("emails", "1")
    done = commands("queues", "delete", "emails", "--purge", "--yes", "--json")
    assert (done.code, done.json) == (0, {"queue": "emails", "contents": {"ready": 1}})


def test_partitions_are_shown_with_their_primary_and_its_cpu(commands: Commands) -> None:
    assert commands("queues", "set", "imports", "partitions=3").code == 0
    for n in range(9):
        commands.enqueue("imports", "1", name=f"t{n}")
    rows = commands("queues", "show", "imports", "--json").json["places"]
    assert [(row["ready"] > 0, row["store_cpu_s"] > 0, row["lag_s"]) for row in rows] == [(True, True, 0.0)] * 3
    shown = commands("queues", "show", "imports").out.replace("│", " ")
    for row in rows:
        assert re.search(rf"{row['partition']} +{re.escape(row['primary'])} .* [0-9.]+ %", shown), shown


def test_queues_and_tenants_that_cannot_be_read_are_named(
    commands: Commands, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commands("queues", "set", "imports", "partitions=3").code == 0
    names = [f"t{n}" for n in range(9)]
    for queue in ("imports", "one", "two"):
        for name in names:
            commands.enqueue(queue, "1", name=name)
    server.call(server.served.app.recorder.flush)
    places = places_of("imports", 3)
    here = [name for name in names if place_in(places, name) != places[2]]
    lose(server.served, monkeypatch, places[2], "one")
    said = f"partition {partition_of(places[2])} of imports cannot be read"
    lists = [(argv, "one cannot be read") for argv in (("queues", "list"), ("top",))]
    for argv, of_one in [*lists, (("doctor", "--admin-url", "http://127.0.0.1:1"), "with it these queues: one")]:
        text = " ".join(commands(*argv).out.replace("│", " ").split())
        assert of_one in text, text
        assert said in text, text
    rows = {row["queue"]: row for row in commands("queues", "list", "--json").json}
    assert [(rows[name]["ready"], len(rows[name]["away"])) for name in sorted(rows)] == [(len(here), 1), (0, 1), (9, 0)]
    tenants = commands("tenants", "list", "imports")
    assert said in " ".join(tenants.out.split())
    assert [name for name in names if f" {name} " in tenants.out] == here
    check_error(commands("tenants", "list", "imports", "--json"), 1, said)
    report = commands("tenants", "report", "imports", here[0])
    assert (report.code, said in " ".join(report.out.split())) == (0, True), report
    check_error(commands("tenants", "report", "imports", here[0], "--json"), 1, said)
    check_error(commands("simulate", "imports"), 1, said)
    tries = (commands("queues", "show", "one", "--timeout", seconds) for seconds in TIMEOUTS)
    assert any((done.code, "no connection to the store" in done.err) == (1, True) for done in tries)
    top = commands("top", "--json").json
    assert {row["tenant"] for row in top["tenants"] if row["queue"] == "imports"} <= set(here)
    assert {row["queue"] for row in top["queues"]} == {"imports", "one", "two"}


def test_lists_of_all_tenants_have_what_answers_and_name_the_rest(
    commands: Commands, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert commands("queues", "set", "emails", "partitions=3").code == 0
    names, places = [f"t{n}" for n in range(9)], places_of("emails", 3)
    for name in names:
        bury(server, name, ["a"])
        server.call(server.served.app.store.open_batch, "emails", name, f"{name}/b", 0, [b""] * 3)
        assert commands("schedules", "create", "emails", "s", "1", "--every", "1h", token=tenant(name)).code == 0
    lose(server.served, monkeypatch, places[1])
    said = f"partition {partition_of(places[1])} of emails cannot be read"
    here = [name for name in names if place_in(places, name) != places[1]]
    for what in ("dead", "batches", "schedules"):
        shown = commands(what, "list", "emails")
        assert (shown.code, said in " ".join(shown.out.split())) == (0, True), shown
        assert [name for name in names if f" {name} " in shown.out.replace("│", " ")] == here
        check_error(commands(what, "list", "emails", "--json"), 1, said)
        rows = commands(what, "list", "emails", "--tenant", here[0], "--json").json
        assert [row["tenant"] for row in rows] == here[:1]
    replayed = commands("dead", "replay", "emails", "--all")
    assert (replayed.code, replayed.out, said in replayed.err) == (1, f"replayed: {len(here)}\n", True)
    monkeypatch.undo()
    left = [row["tenant"] for row in commands("dead", "list", "emails", "--json").json]
    assert sorted(left) == [name for name in names if name not in here]
