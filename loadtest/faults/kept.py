"""Processes that are started again whenever they end, and what is done to them."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import define, field

from fairq.store.embedded import log_tail
from loadtest.faults.forking import Fork
from loadtest.processes import START_S

_PAUSE_S = 0.1  # before a process that ended by itself is started again


@define(eq=False)
class Kept:
    """A process that is started while `run` runs. `crashes`: the end of its log, when nobody had ended it."""

    start: Callable[[], Awaitable[Fork]]
    log: Path
    crashes: list[str] = field(factory=list, init=False)
    _process: Fork | None = field(default=None, init=False)
    _may_start: trio.Event = field(factory=trio.Event, init=False)
    _is_ended: bool = field(default=False, init=False)  # by us

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep it running until cancelled; its forker ends it."""
        self._may_start.set()
        while True:
            await self._may_start.wait()
            self._is_ended, process = False, await self.start()
            if self._process is None:
                task_status.started()
            self._process = process
            await process.wait()
            if not self._is_ended:
                self.crashes.append(log_tail(self.log))
                await trio.sleep(_PAUSE_S)

    async def running(self) -> Fork:
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
