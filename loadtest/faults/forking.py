"""Processes of fairq that begin as forks: kills by the thousand would else spend half of the CPU on imports.

A *forker* imports what servers and workers run, and then forks one for each line that it reads: its arguments,
variables and log. It answers with the fork's id. A fork is a process as any other: in a session of its own, with
nothing of its forker's but modules. Who asked for it knows by its pidfd (pidfd_open(2)) when it has ended, and no code.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import trio
from attrs import define, field

from loadtest.processes import ROOT, START_S, RunFailed

MODULES = ("fairq.cli.serve", "fairq.cli.worker", "fairq.server.run", "fairq.client.worker_run", "rich.console")


@define(eq=False)
class Fork:
    """A process that a forker has made, by its pidfd; `returncode` is 0 when it has ended, however it did."""

    pid: int
    returncode: int | None = field(default=None, init=False)
    _pidfd: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._pidfd = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """Return 0 if it has ended, else None."""
        if self.returncode is None and select.select([self._pidfd], [], [], 0)[0]:
            self.returncode = 0
            os.close(self._pidfd)
        return self.returncode

    async def wait(self) -> int:
        """Wait until it has ended; any number of tasks may."""
        if self.poll() is None:
            own = os.dup(self._pidfd)
            try:
                await trio.lowlevel.wait_readable(own)
            finally:
                os.close(own)
            self.poll()
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
    """A process that forks those of one version of fairq, the package in `home`."""

    home: Path
    _process: trio.Process | None = field(default=None, init=False)
    _asking: trio.Lock = field(factory=trio.Lock, init=False)

    async def start(self, arguments: Sequence[str], log: Path, variables: Mapping[str, str]) -> Fork:
        """Start a process with these arguments for `fairq`, and variables; a log gets its output. Raises: RunFailed."""
        async with self._asking:
            if self._process is None:
                begin = (
                    f"import sys; sys.path.append({str(ROOT)!r}); from loadtest.faults.forking import serve; serve()"
                )
                own = {name: value for name, value in os.environ.items() if not name.startswith("FAIRQ_")}
                self._process = await trio.lowlevel.open_process(
                    [sys.executable, "-c", begin], cwd=self.home, env=own, stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, start_new_session=True,
                )  # fmt: skip
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            words = json.dumps({"arguments": arguments, "log": os.fspath(log), "variables": variables})
            await self._process.stdin.send_all(words.encode() + b"\n")
            answer = b""
            with trio.fail_after(START_S):
                while not answer.endswith(b"\n"):
                    if not (some := await self._process.stdout.receive_some()):
                        raise RunFailed("the process that forks those of fairq has ended")
                    answer += some
            return Fork(int(answer))

    async def close(self) -> None:
        """End the forker; what it has forked goes on."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait()


def serve() -> None:
    """Fork a process for each line of standard input, until that ends."""
    for name in MODULES:
        import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries what has ended
    for line in sys.stdin:
        if pid := os.fork():
            print(pid, flush=True)
        else:
            _become(**json.loads(line))


def _become(arguments: Sequence[str], log: str, variables: Mapping[str, str]) -> NoReturn:
    """Run fairq in place of the forker."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.environ.update(variables)
    nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number, source in enumerate((nothing, output, output)):
        os.dup2(source, number)
    sys.argv[1:] = arguments
    from fairq.__main__ import main

    code: Any = 1
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 1)
