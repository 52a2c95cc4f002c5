"""Handlers that are plain functions: a thread for each task, and the count of abandoned threads.

A thread cannot be cancelled. Where its task's lease is lost the worker goes on without it, but the thread keeps its
place until its function returns.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import anyio
from attrs import define, field

from fairq.client.runtime import Runtime, current_runtime


@define(eq=False)
class Threads:
    """Runs functions in threads, `most` at once. `changed` is called when the number of abandoned ones has changed."""

    most: int
    changed: Callable[[], None] = lambda: None
    abandoned: int = field(default=0, init=False)
    _runtime: Runtime = field(factory=current_runtime, init=False)
    _places: anyio.CapacityLimiter = field(init=False)
    _unlimited: anyio.CapacityLimiter = field(factory=lambda: anyio.CapacityLimiter(inf), init=False)

    def __attrs_post_init__(self) -> None:
        self._places = anyio.CapacityLimiter(self.most)

    async def run(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Call a function in a thread. Cancelled: the thread is abandoned, and counted until it ends."""
        run = _Run(self, function, argument)
        await self._places.acquire_on_behalf_of(run)
        try:
            return await anyio.to_thread.run_sync(run.call, abandon_on_cancel=True, limiter=self._unlimited)
        finally:
            run.left()

    def place_free(self, run: _Run, was_abandoned: bool) -> None:
        """Give a thread's place to the next one."""
        self._places.release_on_behalf_of(run)
        if was_abandoned:
            self.abandoned -= 1
            self.changed()

    def ended_soon(self, ended: Callable[[], None]) -> None:
        """From a thread: call a function in the event loop, if it still runs."""
        self._runtime.call_from_thread(ended)


@define(eq=False)
class _Run:
    """One call of a function in a thread: it has its place until the function returns, or is left and never begins."""

    threads: Threads
    function: Callable[[Any], Any]
    argument: Any
    _has_begun: bool = field(default=False, init=False)
    _is_left: bool = field(default=False, init=False)
    _has_ended: bool = field(default=False, init=False)
    _is_abandoned: bool = field(default=False, init=False)

    def call(self) -> Any:
        """Call the function, in a thread."""
        self._has_begun = True
        try:
            return None if self._is_left else self.function(self.argument)
        finally:
            self.threads.ended_soon(self._ended)

    def _ended(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self.threads.place_free(self, self._is_abandoned)

    def left(self) -> None:
        """Note that no one waits for the function: it has returned, or its caller was cancelled."""
        self._is_left = True  # first: a thread that begins now sees it, or else it has begun
        if not self._has_begun:
            self._ended()
        elif not self._has_ended:
            self._is_abandoned = True
            self.threads.abandoned += 1
            self.threads.changed()
