"""Debian's programs that check deploy/: a test that needs one fails without it, and .ci/run installs them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PACKAGES = {"promtool": "prometheus", "prometheus": "prometheus", "nginx": "nginx-light", "caddy": "caddy",
            "systemd-analyze": "systemd", "curl": "curl", "zsh": "zsh", "fish": "fish"}  # fmt: skip
SECONDS = 60.0


def program(name: str) -> str:
    """Find a program."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/bin")
    if found is None:
        pytest.fail(f"{name} is not installed (Debian: apt install {PACKAGES[name]})", pytrace=False)
    return found


def run(name: str, *argv: str | Path, stdin: str = "", code: int = 0) -> str:
    """Run a program to its end, and check how it ends; returns what it says."""
    done = subprocess.run(
        [program(name), *map(str, argv)], input=stdin, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr
