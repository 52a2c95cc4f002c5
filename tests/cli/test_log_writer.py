"""A process goes on, and ends, while its log is not read or cannot be written; and it says what it lost."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import pytest

from fairq.cli.log_writer import MAX_BYTES, MAX_LINE_BYTES, MAX_LINES, _encoded

from .harness import ServerThread, environment

EXTRA = 1_000  # lines beyond what waits; a pipe takes some hundred
DEADLINE_S = 60.0

OPEN = """
import atexit, multiprocessing, os, resource, signal, sys, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded")  # of fork, from Python 3.12 on
import structlog
from fairq.cli import log_writer
from fairq.cli.log_writer import LogWriter
from fairq.cli.output import configure_logging

writer = LogWriter(sys.stderr)
configure_logging("info", as_json=True, to=writer)
log = structlog.get_logger().bind()  # keeps its level
"""
WENT_ON = """
print("went on", flush=True)
sys.stdin.readline()
log.info("last")
"""
FLOOD = f"""
for n in range({MAX_LINES + EXTRA}):
    log.info("line", n=n, more="x" * 100)
"""
MORE_THAN_A_PIPE_TAKES = "for n in range(200): log.info('line', more='x' * 1_000)"

pytestmark = pytest.mark.timeout(2 * DEADLINE_S)


def buffered_environment(**more: str) -> dict[str, str]:
    """The environment for commands whose standard error is buffered, as everyone's is."""
    return {name: value for name, value in environment(more).items() if name != "PYTHONUNBUFFERED"}


