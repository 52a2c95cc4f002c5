"""The processes of a run begin as forks: kills by the thousand would else spend half of the CPU on imports.

A *forker* imports what servers and workers run, and then forks one for each line that it reads: its command, variables
and log. It answers with the fork's id. A fork is a process as any other: in a session of its own, with nothing of its
forker's but modules. The run knows by its pidfd (pidfd_open(2)) when it has ended, but no exit code.

When the forker's input ends, the run is over, or was killed. The forker then kills all processes below it: also those
that stand still, and the store of a server that died, whose parent it has become (PR_SET_CHILD_SUBREAPER).
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import trio
from attrs import define, field

from loadtest.processes import ROOT, START_S, RunFailed, children, environment

FAIRQ = "fairq"  # as the first word of a command: the version of the forker
_MODULES = ("fairq.cli.serve", "fairq.cli.worker", "fairq.server.run", "fairq.client.worker_run", "rich.console")
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


@define(eq=False)
class Fork:
    """A process that a forker has made, by its pidfd; `returncode` is 0 when it has ended, however it did."""

    pid: int
    returncode: int | None = field(default=None, init=False)
    _pidfd: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            self.returncode = 0

    def poll(self) -> int | None:
        """Return 0 if it has ended, else None."""
        if self.returncode is None and select.select([self._pidfd], [], [], 0)[0]:
            self.returncode = 0
            os.close(self._pidfd)
        return self.returncode

    async def wait(self) -> int:
        """Wait until it has ended; any number of tasks may."""
        while self.poll() is None:
            own = os.dup(self._pidfd)
            try:
                await trio.lowlevel.wait_readable(own)  # which may return too early
            finally:
                os.close(own)
        return 0

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


@define(eq=False)
class Forker:
    """A process that forks those of a run, with one version of fairq, the package in `home`."""

    home: Path
    _process: trio.Process | None = field(default=None, init=False)
    _forks: list[Fork] = field(factory=list, init=False)  # that run
    _asking: trio.Lock = field(factory=trio.Lock, init=False)

    async def start(self, command: Sequence[str], log: Path, variables: Mapping[str, str]) -> Fork:
        """Start `fairq` or another program, with more variables; a log gets its output. Raises: RunFailed."""
        async with self._asking:
            if self._process is None:
                begin = (
                    f"import sys; sys.path.append({str(ROOT)!r}); from loadtest.faults.forking import serve; serve()"
                )
                self._process = await trio.lowlevel.open_process(
                    [sys.executable, "-c", begin], cwd=self.home, env=environment({}), stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, start_new_session=True,
                )  # fmt: skip
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            words = json.dumps({"command": command, "log": os.fspath(log), "variables": variables})
            await self._process.stdin.send_all(words.encode() + b"\n")
            answer = b""
            with trio.fail_after(START_S):
                while not answer.endswith(b"\n"):
                    if not (some := await self._process.stdout.receive_some()):
                        raise RunFailed("the process that forks the others has ended")
                    answer += some
            self._forks = [*self._running(), fork := Fork(int(answer))]
            return fork

    def _running(self) -> list[Fork]:
        return [fork for fork in self._forks if fork.poll() is None]

    async def close(self) -> None:
        """End the forker, and all that runs below it."""
        if self._process is not None:
            assert self._process.stdin is not None
            with trio.CancelScope(shield=True):
                await self._process.stdin.aclose()
                await self._process.wait()
            assert not self._running()


def serve() -> None:
    """Fork a process for each line of standard input, until that ends; then end all of them."""
    for name in _MODULES:
        import_module(name)
    gc.freeze()
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries what has ended
    try:
        for line in sys.stdin:
            if pid := os.fork():
                print(pid, flush=True)
            else:
                _become(**json.loads(line))
    finally:
        _end_all()


def _end_all() -> None:
    while below := children(os.getpid()):  # a store comes here when its server has ended
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _become(command: Sequence[str], log: str, variables: Mapping[str, str]) -> NoReturn:
    """Run a command in place of the forker; `ps -o comm` shows a fork of fairq by the name of its log."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.environ.update(variables)
    nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number, source in enumerate((nothing, output, output)):
        os.dup2(source, number)
    print("it has begun", flush=True)  # if this is the last line, a signal has ended it
    code: Any = 1
    try:
        if command[0] != FAIRQ:
            os.execvp(command[0], [*command])
        Path("/proc/self/comm").write_text(Path(log).stem)
        sys.argv[1:] = command[1:]
        from fairq.__main__ import main

        main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    finally:
        if not code:  # else it has said why
            print("it has ended with code 0")
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 1)
