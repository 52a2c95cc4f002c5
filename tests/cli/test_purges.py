"""Cancelling all that waits, of a tenant or a queue, and deleting tenants: commands and counts."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from fairq.model.tasks import Settlement
from tests.server.harness import tenant

from .harness import Commands, ServerThread, check_error
from .test_commands import lines


def fill(commands: Commands) -> None:
    """Three tasks of ada, one of them delayed, and one of bob."""
    for more in ((), (), ("--delay", "60")):
        commands.enqueue("emails", "1", *more)
    commands.enqueue("emails", "1", name="bob")


def waiting(commands: Commands) -> dict[str, int]:
    """How many tasks of each tenant wait."""
    rows = commands("tenants", "list", "emails", "--json").json
    return {row["tenant"]: row["ready"] + row["delayed"] for row in rows}


def test_a_tenants_waiting_tasks_are_counted_then_cancelled(commands: Commands) -> None:
    fill(commands)
    done = commands("tenants", "purge", "emails", "ada", "--dry-run")
    assert (done.code, done.out) == (0, "ada in emails: 3 waiting tasks match\n")
    assert waiting(commands) == {"ada": 3, "bob": 1}
    assert commands("tenants", "purge", "emails", "ada", "--yes").out == "cancelled: 3\n"
    assert waiting(commands) == {"ada": 0, "bob": 1}
    assert commands("tenants", "purge", "emails", "ada", "--yes", "--json").json == {"cancelled": 0}
    assert commands("tenants", "purge", "emails", "nobody", "--dry-run", "--json").json == {"found": 0}


def test_a_queue_is_purged_and_stays(commands: Commands) -> None:
    fill(commands)
    assert commands("queues", "purge", "emails", "--dry-run").out == "emails: 4 waiting tasks match\n"
    assert commands("queues", "purge", "emails", "-y").out == "cancelled: 4\n"
    assert waiting(commands) == {"ada": 0, "bob": 0}
    assert commands("queues", "exists", "emails").code == 0


def test_cancel_all_takes_filters_and_tenants_cancel_their_own(commands: Commands) -> None:
    fill(commands)
    ids = ("cancel", "emails", "--all", "--yes")
    assert commands("tasks", *ids, "--tenant", "ada", "--older-than", "1h").out == "cancelled: 0\n"
    assert commands("tasks", *ids, "--tenant", "ada", "--error", "timeout").out == "cancelled: 0\n"
    assert commands("tasks", *ids, token=tenant("ada")).out == "cancelled: 3\n"
    assert waiting(commands) == {"ada": 0, "bob": 1}


def test_exists_tells_by_its_code(commands: Commands) -> None:
    missing = commands("queues", "exists", "emails")
    assert (missing.code, missing.out, missing.err) == (1, "", "")
    commands.enqueue("emails", "1")
    assert (commands("queues", "exists", "emails").code, commands("queues", "exists", "email").code) == (0, 1)
    commands("queues", "delete", "emails", "--purge", "--yes")
    assert commands("queues", "exists", "emails").code == 1


def test_a_tenant_is_deleted_when_it_has_nothing_or_with_purge(commands: Commands, server: ServerThread) -> None:
    fill(commands)
    commands("tenants", "set-weight", "emails", "ada", "3")
    refused = commands("tenants", "delete", "emails", "ada")
    check_error(refused, 1, "ada in queue emails is not empty: 2 ready, 1 delayed")
    deleted = commands("tenants", "delete", "emails", "ada", "--purge", "--yes")
    assert (deleted.code, deleted.out) == (0, "ada in emails: deleted\n")
    assert waiting(commands) == {"bob": 1}
    commands("enqueue", "emails", "1", "--dedupe-key", "k", "--dedupe-period", "1h", token=tenant("bob"))
    store = server.served.app.store
    done = [Settlement("ack", each.id, each.lease) for each in server.call(store.claim, "emails", "w", 2).leases]
    server.call(store.settle, "emails", done)
    kept = commands("tenants", "delete", "emails", "bob", "--purge", "--yes")
    check_error(kept, 1, "results and dedupe keys (until ")
    (until,) = re.findall(r"until ([0-9-]+ [0-9:+]+) at the latest", kept.err)
    left_s = (datetime.fromisoformat(until) - datetime.now(UTC)).total_seconds()
    assert 3_600 < left_s <= 3_660, "and the minute by which the store is late"
    check_error(commands("tenants", "delete", "emails", "ada"), 1, "there is no tenant ada in queue emails")
    commands.enqueue("emails", "1")
    table = "\n".join(lines(commands("tenants", "list", "emails")))
    assert "ada" in table
    assert [row["weight"] for row in commands("tenants", "list", "emails", "--json").json] == [1, 1]