@contextmanager
def process(
    *argv: str | Path, stderr: int | IO[Any] = subprocess.PIPE, cwd: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run Python while the block lasts."""
    with subprocess.Popen(
        [sys.executable, *map(str, argv)], env=buffered_environment(), cwd=cwd, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
    ) as running:  # fmt: skip
        try:
            yield running
        finally:
            running.kill()


@contextmanager
def logging_process(*parts: str) -> Iterator[subprocess.Popen[str]]:
    """A process that logs what the parts say, says that it went on, and logs another line on request."""
    with process("-c", "\n".join((OPEN, *parts, WENT_ON))) as running:
        assert running.stdout
        assert running.stdout.readline() == "went on\n"
        yield running


def end(running: subprocess.Popen[str]) -> int:
    """Tell a process to go to its end; returns its code."""
    assert running.stdin
    running.stdin.close()
    return running.wait(DEADLINE_S)


def read_lines(running: subprocess.Popen[str], count: int) -> tuple[list[dict[str, Any]], int]:
    """Read what a process logged up to the notice that makes it so many lines; returns those, and how many it lost."""
    assert running.stderr
    lines, dropped = [], 0
    for text in running.stderr:
        line = json.loads(text)
        if line["event"] == "line":
            lines.append(line)
        else:
            assert line["level"] == "warning"
            dropped += line["lines"]
        if len(lines) + dropped == count:
            return lines, dropped
    raise AssertionError(f"{len(lines)} and {dropped} of {count}")


BUT_ERRORS = 'configure_logging("critical", as_json=True, to=writer)'
NON_BLOCKING = "os.set_blocking(2, False)"


@pytest.mark.parametrize("but", ["", f"{BUT_ERRORS}; {NON_BLOCKING}"], ids=["as it is", "non-blocking, but errors"])
def test_a_log_that_is_not_read_stops_nobody_and_says_what_it_lost(but: str) -> None:
    with logging_process(but, FLOOD) as running:
        lines, _ = read_lines(running, MAX_LINES + EXTRA)
        numbers = [line["n"] for line in lines]
        assert numbers[:MAX_LINES] == list(range(MAX_LINES))
        assert numbers == sorted(set(numbers))  # the pipe may have taken some when others were lost already
        assert end(running) == 0
        assert running.stderr
        assert [json.loads(text)["event"] for text in running.stderr] == ["last"]


def test_long_lines_are_cut_and_few_of_them_wait() -> None:
    """What waits has a bound in bytes; lines stay JSON, and keep their end: a traceback's is what is wrong."""
    count, tell = 20, 'log.info("line", n=n, more="x" * 1_000_000 + "end")'
    with logging_process(f"for n in range({count}): {tell}") as running:
        lines, dropped = read_lines(running, count)
    assert [line["n"] for line in lines] == list(range(count))[: len(lines)]
    assert all(len(line["more"]) < MAX_LINE_BYTES and line["more"].endswith("xend") for line in lines)
    assert all("(cut, 1,000,003 characters)" in line["more"] for line in lines)
    assert dropped == count - len(lines) == 0


def test_what_waits_has_a_bound_in_bytes() -> None:
    count = 2 * MAX_BYTES // MAX_LINE_BYTES
    with logging_process(f"for n in range({count}): writer.write('x' * 1_000_000)") as running:
        assert running.stderr
        read = lost = 0
        for line in running.stderr:
            if line.startswith("{"):
                lost += json.loads(line)["lines"]
            else:
                assert line.endswith("(cut, 1,000,000 characters)\n")
                assert len(line) == MAX_LINE_BYTES
                read += 1
            if lost and read + lost == count:
                break
        assert read * MAX_LINE_BYTES <= MAX_BYTES + 2 * 1024 * 1024  # in the pipe, and in hand
        assert end(running) == 0


@pytest.mark.parametrize("text", ["x", "é", "\udcff"], ids=ascii)
def test_a_long_line_is_cut_in_bytes(text: str) -> None:
    line = _encoded(text * 1_000_000)
    assert MAX_LINE_BYTES - 10 <= len(line) <= MAX_LINE_BYTES
    assert line.decode().endswith("(cut, 1,000,000 characters)\n")


def test_what_a_full_disk_did_not_take_is_counted_and_tears_no_line(tmp_path: Path) -> None:
    """A limit for the file's size stands for the disk's."""
    steps = (
        OPEN,
        "limits = lambda soft: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))",
        "log_writer.END_S = 600",  # what does not come at once never comes
        "limits(10)",
        "for n in range(5): log.info('line', n=n)",
        "writer.close()",
        "limits(resource.RLIM_INFINITY)",
        "log.info('last')",
    )
    with (tmp_path / "log").open("wb") as file, process("-c", "\n".join(steps), stderr=file) as running:
        assert end(running) == 0
    torn, *lines = (tmp_path / "log").read_text().splitlines()
    assert len(torn) == 10
    answer = [(line["event"].partition(":")[0], line.get("lines")) for line in map(json.loads, lines)]
    assert answer == [("last", None), ("log lines dropped", 5)]


def test_a_log_whose_reader_is_gone_stops_nobody() -> None:
    with process("-c", "\n".join((OPEN, MORE_THAN_A_PIPE_TAKES, WENT_ON))) as running:
        assert running.stderr
        assert running.stdout
        running.stderr.close()
        assert running.stdout.readline() == "went on\n"
        assert end(running) == 0


FORKS = {
    "by os.fork, and ends by sys.exit": """
if not os.fork():
    log.info("in the child")
    sys.exit()
os.wait()
""",
    "by os.fork, and ends without notice": """
if not os.fork():
    log.info("in the child")
    os._exit(0)
os.wait()
""",
    "by multiprocessing": """
def child():
    log.info("in the child")
of_child = multiprocessing.get_context("fork").Process(target=child)
of_child.start()
of_child.join()
""",
    "twice": """
if not os.fork():
    if not os.fork():
        log.info("in the child")
        os._exit(0)
    os.wait()
    sys.exit()
os.wait()
""",
}


def test_a_process_that_a_handler_forks_logs_and_ends_at_once() -> None:
    patient = "log_writer.END_S = 600"  # to wait for what never comes would take until the deadline
    with logging_process(patient, "log.info('before')", *FORKS.values()) as running:
        assert end(running) == 0
        assert running.stderr
        answer = sorted(json.loads(line)["event"] for line in running.stderr)
    assert answer == ["before", *["in the child"] * len(FORKS), "last"]


def test_a_forked_process_whose_log_is_not_read_ends() -> None:
    child = """
if not os.fork():
    for n in range(100): log.info("in the child")
    os._exit(0)
"""
    with logging_process(MORE_THAN_A_PIPE_TAKES, child, "os.wait()") as running:
        assert end(running) == 0


APP = """
import logging
import fairq

app = fairq.Worker()

@app.on_shutdown
def end():
    logging.getLogger("fairq.mail").error("bye")

@app.task("emails")
def send(task):
    print("sent", task.payload, flush=True)
"""


def fill(pipe: int) -> None:
    os.set_blocking(pipe, False)
    for size in (65_536, 1):
        try:
            while True:
                os.write(pipe, b"x" * size)
        except BlockingIOError:
            pass
    os.set_blocking(pipe, True)


@contextmanager
def open_pipe() -> Iterator[tuple[int, int]]:
    """A small pipe: the end to read from, and the end to write to."""
    ends = os.pipe()
    fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, 4096)
    try:
        yield ends
    finally:
        for each in ends:
            os.close(each)


def read_until(pipe: int, text: str, times: int) -> None:
    """Read from a pipe until a text has come so many times."""
    seen = b""
    while seen.count(text.encode()) < times:
        more = os.read(pipe, 65_536)
        assert more, seen.decode()
        seen += more


WORKER = ("worker", "mail:app")
POSTER = ("webhook-worker", "emails", "--unsigned")
SERVE = ("serve", "--dev", "--port", "0", "--data-dir", "data")


