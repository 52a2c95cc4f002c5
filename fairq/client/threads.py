"""Handlers that are plain functions: a thread for each task, and the count of abandoned threads.

A thread cannot be cancelled. Where its task's lease is lost, or its time is over, the worker goes on without it, but
the thread keeps its slot until its function returns. A process does not wait for such threads when it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import anyio
from attrs import define, field

from fairq.client.timeouts import within
from fairq.client.traceback_frames import let_frames_go
from fairq.io.daemon_threads import DaemonThreads
from fairq.io.event_loop import current_runtime
from fairq.io.forks import OwnProcess
from fairq.io.runtime import Runtime
from fairq.log import Log, name_of

log = Log("fairq.worker")

_MAX_SHOWN = 10  # functions in a line of the log


@define(eq=False)
class Threads:
    """Runs functions in threads, `most` at once. `changed` is called when the number of abandoned ones has changed."""

    most: int
    changed: Callable[[], None] = lambda: None
    runtime: Runtime = field(factory=current_runtime, init=False)
    _slots: anyio.CapacityLimiter = field(init=False)
    _unlimited: anyio.CapacityLimiter = field(factory=lambda: anyio.CapacityLimiter(inf), init=False)
    _daemons: DaemonThreads | None = field(default=None, init=False)
    _abandoned: set[_Run] = field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self._slots = anyio.CapacityLimiter(self.most)
        if not self.runtime.has_daemon_threads:
            self._daemons = DaemonThreads(self.runtime)

    @property
    def abandoned(self) -> int:
        """The number of threads with a function that still runs, though no task waits for it."""
        return len(self._abandoned)

    def names_of_abandoned(self) -> list[str]:
        """Name the functions that abandoned threads still run."""
        return sorted(name_of(run.function) for run in self._abandoned)

    async def run(self, function: Callable[[Any], Any], argument: Any, limit_s: float = inf) -> Any:
        """Call a function in a thread, for at most `limit_s` from when it has a slot.

        Cancelled, or too late: the thread is abandoned, and counted until it ends. Raises: TimedOut, and what it does.
        """
        run = _Run(self, function, argument)
        try:
            self._slots.acquire_on_behalf_of_nowait(run)
        except anyio.WouldBlock:
            await self._slots.acquire_on_behalf_of(run)
        try:
            try:
                await within(limit_s, partial(self._in_thread, run.call))
            except BaseException:
                run.left()
                raise
            if run.error is not None:
                raise run.error
            return run.result
        finally:
            del run  # the error's traceback has this frame

    async def _in_thread(self, call: Callable[[], None]) -> None:
        if self._daemons is not None:
            await self._daemons.run(call)
        else:
            await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._unlimited)

    def _fields(self) -> dict[str, Any]:
        return {"count": self.abandoned, "functions": self.names_of_abandoned()[:_MAX_SHOWN]}

    def close(self) -> None:
        """End the idle threads, and log the abandoned ones."""
        if self._daemons is not None:
            self._daemons.close()
        if self._abandoned:
            log.warning("plain functions still run in abandoned threads; they end with the process", **self._fields())

    def abandon(self, run: _Run) -> None:
        """Count a thread as abandoned until its function returns."""
        self._abandoned.add(run)
        self.changed()
        if self.abandoned == self.most:
            log.error("abandoned threads keep all slots: no task is taken until one ends", **self._fields())

    def free_slot(self, run: _Run) -> None:
        """Give a thread's slot to the next one."""
        self._slots.release_on_behalf_of(run)
        if run in self._abandoned:
            self._abandoned.remove(run)
            self.changed()


@define(eq=False)
class _Run:
    """One call of a function in a thread: it has its slot until the function returns, or is left and never begins.

    It keeps the result of the call: trio's threads refuse some results, and die of some errors.
    """

    threads: Threads
    function: Callable[[Any], Any]
    argument: Any
    result: Any = field(default=None, init=False)
    error: BaseException | None = field(default=None, init=False)
    _has_begun: bool = field(default=False, init=False)
    _is_left: bool = field(default=False, init=False)
    _has_ended: bool = field(default=False, init=False)

    def call(self) -> None:
        """Call the function, in a thread."""
        self._has_begun = True
        try:
            if not self._is_left:
                with OwnProcess():
                    self.result = self.function(self.argument)
        except BaseException as error:
            self.error = error
            if self._is_left:
                let_frames_go(error)
        finally:
            self.threads.runtime.call_from_thread(self._ended)

    def _ended(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self.threads.free_slot(self)

    def left(self) -> None:
        """Record that the caller was cancelled and no longer waits for the function."""
        self._is_left = True  # first: a thread that begins or fails now sees it, or else it has begun or failed
        if self.error is not None:
            let_frames_go(self.error)
        if not self._has_begun:
            self._ended()
        elif not self._has_ended:
            self.threads.abandon(self)
