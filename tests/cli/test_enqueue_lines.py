"""`fairq enqueue --lines` and `--wait`: a file as one batch, and what is waited for."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairq.cli import lines
from fairq.errors import Unavailable
from fairq.model.tasks import Settlement
from tests.server.harness import tenant

from .harness import Commands, Finished, ServerThread, check_error

ADA = tenant("ada")


class Acker:
    """A worker of the queue `emails`: ends all tasks that it gets, until the block is left."""

    def __init__(self, server: ServerThread, action: str = "ack", result: bytes = b"") -> None:
        self.server, self.action, self.result = server, action, result
        self.payloads: list[bytes] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Acker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(10)

    def _work(self) -> None:
        store = self.server.served.app.store
        while not self._is_over.wait(0.02):
            leases = self.server.call(store.claim, "emails", "w", 100).leases
            ends = [Settlement(self.action, it.id, it.lease, None, "", self.result) for it in leases]  # type: ignore[arg-type]
            self.payloads += [lease.payload for lease in leases]
            if ends:
                self.server.call(store.settle, "emails", ends)


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def enqueue(commands: Commands, *argv: str) -> Finished:
    return commands("enqueue", "emails", *argv, token=ADA)


def forget_marks(server: ServerThread) -> None:
    """Forget the ids of ended tasks, as minutes later."""
    connection = server.served.app.store.connection
    tasks = server.call(connection.call, "HGETALL", "fq:{emails/0}:tasks")[::2]
    if tasks:
        server.call(connection.call, "HDEL", "fq:{emails/0}:tasks", *tasks)


@contextmanager
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Break off each command when two frames are stored."""
    frames = lines._frames

    def break_off(tasks: list[object]) -> object:
        yield from list(frames(tasks))[:2]  # type: ignore[arg-type]
        raise Unavailable("planted")

    with monkeypatch.context() as broken:
        broken.setattr(lines, "_frames", break_off)
        yield


def test_each_line_is_a_task_of_one_batch(commands: Commands, server: ServerThread, tmp_path: Path) -> None:
    path = write(tmp_path / "lines", "".join(f"line {n}\n" for n in range(1203)) + "\n\nlast, without an end")
    done = enqueue(commands, "--lines", path, "--text-lines", "--max-running", "7", "--json")
    assert done.code == 0, done.err
    assert (done.json["state"], done.json["total"], done.json["max_running"]) == ("closed", 1204, 7)
    queue = server.call(server.served.app.store.queue, "emails")
    assert (queue.ready, queue.pending) == (7, 1197)
    for listing in (("queues", "list"), ("tenants", "list", "emails")):
        output = commands(*listing).out
        assert "pending" in output, output
        assert "1,197" in output, output
    (first, *_) = commands("tasks", "peek", "emails", "--count", "1", "--json", token=ADA).json
    assert (first["payload"], first["id"]) == ("line 0", f"{done.json['id']}-1")


def test_the_same_command_goes_on_and_makes_no_task_twice(commands: Commands, tmp_path: Path) -> None:
    path = write(tmp_path / "lines", '{"to": "ada"}\n[1]\n')
    for _ in range(2):
        done = enqueue(commands, "--lines", path, "--id", "mine", "--json")
        assert (done.code, done.json["total"]) == (0, 2)
    rows = commands("tasks", "peek", "emails", "--json", token=ADA).json
    assert [row["payload"] for row in rows] == [{"to": "ada"}, [1]]
    more = write(tmp_path / "lines", '{"to": "ada"}\n[1]\n[2]\n')
    one_line = enqueue(commands, "--lines", more, "--id", "mine")
    assert one_line.code == 1
    assert "to continue, repeat the command with --id mine" in one_line.err


def test_a_file_that_has_become_shorter_is_not_taken_for_all_of_the_batch(commands: Commands, tmp_path: Path) -> None:
    assert enqueue(commands, "--lines", write(tmp_path / "lines", "1\n2\n"), "--id", "mine").code == 0
    shorter = enqueue(commands, "--lines", write(tmp_path / "lines", "1\n"), "--id", "mine")
    check_error(shorter, 2, "2 tasks, but the file 1 lines")


