"""The state machine of a client's session finds what it is for."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files

import pytest

from .planted import BUGS


def test_each_planted_bug_is_in_the_text_once() -> None:
    for name, bug in BUGS.items():
        assert files("fairq.wire").joinpath(f"{bug.module}.py").read_text().count(bug.text) == 1, name


@pytest.mark.deep("mutants")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.wire.planted", name], capture_output=True, text=True, timeout=280
    )
    assert (done.returncode, done.stderr) == (1, "")
