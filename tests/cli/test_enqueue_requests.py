"""`fairq enqueue --requests`: each line of a file a batch of several tasks, which a repeated command makes once."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import pytest

from fairq.cli import lines, meter
from tests.server.harness import tenant

from .harness import Commands, Finished, ServerThread, Terminal, check_error
from .test_enqueue_lines import Acker, enqueue, forget_marks, interrupted, write

ADA = tenant("ada")
SAMPLE = '3:a 1:a 2\n\n1:b 1\n  \n{"priority": 3, "max_running": 1, "tasks": ["c 1", {"to": "x"}, [3]]}\n50:d 1'


def requests(commands: Commands, path: str, *argv: str) -> Finished:
    return enqueue(commands, "--requests", path, *argv)


def listed(commands: Commands) -> dict[str, tuple[str, int, int]]:
    rows = commands("batches", "list", "emails", "--json", token=ADA).json
    return {row["id"]: (row["state"], row["max_running"], row["total"]) for row in rows}


def peeked(commands: Commands) -> list[str]:
    rows = commands("tasks", "peek", "emails", "--count", "500", "--json", token=ADA).json
    return [row["payload"] for row in rows]


def test_each_line_is_a_batch_with_its_priority_and_limit_and_equals_go_in_order(
    commands: Commands, tmp_path: Path
) -> None:
    done = requests(commands, write(tmp_path / "file", SAMPLE), "--id", "mine", "--max-running", "9", "--json")
    assert done.code == 0, done.err
    assert done.json == {"id": "mine", "requests": 4, "total": 7}
    assert listed(commands) == {
        "mine-1": ("closed", 9, 2), "mine-3": ("closed", 9, 1), "mine-5": ("closed", 1, 3), "mine-6": ("closed", 9, 1),
    }  # fmt: skip
    assert peeked(commands) == ["b 1", "a 1", "c 1", "a 2", "d 1"]  # equals take turns; of c one at a time


def test_the_same_command_adds_nothing_twice_also_when_all_was_done_long_ago(
    commands: Commands, server: ServerThread, tmp_path: Path
) -> None:
    path = write(tmp_path / "file", "".join(f"{n % 3}:{n} a:{n} b\n" for n in range(100)))
    assert requests(commands, path, "--id", "mine", "--json").json["total"] == 200
    assert requests(commands, path, "--id", "mine", "--json").json["total"] == 200
    assert sum(total for _, _, total in listed(commands).values()) == 200
    with Acker(server) as acker:
        assert requests(commands, path, "--id", "mine", "--wait", "30").code == 0
    store = server.served.app.store
    forget_marks(server)
    done = requests(commands, path, "--id", "mine", "--wait", "30", "--json")
    assert (done.code, done.json["requests"], done.json["done"]) == (0, 100, 200)
    assert server.call(store.queue, "emails").enqueued == len(acker.payloads) == 200
    changed = requests(commands, write(tmp_path / "file", "0:a\n"), "--id", "mine")
    assert (changed.code, "line 1 has 1 tasks, but batch mine-1 has 2" in changed.err) == (2, True), changed.err


def test_a_command_that_was_interrupted_in_a_request_goes_on_behind_what_it_stored(
    commands: Commands, server: ServerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks that were stored have been done for long, and are not made again."""
    path = write(tmp_path / "file", '5:first\n{"tasks": ' + str(list(range(500))) + "}\n9:last")
    with interrupted(monkeypatch):
        done = requests(commands, path, "--id", "mine")
    assert done.code == 1
    assert "0 lines were added; to continue, repeat the command with --id mine" in done.err
    with Acker(server) as acker:
        while server.call(server.served.app.store.queue, "emails").ready:
            pass
    assert len(acker.payloads) == 2 * lines.FRAME_TASKS
    forget_marks(server)
    with Acker(server) as rest:
        done = requests(commands, path, "--id", "mine", "--wait", "30", "--json")
    assert (done.code, done.json["done"], done.json["requests"]) == (0, 502, 3)
    both = acker.payloads + rest.payloads
    assert sorted(both) == sorted([b'"first"', b'"last"', *(b"%d" % n for n in range(500))])


