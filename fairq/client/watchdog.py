"""Warns of handlers that block the event loop: while one does, no other task runs and no lease is renewed.

A thread looks now and then at what the event loop's thread runs. That costs tasks nothing, and wakes no idle loop. If
it finds a handler, it asks the loop to answer. A handler that still runs after BLOCKED_S without an answer has blocked
the loop for that time.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from attrs import define, field

from fairq.client.handlers import perform
from fairq.io.runtime import Runtime
from fairq.log import Log

log = Log("fairq.worker")

LOOK_S = 0.25
BLOCKED_S = 1.0  # or up to LOOK_S less: the handler may have begun just after a look
_MAX_FRAMES = 1_000


@define(eq=False)
class Watchdog:
    """Looks at one event loop's thread; `ask` has it call a function at its next turn."""

    ask: Callable[[Callable[[], None]], None]
    thread_id: int = field(factory=threading.get_ident)
    workers: int = field(default=0, init=False)  # that it watches for
    ended: threading.Event = field(factory=threading.Event, init=False)
    _asked_at: float | None = field(default=None, init=False)
    _has_warned: bool = field(default=False, init=False)
    _looked_at: float = field(factory=time.monotonic, init=False)

    def run(self) -> None:
        """Look until `ended`."""
        while not self.ended.wait(LOOK_S):
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Look once. A thread that could not look for long was itself kept from running, by what it finds now."""
        kept_from_s, self._looked_at = now - self._looked_at - LOOK_S, now
        if (found := handler_in(sys._current_frames().get(self.thread_id))) is None:
            return
        asked_at = self._asked_at  # the loop may answer at any moment
        if asked_at is None:
            asked_at = self._asked_at = now - max(0.0, kept_from_s)
            self._has_warned = False
            self.ask(self._answer)
        if now - asked_at >= BLOCKED_S - LOOK_S and not self._has_warned:
            self._has_warned = True
            handler, task, place = found
            log.warning(
                "a handler blocks the event loop: no other task goes on",
                handler=handler, queue=task.queue, task=task.id, at=place, s=round(now - asked_at, 1),
            )  # fmt: skip

    def _answer(self) -> None:
        self._asked_at = None


def handler_in(frame: FrameType | None) -> tuple[str, Any, str] | None:
    """Find a handler among a thread's frames; returns its name, its task, and where it is now."""
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return None
        if frame.f_code is perform.__code__:
            names = frame.f_locals
            return (names["handler"].title, names["task"], place) if "task" in names else None
        frame = frame.f_back
    return None


_watchdogs: dict[int, Watchdog] = {}  # of event loops, by their threads


@contextmanager
def watching(runtime: Runtime) -> Iterator[None]:
    """Watch the running event loop while the block lasts; one thread does it for all workers of a loop."""
    me = threading.get_ident()
    if (watchdog := _watchdogs.get(me)) is None:
        watchdog = Watchdog(runtime.call_from_thread)
        threading.Thread(target=watchdog.run, name="fairq watchdog", daemon=True).start()
        _watchdogs[me] = watchdog
    watchdog.workers += 1
    try:
        yield
    finally:
        watchdog.workers -= 1
        if not watchdog.workers:
            del _watchdogs[me]
            watchdog.ended.set()
