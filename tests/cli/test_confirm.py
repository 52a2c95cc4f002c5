"""Commands that change much ask first, and do nothing without a yes."""

from __future__ import annotations

import io
from itertools import cycle
from pathlib import Path

import pytest

from tests.server.harness import tenant

from .harness import Commands, ServerThread, Terminal, bury, check_error

ASKING = [  # a command; its question; what it says after a no, and after a yes, in this order
    ("batches cancel emails ada/b", "Cancel the 2 tasks of batch ada/b of emails", "cancelled", "ada/b: cancelled"),
    ("dead purge emails --all --tenant ada", "Purge up to 3 dead letters of emails?", "purged", "purged: 3"),
    ("tasks cancel emails --all --tenant ada", "2 waiting tasks match. Cancel", "cancelled", "cancelled: 2"),
    ("tenants purge emails bob", "1 waiting tasks match. Cancel", "cancelled", "cancelled: 1"),
    ("tenants delete emails bob --purge", "Delete bob in emails with its", "deleted", "bob in emails: deleted"),
    ("queues purge emails", "1 waiting tasks match. Cancel", "cancelled", "cancelled: 1"),
    ("queues delete emails --purge", "Delete emails with its tasks", "deleted", "emails: deleted"),
]


def test_a_command_that_asks_does_nothing_without_a_yes(
    commands: Commands, server: ServerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(server, "ada", ["a1", "a2", "a3"])
    (tmp_path / "lines").write_text("1\n2\n")
    assert commands("enqueue", "emails", "--lines", f"{tmp_path}/lines", "--id", "b", token=tenant("ada")).code == 0
    yes, no = cycle(("y\n", "Yes\n")), cycle(("n\n", "\n", "", "yeah\n"))
    for name, *more in (("ada",), ("ada", "--delay", "1h"), ("bob",), ("cal",)):
        commands.enqueue("emails", "1", *more, name=name)
    for line, question, undone, done in ASKING:
        before = server.call(server.served.app.store.queue, "emails")
        monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
        check_error(commands(*line.split()), 2, "without a terminal needs --yes")
        monkeypatch.setattr("sys.stdin", Terminal(next(no)))
        asked = commands(*line.split())
        assert (asked.code, asked.out, question in asked.err) == (1, "", True), asked
        assert asked.err.endswith(f" [y/N] nothing was {undone}\n")
        assert server.call(server.served.app.store.queue, "emails") == before
        monkeypatch.setattr("sys.stdin", Terminal(next(yes)))
        asked = commands(*line.split())
        assert (asked.code, question in asked.err, asked.out) == (0, True, f"{done}\n"), asked
