"""The service of `fairq demo --stay`: a server and two workers that run on in a folder of their own, until `--end`."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import trio

from fairq.client.defaults import DEFAULT_URL
from fairq.demo.processes import HANDLERS, STOP_LIMIT_S, Service, stop_orphaned_store
from fairq.errors import SettingsError

FOLDER = Path("fairq-demo")
_MARKS = (HANDLERS, str(FOLDER.absolute()))  # one of them stands in the command line of each process
PORT = urlsplit(DEFAULT_URL).port or 0  # the usual one; the next two are used as well
_NOTE = "processes.json"  # name -> process id, in the order in which they are ended


def running() -> dict[str, int]:
    """Return the processes of a demonstration that stayed in this folder, by name."""
    try:
        noted: Mapping[str, int] = orjson.loads((FOLDER / _NOTE).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return {name: pid for name, pid in noted.items() if any(mark in _command_of(pid) for mark in _MARKS)}


def _command_of(pid: int) -> str:
    """Return the command line of a process; empty if there is none: its id may be another one's by now."""
    return subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True).stdout


@contextmanager
def folder_of_its_own() -> Iterator[Path]:
    """Make the folder; it goes again unless `note` was called. Raises: SettingsError if there is one already."""
    folder = FOLDER.absolute()
    if running():
        raise SettingsError(f"a demo is already running in {folder}: fairq demo --end ends it", field="stay")
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        raise SettingsError(f"{folder} already exists: remove it, or use another folder", field="stay") from None
    try:
        yield folder
    finally:
        if not (folder / _NOTE).exists():
            shutil.rmtree(folder)


def check_ports() -> None:
    """Check that the server's three ports are free. Raises: SettingsError."""
    for port in range(PORT, PORT + 3):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            raise SettingsError(
                f"port {port} is taken; if a demo in another folder uses it, end it there: fairq demo --end",
                field="stay",
            ) from None


def note(folder: Path, processes: Mapping[str, int]) -> None:
    """Keep the ids of the processes that stay, in the order in which they are to be ended."""
    (folder / _NOTE).write_bytes(orjson.dumps(processes))


def end() -> bool:
    """End the demonstration that stayed in this folder, and remove what it kept; returns whether there was one."""
    if not (FOLDER / _NOTE).exists():
        return False
    for pid in running().values():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            _wait_gone(pid)
    trio.run(stop_orphaned_store, FOLDER / "data")
    shutil.rmtree(FOLDER)
    return True


def _wait_gone(pid: int) -> None:
    until = time.monotonic() + STOP_LIMIT_S
    while time.monotonic() < until:
        os.kill(pid, 0)
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)


def describe(service: Service) -> str:
    """Write where what stays is, and how it is used and ended."""
    return (
        f"Still up, in {FOLDER}/: a server and two workers.\n"
        f"  dashboard  {service.admin}\n"
        f"  server     {service.url}, HTTP {service.http}\n"
        "  tokens     dev-tenant:NAME, dev-worker, dev-operator\n"
        "fairq demo --end ends them."
    )
