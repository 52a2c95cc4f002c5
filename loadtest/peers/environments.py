"""The environments of the peers: a folder each, made once and kept, that touches nothing else on the machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import trio
from attrs import frozen

from loadtest.peers.catalogue import Peer
from loadtest.report import Progress
from tests import parts

VARIABLE = "FAIRQ_LOADTEST_PEERS"
SCRIPTS = Path(__file__).parent / "scripts"
INSTALL_S = 400.0
_PLACES = ("/usr/sbin", "/usr/local/sbin")  # of servers, not on everyone's PATH


class NotInstalled(Exception):
    """A peer cannot run here; the message names the remedy."""


def peers_directory() -> Path:
    """Return where the environments are: what `--peers-dir` or its variable says, else a folder in the user's cache."""
    if given := os.environ.get(VARIABLE):
        return Path(given).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairq-loadtest"


@frozen
class Environment:
    """How to run a peer's script: the command, variables, and the program of its store if that is its own."""

    command: tuple[str, ...]
    variables: dict[str, str]
    program: str = ""


def _program(folder: Path, name: str) -> str:
    path = os.pathsep.join([os.environ.get("PATH", ""), *_PLACES, *(str(folder / "usr" / d) for d in ("bin", "sbin"))])
    return shutil.which(name, path=path) or ""


def find(peer: Peer) -> Environment | None:
    """Return a peer's environment if all that it needs is installed."""
    folder = peers_directory() / peer.environment if peer.environment else None
    script, program, variables = str(SCRIPTS / peer.script), "", dict[str, str]()
    if folder and (peer.pip or peer.npm) and _noted(folder) != _wanted(peer):
        return None
    if folder and peer.apt and not (program := _program(folder, peer.apt)):
        return None
    if peer.store == "postgres" and not parts.find("pg_ctl"):
        return None
    python = str(folder / "bin" / "python") if folder and peer.pip else sys.executable
    command = (python, script)
    if folder and peer.npm:
        if not (node := shutil.which("node")):
            return None
        command, variables = (node, script), {"NODE_PATH": str(folder / "node_modules")}
    return Environment(command, variables, program)


def remedy(peer: Peer) -> str:
    """Say how a person installs a peer by hand."""
    folder = peers_directory() / peer.environment
    ways = []
    if peer.pip:
        ways.append(f"python -m venv {folder} && {folder}/bin/pip install {' '.join(map(repr, peer.pip))}")
    if peer.npm:
        ways.append(f"install Node.js and npm, then npm install --prefix {folder} {' '.join(peer.npm)}")
    if peer.apt:
        ways.append(f"apt-get install {peer.apt}")
    if peer.store == "postgres":
        ways.append("apt-get install postgresql")
    return "; ".join(ways)


def _wanted(peer: Peer) -> list[str]:
    return [*peer.pip, *peer.npm]


def _noted(folder: Path) -> list[str] | None:
    try:
        return list(json.loads((folder / "installed.json").read_text()))
    except (OSError, ValueError):
        return None


def _steps(peer: Peer, folder: Path) -> list[list[str]]:
    """Return the commands that install a peer; they run in its folder."""
    steps = []
    if peer.pip:
        steps.append([sys.executable, "-m", "venv", "--clear", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        steps.append([*pip, *peer.pip])
    if peer.npm:
        steps.append(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *peer.npm])
    if peer.apt and not _program(folder, peer.apt):
        steps.append(["apt-get", "download", peer.apt])
        steps.append(["sh", "-c", f"for file in {peer.apt}_*.deb; do dpkg-deb -x $file .; done"])
    return steps


async def install(peer: Peer, progress: Progress) -> Environment:
    """Return a peer's environment, made now if it is not there. Raises: NotInstalled with the remedy."""
    if environment := find(peer):
        return environment
    progress.say(f"{peer.name}: installing {' '.join([*_wanted(peer), *([peer.apt] if peer.apt else [])])}")
    folder = peers_directory() / peer.environment
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with trio.fail_after(INSTALL_S):
            for step in _steps(peer, folder):
                await trio.run_process(step, cwd=folder, capture_stdout=True, capture_stderr=True)
    except (OSError, subprocess.CalledProcessError, trio.TooSlowError) as error:
        said = (getattr(error, "stderr", None) or str(error).encode()).decode(errors="replace").strip().splitlines()
        raise NotInstalled(f"{said[-1] if said else 'it failed'}; remedy: {remedy(peer)}") from error
    (folder / "installed.json").write_text(json.dumps(_wanted(peer)))
    if environment := find(peer):
        return environment
    raise NotInstalled(f"remedy: {remedy(peer)}")