@pytest.mark.parametrize(("more", "code"), [([], 2), (["--dedupe-period", "1h"], 0)])
def test_lines_without_duplicates_are_sent_again_only_if_their_keys_are_held(
    commands: Commands,
    server: ServerThread,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: list[str],
    code: int,
) -> None:
    """Their number does not say which ones are stored, and the first were done long ago."""
    path = write(tmp_path / "lines", "".join(f"{n}\n{n}\n" for n in range(400)))
    argv = ["--lines", path, "--dedupe-payload", "--id", "mine", *more]
    with interrupted(monkeypatch):
        first = enqueue(commands, *argv)
    assert (first.code, "cannot be continued" in first.err) == (1, bool(code)), first.err
    with Acker(server) as acker:
        while server.call(server.served.app.store.queue, "emails").ready:
            pass
    forget_marks(server)
    with Acker(server) as rest:
        done = enqueue(commands, *argv, "--wait", "20")
    assert done.code == code, done.err
    if code:
        check_error(done, code, "--dedupe-period")
        assert not rest.payloads
    else:
        assert sorted(acker.payloads + rest.payloads) == sorted(b"%d" % n for n in range(400))


def test_standard_input_is_read_line_by_line(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("ä\nb\n".encode())))
    done = enqueue(commands, "--lines", "-", "--text-lines")
    assert done.code == 0, done.err
    assert [row["payload"] for row in commands("tasks", "peek", "emails", "--json", token=ADA).json] == ["ä", "b"]


@pytest.mark.parametrize(("action", "code", "words"), [("ack", 0, "2 done, 0 dead"), ("reject", 1, "0 done, 2 dead")])
def test_a_batch_is_waited_for_and_its_end_is_the_exit_code(
    commands: Commands, server: ServerThread, tmp_path: Path, action: str, code: int, words: str
) -> None:
    with Acker(server, action) as acker:
        done = enqueue(commands, "--lines", write(tmp_path / "lines", "a\nb\n"), "--text-lines", "--wait", "20")
    assert (done.code, sorted(acker.payloads)) == (code, [b'"a"', b'"b"'])
    assert words in done.err


def test_a_task_is_waited_for_and_its_result_printed(
    commands: Commands, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairq.client.requests._WHY_TIMEOUT_S", 60.0)  # else a busy machine says less
    with Acker(server, "ack", b'{"sum":3}'):
        assert enqueue(commands, "[1, 2]", "--wait", "20").json == {"sum": 3}
        assert enqueue(commands, "[1, 2]", "--wait", "20", "--json").json["result"] == {"sum": 3}
    with Acker(server, "reject"):
        check_error(enqueue(commands, "1", "--wait", "20"), 1, "rejected")
    check_error(enqueue(commands, "1", "--wait", "1"), 1, "has not ended: no worker is attached to the queue")


def test_a_line_that_is_no_json_says_which(commands: Commands, tmp_path: Path) -> None:
    done = enqueue(commands, "--lines", write(tmp_path / "lines", "[1]\n[1,\n"))
    assert done.code == 2
    assert "line 2" in done.err


ALTERED = [
    (b"123456789012345678901", "64 bits"),
    (b'{"a": {"n": [1, -9223372036854775809]}}', "64 bits"),
    (b'{"a": 1, "a": 2}', "duplicate key"),
    (b"\xff", "UTF-8"),
    (b'1}, {"a": 2', "not JSON"),
]


def test_a_payload_that_would_not_stay_as_it_is_is_refused(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the server refuses it from those that send it as it is."""
    for payload, words in ALTERED:
        for argv in (["enqueue", "emails", "-"], ["schedules", "create", "emails", "s", "-", "--every", "1h"]):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(payload)))
            check_error(commands(*argv, token=ADA), 2, words)
        for option, line in (("--lines", payload), ("--requests", b'{"tasks": [%b]}' % payload)):
            (tmp_path / "file").write_bytes(b"\n" + line)
            done = enqueue(commands, option, str(tmp_path / "file"))
            assert (done.code, "line 2" in done.err, words in done.err) == (2, True, True), done.err
    assert commands("tasks", "peek", "emails", "--json", token=ADA).json == []
