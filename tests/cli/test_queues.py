"""`fairq queues`: who made a queue, and how one is deleted."""

from __future__ import annotations

from .harness import Commands, check_error
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
