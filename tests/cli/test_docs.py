"""`fairq docs`: the guides, listed and printed."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from fairq.cli.docs import FOLDER, guides
from tests.cli.harness import Finished, check_error, environment, fairq_here


def test_the_guides_are_listed_each_with_what_it_is_about() -> None:
    done = fairq_here("docs")
    lines = done.out.splitlines()
    assert done.code == 0
    assert [line.split()[0] for line in lines] == list(guides())
    assert lines[0].startswith("tutorial ")
    assert all(len(line.split()) > 4 for line in lines)


def test_a_guide_goes_into_a_pipe_unchanged() -> None:
    assert fairq_here("docs", "tasks") == Finished(0, (FOLDER / "tasks.md").read_text(encoding="utf-8"), "")


def test_a_guide_is_laid_out_on_a_terminal() -> None:
    us, them = pty.openpty()
    variables = environment({"PAGER": "cat", "TERM": "xterm"})
    command = [sys.executable, "-m", "fairq", "docs", "protocol"]
    with subprocess.Popen(command, stdin=them, stdout=them, stderr=them, env=variables) as process:
        os.close(them)
        shown = b""
        try:
            while data := os.read(us, 65536):
                shown += data
        except OSError:  # the last program on it has ended
            pass
        os.close(us)
        assert process.wait(30) == 0
    text = shown.decode()
    assert "Protocol" in text
    assert "# Protocol" not in text
    assert "\x1b[" in text


def test_an_unknown_guide_is_refused_with_near_names() -> None:
    for name, near in ("tutorail", "did you mean tutorial?"), ("../README", "there are tutorial, "):
        check_error(fairq_here("docs", name), 2, f"fairq: there is no guide '{name}'; {near}")
