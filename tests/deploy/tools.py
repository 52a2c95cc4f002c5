"""Debian's programs that check deploy/."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.parts import program

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SECONDS = 60.0


def run(name: str, *argv: str | Path, stdin: str = "", code: int = 0) -> str:
    """Run a program to its end, and check how it ends; returns what it says."""
    done = subprocess.run(
        [program(name), *map(str, argv)], input=stdin, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr
