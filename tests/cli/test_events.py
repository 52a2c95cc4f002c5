"""`fairq events`: what it prints, as text and as JSON, and how it goes on."""

from __future__ import annotations

import signal

import orjson

from tests.server.harness import tenant

from .harness import Commands, Finished, ServerThread, read_until, started


def events(commands: Commands, *argv: str, token: str = "") -> Finished:
    """Run the command as a tenant."""
    return commands("events", "emails", *argv, token=token or tenant("ada"))


def cancelled(commands: Commands, *ids: str) -> None:
    """Make events: tasks that are enqueued and cancelled."""
    for id in ids:
        commands.enqueue("emails", "1", "--id", id, "--events")
        commands("tasks", "cancel", "emails", f"ada/{id}")


def test_a_feed_is_printed_a_line_for_each_event(commands: Commands) -> None:
    assert events(commands).out == ""
    commands.enqueue("emails", "1", "--id", "plain")
    cancelled(commands, "t1", "t2")
    first, second = events(commands).out.splitlines()
    assert first.split("  ")[0] == "1"
    assert first.endswith("+00:00  cancelled  t1")
    assert second.endswith("cancelled  t2")
    assert [orjson.loads(line)["task"] for line in events(commands, "--json").out.splitlines()] == ["t1", "t2"]
    assert [orjson.loads(line)["id"] for line in events(commands, "--json", "--after", "1").out.splitlines()] == [2]


def test_an_operator_names_the_tenant(commands: Commands) -> None:
    cancelled(commands, "t1")
    assert commands("events", "emails", "--tenant", "ada").out.endswith("ada/t1\n")


def test_a_file_of_tasks_and_its_batch_are_reported(commands: Commands, tmp_path: object) -> None:
    path = f"{tmp_path}/lines"
    with open(path, "w") as file:
        file.write("a\nb\n")
    id = commands("enqueue", "emails", "--lines", path, "--text-lines", "--events", token=tenant("ada")).out.strip()
    commands("tasks", "cancel", "emails", f"ada/{id}-1", f"ada/{id}-2")
    rows = [orjson.loads(line) for line in events(commands, "--json").out.splitlines()]
    assert [(row["event"], row.get("task"), row.get("batch")) for row in rows] == [
        ("cancelled", f"{id}-1", None),
        ("cancelled", f"{id}-2", None),
        ("batch_completed", None, id),
    ]


def test_following_prints_what_comes_until_it_is_interrupted(commands: Commands, server: ServerThread) -> None:
    cancelled(commands, "before")
    token = ("--url", server.url, "--token", tenant("ada"))
    with started("events", "emails", "--follow", "--json", *token) as following:
        assert orjson.loads(read_until(following, "before"))["id"] == 1
        cancelled(commands, "meanwhile")
        assert orjson.loads(read_until(following, "meanwhile"))["id"] == 2
        following.send_signal(signal.SIGINT)
        assert following.wait(30) == 130
