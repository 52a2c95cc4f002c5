"""The command line, run inside the test where nothing speaks against it, and as a process where something does."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, chdir, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio
from attrs import frozen

from fairq.cli.app import run
from fairq.model.checks import full_id
from fairq.model.tasks import NewTask, Settlement, TaskState
from fairq.server.run import Served
from fairq.store.partitions import place_in
from tests.server.harness import OPERATOR, running, tenant, url_of

EXIT_SECONDS = 120.0


@frozen
class Finished:
    """What a command ended with."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, read as JSON."""
        return orjson.loads(self.out)


class Terminal(io.StringIO):
    """A stream with somebody at it, who types or reads."""

    def isatty(self) -> bool:
        return True


class ServerThread:
    """A server in a thread of its own, so that commands can run in the test's."""

    def __init__(self, store: str, **settings: Any) -> None:
        self._store, self._settings = store, settings
        self._started = threading.Event()
        self._stop: trio.Event
        self._token: trio.lowlevel.TrioToken
        self._served: Served | None = None
        self._thread = threading.Thread(target=trio.run, args=(self._serve,), name="server")

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Served]:
        """Run what the thread runs."""
        async with running(self._store, **self._settings) as served:
            yield served

    async def _serve(self) -> None:
        self._stop, self._token = trio.Event(), trio.lowlevel.current_trio_token()
        try:
            async with self.serving() as served:
                self._served = served
                self._started.set()
                await self._stop.wait()
        finally:
            self._started.set()

    def start(self) -> None:
        """Start the thread and wait until the server serves."""
        self._thread.start()
        assert self._started.wait(30)
        assert self._served is not None

    def call(self, work: Any, *args: Any) -> Any:
        """Run an async function in the server's thread."""
        return trio.from_thread.run(work, *args, trio_token=self._token)

    def state(self, id: str, queue: str = "emails", tenant: str = "ada") -> TaskState:
        """Ask the store what it knows of a task."""
        states: list[TaskState] = self.call(self.served.app.store.tasks, queue, [full_id(tenant, id)])
        return states[0]

    def stop(self) -> None:
        """Stop the server and wait for the thread."""
        if self._served is not None:
            self._token.run_sync_soon(self._stop.set)
        self._thread.join(30)
        assert not self._thread.is_alive()

    @property
    def served(self) -> Served:
        """The server that runs."""
        assert self._served is not None
        return self._served

    @property
    def url(self) -> str:
        return url_of(self.served)


TIMEOUTS = "0.5", "4", "16"  # of commands that are to fail in time, and know why by then: a busy machine is late


class Commands:
    """Runs commands against a server, as an operator or a tenant."""

    def __init__(self, url: str, capture: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self._capture = capture

    def __call__(self, *argv: str, token: str | None = OPERATOR) -> Finished:
        """Run a command in this process; returns what it ended with."""
        self._capture.readouterr()
        options = ["--url", self.url, *(["--token", token] if token else [])]
        code = run([*argv, *options])
        out, err = self._capture.readouterr()
        return Finished(code, out, err)

    def enqueue(self, queue: str, payload: str, *more: str, name: str = "ada") -> str:
        """Enqueue a task as a tenant; returns its id."""
        done = self("enqueue", queue, payload, *more, token=tenant(name))
        assert done.code == 0, done.err
        return done.out.strip()


def bury(
    server: ServerThread,
    name: str,
    ids: Sequence[str],
    error: str = "no way",
    payload: bytes = b'"x"',
    traceback: str = "",
) -> None:
    """Make dead letters of a tenant; nothing else may be ready."""
    store = server.served.app.store
    tasks = [NewTask(full_id(name, id), payload) for id in ids]
    assert server.call(store.enqueue, "emails", name, tasks) == ["ok"] * len(ids)
    buried, place = 0, place_in(store.registry.places_known("emails"), name)
    while buried < len(ids):
        leases = server.call(store.claim, place, "w", len(ids) - buried).leases
        rejected = [Settlement("reject", lease.id, lease.lease, None, error, traceback=traceback) for lease in leases]
        assert server.call(store.settle, place, rejected) == ["ok"] * len(leases) != []
        buried += len(leases)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for commands: ours without FAIRQ_* variables, and with what is given."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("FAIRQ_")}
    return {**ours, **(extra or {})}


def check_error(done: Finished, code: int, *words: str) -> None:
    """Check that a command failed as commands must."""
    assert done.code == code, done
    assert "Traceback" not in done.err, done
    assert len(done.err.strip().splitlines()) == 1, done
    for word in words:
        assert word in done.err, done


def fairq_here(*argv: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Finished:
    """Run a command in this process, to its end; it logs nothing, and its app's module is `mail`."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, chdir(cwd or "."), redirect_stdout(out), redirect_stderr(err):
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        for module in ("serve", "webhook_worker", "worker"):
            patch.setattr(f"fairq.cli.{module}.open_log", lambda: nullcontext(sys.stderr))
        for module in ("backup", "doctor", "restore", "serve", "webhook_worker", "worker"):
            patch.setattr(f"fairq.cli.{module}.configure_logging", lambda *_, **__: None)
        patch.setattr(sys, "path", sys.path[:])
        try:
            code = run([str(word) for word in argv])
        except SystemExit as ended:  # by ctrl-C
            code = int(ended.code or 0)
        finally:
            sys.modules.pop("mail", None)
    return Finished(code, out.getvalue(), err.getvalue())


def fairq(*argv: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Finished:
    """Run a command as a process, to its end."""
    return python("-m", "fairq", *argv, env=env, cwd=cwd)


def python(*argv: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Finished:
    """Run Python as a process, to its end."""
    done = subprocess.run(
        [sys.executable, *map(str, argv)],
        env=environment(env), cwd=cwd, capture_output=True, text=True, timeout=EXIT_SECONDS, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return Finished(done.returncode, done.stdout, done.stderr)


@contextmanager
def started(
    *argv: str | Path, cwd: Path | None = None, extra: Mapping[str, str] | None = None, module: str = "fairq"
) -> Iterator[subprocess.Popen[str]]:
    """Run a command as a process while the block lasts; its standard error is a pipe."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *map(str, argv)], env=environment(extra), cwd=cwd, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.communicate(timeout=EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def worker_in(folder: Path, source: str, url: str) -> list[str]:
    """Write an app into a folder; returns the command that runs its worker there."""
    (folder / "mail.py").write_text(source)
    return ["worker", "mail:app", "--url", url, "--token", "dev-worker"]


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Read a process's output up to the line that holds a text; returns that line."""
    assert process.stdout is not None
    seen: Sequence[str] = []
    for line in process.stdout:
        seen = [*seen, line]
        if text in line:
            return line
    raise AssertionError("".join(seen))
