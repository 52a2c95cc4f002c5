"""Handlers that are plain functions: a thread for each task, and the count of abandoned threads.

A thread cannot be cancelled. Where its task's lease is lost the worker goes on without it, but the thread keeps its
place until its function returns.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import trio
from attrs import define, field


@define(eq=False)
class Threads:
    """Runs functions in threads, `most` at once. `changed` is called when the number of abandoned ones has changed."""

    most: int
    changed: Callable[[], None] = lambda: None
    abandoned: int = field(default=0, init=False)
    _limiter: trio.CapacityLimiter = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._limiter = trio.CapacityLimiter(self.most)

    async def run(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Call a function in a thread. Cancelled: the thread is abandoned, and counted until it ends."""
        trio_token = trio.lowlevel.current_trio_token()
        has_ended = is_abandoned = False

        def ended() -> None:
            nonlocal has_ended
            has_ended = True
            if is_abandoned:
                self.abandoned -= 1
                self.changed()

        def call() -> Any:
            try:
                return function(argument)
            finally:
                with suppress(trio.RunFinishedError):
                    trio_token.run_sync_soon(ended)

        try:
            return await trio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._limiter)
        except trio.Cancelled:
            if not has_ended:
                is_abandoned = True
                self.abandoned += 1
                self.changed()
            raise
