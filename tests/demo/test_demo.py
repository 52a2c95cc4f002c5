"""The whole demonstration, with real processes: its result, and what it leaves behind when it is ended early."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from fairq.demo.scenario import WEIGHTS

FEW = 120  # files: the least that `--files` takes
Start = Callable[..., "subprocess.Popen[str]"]


def processes_of(directory: Path) -> dict[int, str]:
    """The ids and command lines of all processes with this directory for temporary files.

    A store overwrites its environment with a title, but it works in its data directory.
    """
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_below = str(directory) in os.readlink(process / "cwd")
            if is_below or f"TMPDIR={directory}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `fairq demo` in a temporary directory of its own; the test fails if a process or a file outlives it."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "fairq", "demo", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path), "FAIRQ_STORE": "redis://nobody.invalid"},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()
    assert processes_of(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(300)
@pytest.mark.deep("guides")
@pytest.mark.parametrize("count", [FEW, None])
def test_demo_proves_its_work_and_shows_the_contrast(start: Start, count: int | None) -> None:
    process = start("--json", *(("--files", str(count)) if count else ()))
    out, progress = process.communicate(timeout=280)
    assert process.returncode == 0, progress
    report = orjson.loads(out)
    assert report["lost"] == report["duplicated"] == report["unexpected"] == report["digest_mismatches"] == 0
    assert report["files"] == count or not count
    assert report["processed"] == report["tasks"] >= 2 * report["files"]
    assert sum(row["tasks"] for row in report["tenants"]) == report["files"]
    assert {row["name"] for row in report["tenants"]} == set(WEIGHTS)
    assert report["fair"]["quiet_p50_ms"] < report["fifo"]["quiet_p50_ms"]  # how much, the machine's load decides
    assert "Traceback" not in progress
    assert "fair" in progress


MOMENTS = {
    "reading": "reading, tokenizing",
    "starting": "starting a server",
    "enqueueing": "first in, first out",
    "working": "  ",
}


def wait_for(process: subprocess.Popen[str], moment: str) -> None:
    """Read the progress lines until the moment has come."""
    assert process.stderr
    may_match = moment != "working"
    for line in process.stderr:
        may_match = may_match or line.startswith(MOMENTS["enqueueing"])
        if may_match and line.startswith(MOMENTS[moment]):
            return
    pytest.fail(f"the demonstration ended before {moment}")


@pytest.mark.deep("kills")
@pytest.mark.parametrize(
    ("moment", "number", "code"),
    [*((moment, signal.SIGINT, 130) for moment in MOMENTS), ("working", signal.SIGTERM, 143)],
)
def test_a_signal_ends_it_at_any_moment_and_nothing_is_left(start: Start, moment: str, number: int, code: int) -> None:
    process = start("--files", str(FEW))
    wait_for(process, moment)
    process.send_signal(number)
    process.send_signal(number)  # an impatient user
    out, rest = process.communicate(timeout=60)
    assert process.returncode == code, rest
    assert out == ""
    assert "Traceback" not in rest


@pytest.mark.deep("kills")
@pytest.mark.parametrize("victim", ["--name worker-1", " serve "])
def test_a_child_that_dies_is_named_and_nothing_is_left(start: Start, tmp_path: Path, victim: str) -> None:
    process = start("--files", str(FEW))
    wait_for(process, "working")
    (pid,) = [pid for pid, line in processes_of(tmp_path).items() if victim in line]
    os.kill(pid, signal.SIGKILL)
    out, rest = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out == ""
    assert f"fairq: the {'server' if 'serve' in victim else 'worker-1'} ended with code -9" in rest
    assert "Traceback" not in rest
