"""Processes that are started again whenever they end, and what is done to them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import define, field

from fairq.store.embedded import log_tail
from loadtest.processes import START_S, Process, stop

_PAUSE_S = 0.1  # before a process that ended by itself is started again
_GRACE_S = 10.0  # at the end of the run


async def start_process(
    command: Sequence[str], log: Path, *, home: Path | None = None, variables: Mapping[str, str] | None = None
) -> trio.Process:
    """Start a process in a session of its own, without this one's variables of fairq; a log gets its output."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("FAIRQ_")}
    with log.open("ab") as file:
        return await trio.lowlevel.open_process(
            list(command), cwd=home, env={**own, **(variables or {})}, stdin=subprocess.DEVNULL, stdout=file,
            stderr=file, start_new_session=True,
        )  # fmt: skip


@define(eq=False)
class Kept:
    """A process that runs while `run` runs. `crashes`: how it ended each time when nobody had ended it."""

    start: Callable[[], Awaitable[Process]]
    log: Path = Path(os.devnull)
    crashes: list[str] = field(factory=list, init=False)
    _process: Process | None = field(default=None, init=False)
    _may_start: trio.Event = field(factory=trio.Event, init=False)
    _is_ended: bool = field(default=False, init=False)  # by us

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep it running until cancelled."""
        self._may_start.set()
        while True:
            await self._may_start.wait()
            self._is_ended, process = False, await self.start()
            if self._process is None:
                task_status.started()
            self._process = process
            try:
                await process.wait()
            finally:
                await stop(process, _GRACE_S)
            if not self._is_ended:
                self.crashes.append(f"code {process.returncode}: {log_tail(self.log)}")
                await trio.sleep(_PAUSE_S)

    async def running(self) -> Process:
        """Return the process when it runs: a fault that hits nothing proves nothing."""
        with trio.fail_after(START_S):
            while (process := self._process) is None or process.poll() is not None:  # noqa: ASYNC110 - it comes back
                await trio.sleep(0.02)
        return process

    async def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the process by a signal: another one takes its place."""
        process = await self.running()
        self._is_ended = True
        process.send_signal(number)
        await process.wait()

    @asynccontextmanager
    async def down(self) -> AsyncIterator[None]:
        """Kill the process, and let no other one take its place while the context lasts."""
        self._may_start = trio.Event()
        try:
            await self.end()
            yield
        finally:
            self._may_start.set()

    @asynccontextmanager
    async def still(self) -> AsyncIterator[None]:
        """Let the process stand still while the context lasts."""
        process = await self.running()
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