BAD_LINES: list[tuple[str | bytes, str]] = [
    ("no priority", "colon"),
    ("urgent:a", "colon"),
    ("100:a", "colon"),
    ("-1:a", "colon"),
    ("3:", "empty"),
    ("3:a::b", "empty"),
    ('{"tasks": [1]', "not JSON"),
    ('{"tasks": []}', "tasks"),
    ('{"tasks": 5}', "tasks"),
    ('{"priority": 3}', "tasks"),
    ('{"priority": 100, "tasks": [1]}', "priority"),
    ('{"priority": true, "tasks": [1]}', "priority"),
    ('{"priority": "3", "tasks": [1]}', "priority"),
    ('{"max_running": -1, "tasks": [1]}', "max_running"),
    ('{"tasks": [1], "colour": 3}', "colour"),
    ("3:" + "x" * (1 << 20), "limit"),
    (b"3:\xff", "UTF-8"),
    ("3" + ":x" * 100_001, "at most 100,000"),
    ('{"tasks": [' + "1," * 100_000 + "1]}", "at most 100,000"),
]


def test_a_bad_line_is_refused_by_its_number_and_nothing_of_it_is_stored(commands: Commands, tmp_path: Path) -> None:
    path = tmp_path / "file"
    for line, words in BAD_LINES:
        path.write_bytes(b"1:good\n\n" + (line if isinstance(line, bytes) else line.encode()) + b"\n1:after\n")
        done = requests(commands, str(path), "--id", "mine")
        assert (done.code, "1 lines were added" in done.err) == (2, True), done.err
        (logged,) = (row for row in done.err.splitlines() if row.startswith("fairq:"))
        assert "line 3" in logged
        assert words in logged
        assert len(logged) < 300
    assert listed(commands).keys() == {"mine-1"}


def test_a_file_of_another_system_is_read_and_one_that_cannot_be_read_is_refused(
    commands: Commands, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbf1:a\r\n\r\n2:b\r\n")
    assert requests(commands, str(path), "--id", "mine", "--json").json["requests"] == 2
    assert (set(listed(commands)), peeked(commands)) == ({"mine-1", "mine-3"}, ["a", "b"])
    check_error(requests(commands, "/proc/self/mem"), 2, "cannot read")
    check_error(requests(commands, str(tmp_path)), 2, "cannot read")


def test_a_line_that_is_too_long_is_not_read(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 1 << 20)
    done = requests(commands, write(tmp_path / "file", "1:a\n" + "1:b" * (1 << 20)))
    assert done.code == 2
    assert "line 2 is longer than 1 MiB" in done.err


def test_a_long_line_of_many_long_payloads_is_taken(commands: Commands, tmp_path: Path) -> None:
    payloads = ["x" * 1_000_000 for _ in range(10)]
    path = write(tmp_path / "file", orjson.dumps({"tasks": payloads}).decode())
    assert requests(commands, path, "--json").json["total"] == 10


def test_the_end_of_all_is_waited_for_and_is_the_exit_code(
    commands: Commands, server: ServerThread, tmp_path: Path
) -> None:
    path = write(tmp_path / "file", "".join(f"1:{n}\n" for n in range(120)))
    with Acker(server, "reject"):
        done = requests(commands, path, "--wait", "30")
    assert done.code == 1
    assert done.err.splitlines()[-1] == "120 requests, 120 tasks: 0 done, 120 dead, 0 cancelled"
    late = requests(commands, write(tmp_path / "file", "1:a\n1:b\n"), "--id", "late", "--wait", "0.1")
    assert late.code == 1
    assert "to wait again, repeat the command with --id late" in late.err
    assert "2 of 2 requests are not complete" in late.err


def test_a_log_has_lines_with_what_is_done(
    commands: Commands, server: ServerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "LOG_S", 0)
    path = write(tmp_path / "file", "".join(f"1:{n} a:{n} b\n\n" for n in range(100)))
    with Acker(server):
        done = requests(commands, path, "--wait", "30")
    assert done.code == 0
    logged = done.err.splitlines()
    assert logged[0].startswith("enqueue emails: 165 of 200 lines"), "83 requests, of two tasks each"
    assert logged[1].startswith("enqueue emails: 199 of 200 lines"), "the last line is blank"
    assert logged[-2] == "emails: 200 done, 0 dead, 0 cancelled, 0 running of 200 tasks"


def test_a_terminal_has_one_line_that_is_redrawn(
    commands: Commands, server: ServerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    with Acker(server):
        assert requests(commands, write(tmp_path / "file", SAMPLE), "--wait", "30").code == 0
    assert "6 of 6 lines" in screen.getvalue()
    assert "7 done, 0 dead" in screen.getvalue()