@pytest.mark.parametrize(
    ("argv", "until", "times"),
    [
        (WORKER, "connected", 1),
        pytest.param(SERVE, "serving", 1, marks=pytest.mark.deep("kills")),
        pytest.param([*POSTER, "--url", "https://hooks.example"], "connected", 1, marks=pytest.mark.deep("kills")),
        pytest.param([*SERVE, "--processes", "2"], "serving", 1, marks=pytest.mark.deep("kills")),
        pytest.param([*WORKER, "--processes", "2"], "connected", 2, marks=pytest.mark.deep("kills")),
    ],
    ids=["worker", "server", "webhook-worker", "servers", "workers"],
)
def test_a_service_whose_log_is_not_read_ends_on_request(
    server: ServerThread, tmp_path: Path, argv: Sequence[str], until: str, times: int
) -> None:
    (tmp_path / "mail.py").write_text(APP)
    url = "--server" if argv[0] == "webhook-worker" else "--url"
    to_server = () if argv[0] == "serve" else (url, server.url, "--token", "dev-worker")
    with open_pipe() as (read, write), process("-m", "fairq", *argv, *to_server, stderr=write, cwd=tmp_path) as running:
        read_until(read, until, times)
        fill(write)
        running.send_signal(signal.SIGTERM)
        assert running.wait(DEADLINE_S) == 0


@pytest.mark.deep("kills")
def test_a_server_that_can_open_no_more_files_says_so_in_its_log(tmp_path: Path) -> None:
    """What trio logs goes through the writer too: that it is not read would stop the server."""
    serve = [sys.executable, "-m", "fairq", *SERVE, "--log-json"]
    with subprocess.Popen(
        ["sh", "-c", 'ulimit -n 60; exec "$@"', "sh", *serve],
        env=buffered_environment(), cwd=tmp_path, text=True, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as running, ExitStack() as ending:  # fmt: skip
        ending.callback(running.kill)
        assert running.stderr
        with ExitStack() as callers:
            for line in map(json.loads, running.stderr):
                if line["event"] == "serving":
                    for _ in range(60):
                        callers.enter_context(socket.create_connection(("127.0.0.1", urlsplit(line["url"]).port)))
                if "EMFILE" in line["event"]:
                    break
        running.terminate()
        assert running.wait(DEADLINE_S) == 0  # its store has ended too


@pytest.mark.parametrize(
    ("argv", "code", "printed"),
    [
        (WORKER, 2, ""),
        (["worker", "broken:app"], 1, ""),
        (["worker", "broken:app"], 1, "RuntimeError: it fails"),
        pytest.param([*WORKER, "--token", "wrong", "--processes", "2"], 1, "", marks=pytest.mark.deep("kills")),
    ],
    ids=["it has no token", "its app fails", "its app fails, read", "all are refused"],
)
def test_a_service_that_ends_with_an_error_waits_for_no_reader(
    server: ServerThread, tmp_path: Path, argv: Sequence[str], code: int, printed: str
) -> None:
    (tmp_path / "mail.py").write_text(APP)
    (tmp_path / "broken.py").write_text("raise RuntimeError('it fails')")
    to_server = ("--url", server.url) if argv[0] == "worker" else ()
    with open_pipe() as (read, write), process("-m", "fairq", *argv, *to_server, stderr=write, cwd=tmp_path) as running:
        if printed:
            read_until(read, printed, 1)
        else:
            fill(write)
        assert running.wait(DEADLINE_S) == code


@pytest.mark.parametrize("more", [[], pytest.param(["--processes", "2"], marks=pytest.mark.deep("kills"))], ids=str)
def test_a_burst_whose_log_meets_a_full_disk_ends_well(server: ServerThread, tmp_path: Path, more: list[str]) -> None:
    """A supervisor would start a process that ends otherwise again, for ever."""
    (tmp_path / "mail.py").write_text(
        APP + "import sys\ntry:\n    print('own', file=sys.stderr)\nexcept OSError: pass\n"
    )
    argv = ("worker", "mail:app", "--burst", "--url", server.url, "--token", "dev-worker", *more)
    with Path("/dev/full").open("wb") as full, process("-m", "fairq", *argv, stderr=full, cwd=tmp_path) as running:
        assert running.wait(DEADLINE_S) == 0


def test_a_worker_that_has_no_standard_error_works(server: ServerThread, tmp_path: Path) -> None:
    (tmp_path / "mail.py").write_text(APP)
    argv = (sys.executable, "-m", "fairq", *WORKER, "--burst", "--url", server.url, "--token", "dev-worker")
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *argv],
        env=buffered_environment(), cwd=tmp_path, stdout=subprocess.PIPE, timeout=DEADLINE_S,
    )  # fmt: skip
    assert (done.returncode, done.stdout[:13]) == (0, b"nothing to do")
