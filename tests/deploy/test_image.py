"""The steps of the Dockerfile, in a plain environment: what is locked installs by its hashes, and serves."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.harness import EXIT_SECONDS, environment, read_until

from .test_deploy import DEPLOY, instructions

pytestmark = [pytest.mark.deep("image"), pytest.mark.timeout(600)]

ROOT = DEPLOY.parent
LOCKS = ("requirements.lock", "build.lock")


@pytest.mark.parametrize("name", LOCKS)
def test_everything_that_is_installed_is_pinned_with_hashes(name: str) -> None:
    text = (DEPLOY / name).read_text()
    entries = re.findall(r"^[a-zA-Z0-9].*(?:\\\n .*)+", text, re.MULTILINE)
    assert len(entries) == len(re.findall(r"^[a-zA-Z0-9]", text, re.MULTILINE))
    for entry in entries:
        assert re.match(r"[a-z0-9-]+==[0-9][^ ]*", entry), entry
        assert "--hash=sha256:" in entry


def test_the_steps_of_the_image_make_a_server(tmp_path: Path) -> None:
    source = tmp_path / "source"
    stage = instructions()[: [rest for _, rest in instructions()].index("python:3.11-slim")]
    steps = 0
    for word, rest in stage:
        if word == "COPY":
            *names, target = rest.split()
            for name in names:
                to = source / (target if (ROOT / name).is_dir() else Path(name).name)
                to.parent.mkdir(parents=True, exist_ok=True)
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, to, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copy(ROOT / name, to)
        if word == "RUN":
            script = rest.replace("/opt/", f"{tmp_path}/opt/").replace("/wheels", f"{tmp_path}/wheels")
            script = script.replace("python -m venv", f"{shlex.quote(sys.executable)} -m venv")
            done = subprocess.run(
                ["sh", "-ec", script], cwd=source, env=environment({"PYTHONPATH": ""}), capture_output=True, text=True,
                timeout=300, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            steps += 1
    assert steps == 2
    command = [f"{tmp_path}/opt/fairq/bin/fairq", "serve", "--dev", "--port", "0", "--data-dir", f"{tmp_path}/data"]
    server = subprocess.Popen(
        command, env=environment({"PYTHONPATH": ""}), cwd=tmp_path, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        assert "ws://" in read_until(server, "serving")
    finally:
        server.terminate()
        server.communicate(timeout=EXIT_SECONDS)
    assert server.returncode == 0
