"""Ends a worker's process that does not end by itself, since a handler swallows its cancellation or blocks the loop.

| the process is to end, since | it ends at the latest | if no task runs then |
|---|---|---|
| a first signal came | after the grace and KILL_S | LEAVE_S later |
| a second signal came, or the worker has cancelled its handlers | after KILL_S | LEAVE_S later |

Each task that still runs gets a line in the log. LEAVE_S is for what comes after the tasks, each with its own limit:
they are given back, and `on_shutdown` is called. It is not waited for once the worker has left.

A thread does this, which no blocked loop hinders. A handler that keeps the interpreter's lock does: `faulthandler`,
which needs no lock, ends that process SLACK_S later, and writes where the handler is.
"""

from __future__ import annotations

import faulthandler
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import Protocol

from attrs import define, field

from fairq.log import Log

log = Log("fairq.worker")

KILL_S = 5.0  # for handlers to end, once they are cancelled
LEAVE_S = 5.0
LOOK_S = 0.25
SLACK_S = 2.0
_FAILED = 1
_STANDARD_ERROR = 2


class Ends(Protocol):
    """A worker, or a service of several."""

    @property
    def is_leaving(self) -> bool: ...

    def tell_running(self) -> int:
        """Log each task that runs, as one that is left; returns how many."""


@define(eq=False)
class Ending:
    """Watches over one run of a worker."""

    app: Ends
    flush: Callable[[], object]  # writes what is logged
    _signalled_to: float = field(default=inf, init=False)
    has_left: bool = field(default=False, init=False)  # the worker: only what its handlers have left still runs
    _left_to: float = field(default=inf, init=False)
    _armed_to: float = field(default=inf, init=False)  # for faulthandler
    _is_over: threading.Event = field(factory=threading.Event, init=False)
    _thread: threading.Thread = field(init=False)

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._watch, name="fairq ending", daemon=True)
        self._thread.start()

    def within(self, seconds: float) -> None:
        """End the process after this time, unless an earlier end is set. A signal's handler may call it."""
        self._signalled_to = min(self._signalled_to, monotonic() + seconds)
        self._arm(self._signalled_to)

    def _arm(self, moment: float) -> None:
        self._armed_to = moment
        left = max(0.0, moment - monotonic()) + SLACK_S
        if left < threading.TIMEOUT_MAX:
            faulthandler.dump_traceback_later(left, exit=True, file=_STANDARD_ERROR)

    def _watch(self) -> None:
        while not self._is_over.wait(LOOK_S):
            now = monotonic()
            if self.app.is_leaving:
                self._left_to = min(self._left_to, now + KILL_S)
            last = min(self._signalled_to, self._left_to)
            if now >= last and self.app.tell_running():
                self._end()
            if now >= last and (self.has_left or now >= last + LEAVE_S):
                log.error("the worker's process does not end by itself; it is ended")
                self._end()
            if last < inf and self._armed_to != (moment := last if now < last else last + LEAVE_S):
                self._arm(moment)

    def _end(self) -> None:
        self.flush()
        os._exit(_FAILED)

    def close(self) -> None:
        """Watch no more."""
        self._is_over.set()
        self._thread.join()
        if self._armed_to < inf:
            faulthandler.cancel_dump_traceback_later()


@contextmanager
def ending(app: Ends, flush: Callable[[], object] = bool) -> Iterator[Ending]:
    """Watch over a worker while the block lasts."""
    found = Ending(app, flush)
    found.start()
    try:
        yield found
    finally:
        found.close()
