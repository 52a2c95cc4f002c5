"""`fairq top`, and what is drawn again and again: against a real server, and on a terminal."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from fairq.cli.output import make_table
from fairq.cli.top import _OF_QUEUE, _OF_TENANT, draw_table
from fairq.errors import Unavailable
from fairq.model.queues import QueueState
from fairq.model.texts import say_ms
from tests.server.harness import OPERATOR

from .harness import Commands, ServerThread

LEAVES = b"\x1b[?1049l"  # the alternate screen


def fill(commands: Commands, server: ServerThread) -> None:
    """Give two tenants tasks, and add those of one to the history."""
    for tenant, count in (("acme", 3), ("bob", 1)):
        for n in range(count):
            commands.enqueue("emails", str(n), name=tenant)
        if tenant == "acme":
            server.call(server.served.app.recorder.flush)


def test_a_queue_that_cannot_be_read_is_named_beside_the_others(
    commands: Commands, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(commands, server)
    commands.enqueue("away", "1")
    read = server.served.app.store.queue

    async def queue(_: object, name: str, **options: Any) -> QueueState:
        if name == "away":
            raise Unavailable("no connection to the store")
        return await read(name, **options)

    monkeypatch.setattr(type(server.served.app.store), "queue", queue)
    rows = {row["queue"]: row for row in commands("top", "--json").json["queues"]}
    assert (rows["emails"]["ready"], rows["away"]["ready"], rows["away"]["notes"]) == (4, None, "unavailable")
    for command in ("top --once", "queues list"):
        assert "unavailable" in commands(*command.split()).out


def test_one_picture_has_queues_and_tenants(commands: Commands, server: ServerThread) -> None:
    assert "there are no queues yet" in commands("top", "--once").out
    fill(commands, server)
    done = commands("top")  # no terminal: once
    assert done.code == 0
    lines = done.out.splitlines()
    (queue,) = (line for line in lines if "emails" in line and "no workers" in line)
    assert queue.split("│")[2].strip() == "4"
    assert any("acme" in line and " 3 " in line for line in lines)
    assert any("bob" in line and " 1 " in line for line in lines)


def test_a_queue_without_tenants_says_so(commands: Commands) -> None:
    commands("queues", "set", "emails", "lease_ms=30000")
    assert "no tenant has any tasks yet" in commands("top", "--once").out


def test_one_queue_and_json_for_scripts(commands: Commands, server: ServerThread) -> None:
    fill(commands, server)
    found = commands("top", "--queue", "emails", "--json").json
    assert [row["queue"] for row in found["queues"]] == ["emails"]
    assert {row["tenant"]: row["ready"] for row in found["tenants"]} == {"acme": 3, "bob": 1}
    assert found["tenants"][0].keys() == {*_OF_TENANT}
    assert found["queues"][0].keys() == {*_OF_QUEUE, "shared", "shared_by"}
    done = commands("top", "--queue", "nothing")
    assert (done.code, done.err) == (1, "fairq: there is no queue nothing\n")


def test_what_is_watched_is_drawn_once_where_there_is_no_terminal(commands: Commands, server: ServerThread) -> None:
    fill(commands, server)
    for command in ("queues", "list"), ("tenants", "list", "emails"):
        assert commands(*command, "--watch").out == commands(*command).out


def test_on_a_terminal_it_is_drawn_until_interrupted(commands: Commands, server: ServerThread, tmp_path: Path) -> None:
    fill(commands, server)
    master, slave = pty.openpty()
    environment = {**os.environ, "FAIRQ_URL": server.url, "FAIRQ_TOKEN": OPERATOR, "TERM": "xterm", "COLUMNS": "70"}
    child = subprocess.Popen(
        [sys.executable, "-m", "fairq", "top"], stdin=slave, stdout=slave, stderr=slave, env=environment,
        start_new_session=True, cwd=tmp_path,
    )  # fmt: skip
    os.close(slave)
    try:
        seen = read_until(master, b"emails", 2)
        child.send_signal(signal.SIGINT)
        seen += read_until(master, LEAVES, 1)
        assert child.wait(20) == 0
    finally:
        child.kill()
        child.wait(20)
        os.close(master)
    assert b"Traceback" not in seen


def read_until(master: int, text: bytes, times: int, seconds: float = 30.0) -> bytes:
    """Read what a terminal is sent until a text has come so often."""
    seen, deadline = b"", time.monotonic() + seconds
    while seen.count(text) < times:
        ready, _, _ = select.select([master], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, seen
        try:
            seen += os.read(master, 65_536)
        except OSError:  # the other end is closed
            raise AssertionError(seen) from None
    return seen


def rendered(picture: RenderableType, width: int) -> str:
    """Draw on a terminal of that width."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(picture)
    return console.export_text()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_a_narrow_terminal_has_fewer_columns_and_cuts_no_number(width: int) -> None:
    values = {"queue": "emails", "tenant": "acme", "notes": "paused", "weight": 1.0}
    for of in (_OF_QUEUE, _OF_TENANT):
        row = {key: values.get(key, 123_456) for key in of}
        text = rendered(draw_table("", of, [row], width, ""), width)
        assert "…" not in text, text
        assert max(map(len, text.splitlines())) <= width
        assert ("wait p99" in text) == (width >= 100) or width in (60, 80)


def test_a_table_that_is_too_high_says_how_much_of_it_is_shown() -> None:
    rows = [{"n": "x" * 30} for _ in range(2_000)]
    text = rendered(make_table("tenants", {"n": "n"}, rows, empty="", lines=24), 80)
    assert "tenants: 18 of 2,000" in text
    assert len(text.splitlines()) <= 24


def test_times_are_said_in_units_for_people() -> None:
    assert [say_ms(ms) for ms in (0, 999, 1_200, 90_000, 5_400_000)] == ["0 ms", "999 ms", "1.2 s", "1.5 min", "1.5 h"]


def test_times_and_parts_are_known_by_their_keys() -> None:
    columns = {key: key for key in ("died_at_ms", "entitled_part", "queues")}
    row = {"died_at_ms": 1_000, "entitled_part": 0.125, "queues": ["a", "b"]}
    text = rendered(make_table("", columns, [row], empty=""), 100)
    assert all(each in text for each in ("1970-01-01 00:00:01+00:00", "12.5 %", "a, b")), text
