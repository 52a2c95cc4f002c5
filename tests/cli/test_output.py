"""Tables in a narrow terminal, of which no word is cut, and lines of a log that are only text."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fairq.cli.dead import _COLUMNS, _RARE
from fairq.cli.output import print_fields, print_rows

from .harness import Terminal

LETTER: dict[str, Any] = {
    "id": "globex/0198c5a0-7f3e-7c11-a2b4-5d6e7f809101", "tenant": "globex", "reason": "exhausted", "attempts": 25,
    "died_at_ms": 1_764_140_000_000, "error": "ConnectionError: refused\nby mail.example",
}  # fmt: skip


def shown(monkeypatch: pytest.MonkeyPatch, columns: int, show: Callable[[], None]) -> str:
    """What a terminal of so many columns shows."""
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        patch.setattr(sys, "stdout", terminal)
        show()
    return re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())


def printed(monkeypatch: pytest.MonkeyPatch, columns: int, *rows: dict[str, Any], rare: tuple[str, ...] = _RARE) -> str:
    """What a terminal of so many columns shows of dead letters."""
    letters = partial(print_rows, "dead letters of emails", _COLUMNS, rows, empty="none", rare=rare)
    return shown(monkeypatch, columns, letters)


def test_a_table_without_room_is_a_paragraph_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        printed(monkeypatch, 80, LETTER, {**LETTER, "error": ""})
        == """\
dead letters of emails
globex/0198c5a0-7f3e-7c11-a2b4-5d6e7f809101
  tenant: globex
  reason: exhausted
  attempts: 25
  died: 2025-11-26 06:53:20+00:00
  error: ConnectionError: refused
    by mail.example
globex/0198c5a0-7f3e-7c11-a2b4-5d6e7f809101
  tenant: globex
  reason: exhausted
  attempts: 25
  died: 2025-11-26 06:53:20+00:00
"""
    )


def test_a_table_with_room_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, letter in ((200, LETTER), (80, {**LETTER, "id": "short"})):
        told = printed(monkeypatch, columns, letter)
        assert "┃ reason" in told
        assert max(map(len, told.splitlines())) <= columns
        assert "ConnectionError:" in told
    assert "attempts" not in printed(monkeypatch, 80, {**LETTER, "attempts": 0}, rare=(*_RARE, "attempts"))
    assert printed(monkeypatch, 80).strip() == "none"


def test_fields_have_no_headings(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = partial(print_fields, "letter", {"id": "globex/1", "tenant": "globex"}, json=False)
    assert [line.rstrip() for line in shown(monkeypatch, 80, fields).splitlines()] == [
        "letter", "┌────────┬──────────┐", "│ id     │ globex/1 │", "│ tenant │ globex   │", "└────────┴──────────┘",
    ]  # fmt: skip
    assert shown(monkeypatch, 12, fields) == "letter\nid\n  globex/1\ntenant\n  globex\n"


def test_a_line_of_the_log_cannot_drive_a_terminal() -> None:
    hostile = "\x1b]0;owned\x07\x9b2J\u202e"
    script = f"""
import structlog
from fairq.cli.output import configure_logging
from fairq.log import Log
configure_logging("info")
structlog.get_logger("fairq.server").info("refused", token={hostile!r})
Log("fairq.worker").warning("task failed", text={hostile!r}, exc_info=ValueError("line 1\\n" + {hostile!r}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    escaped = r"\x1b]0;owned\x07\x9b2J\u202e"
    assert done.stderr.count(escaped) == 3
    assert f"\nValueError: line 1\n{escaped}" in done.stderr
    assert all(c.isprintable() or c == "\n" for c in done.stderr)
