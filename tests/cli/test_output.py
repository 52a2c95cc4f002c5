"""Tables in a narrow terminal, without cut words, and lines of a log that are only text."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
import pytest

from fairq.cli.dead import _COLUMNS, _RARE
from fairq.cli.log_writer import MAX_LINE_BYTES
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
        output = printed(monkeypatch, columns, letter)
        assert "┃ reason" in output
        assert max(map(len, output.splitlines())) <= columns
        assert "ConnectionError:" in output
    assert "attempts" not in printed(monkeypatch, 80, {**LETTER, "attempts": 0}, rare=(*_RARE, "attempts"))
    assert printed(monkeypatch, 80).strip() == "none"


def test_fields_have_no_headings(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = partial(print_fields, "letter", {"id": "globex/1", "tenant": "globex"}, json=False)
    assert [line.rstrip() for line in shown(monkeypatch, 80, fields).splitlines()] == [
        "letter", "┌────────┬──────────┐", "│ id     │ globex/1 │", "│ tenant │ globex   │", "└────────┴──────────┘",
    ]  # fmt: skip
    assert shown(monkeypatch, 12, fields) == "letter\nid\n  globex/1\ntenant\n  globex\n"


HOSTILE = "\x1b]0;owned\x07\x9b2J\u202e\u2028\x85\r\x0b\n2026-11-28T20:00:00Z [error    ] forged\n{}"
ESCAPED = r"\x1b]0;owned\x07\x9b2J\u202e\u2028\x85\r\x0b"
LOGGED = f"""
import logging, sys, threading, warnings
import structlog
from fairq.cli.output import configure_logging
from fairq.log import Log
hostile = {HOSTILE!r}
error = ValueError(hostile)
error.add_note(hostile)
configure_logging("info", as_json="json" in sys.argv)
structlog.get_logger("fairq.server").info("refused", **{{hostile: [hostile]}}, token=hostile)
Log("fairq.worker").warning("task failed", text=hostile, exc_info=ExceptionGroup(hostile, [error, KeyError(hostile)]))
Log("fairq.worker").warning(hostile, exc_info=error)
Log("fairq.worker").warning("long", text="\U0001f600" * 50_000, exc_info=ValueError("x" * 50_000 + "\\0" * 50_000))
logging.getLogger("asyncio").error(hostile, exc_info=error)
warnings.warn(hostile)

class Ends:
    def __del__(self):
        raise error

def fail():
    raise error

Ends()
thread = threading.Thread(target=fail, name=hostile)
thread.start()
thread.join()
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_line_of_the_log_cannot_drive_a_terminal_or_look_like_another_one(form: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOGGED, form], capture_output=True, text=True, timeout=60, check=True
    )  # fmt: skip
    assert all(c.isprintable() or c == "\n" for c in done.stderr)
    lines = done.stderr.splitlines()
    if form == "json":
        assert len([orjson.loads(line) for line in lines]) == 8
        assert max(map(len, lines)) < MAX_LINE_BYTES
        return
    assert [line[:5] for line in lines if not line.startswith("    ")] == [lines[0][:5]] * 8
    assert f"\n    ValueError: {ESCAPED}\n    2026-11-28" in done.stderr
    assert done.stderr.count(ESCAPED) == 14
