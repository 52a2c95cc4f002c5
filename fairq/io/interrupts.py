"""Recognises exceptions that a signal has raised, as ctrl-C raises KeyboardInterrupt.

Python calls a signal's handler wherever the main thread is, so the exception that it raises may come out of a task's
handler, as if that had raised it. But the first stops the program, and the second fails a task. So while a worker runs,
the program's handlers of SIGINT and SIGTERM are called through `_Remembering`, which keeps the exception that they
raise. Under `fairq worker` signals raise nothing.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from attrs import define, field

from fairq.io.forks import replacing_signal

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


@define(eq=False)
class _Remembering:
    """A signal handler that calls the previous one."""

    before: Callable[[int, FrameType | None], Any]
    raised: BaseException | None = field(default=None, init=False)  # the newest

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            self.before(number, frame)
        except BaseException as error:
            self.raised = error
            raise


_ours: dict[int, _Remembering] = {}  # by the signal's number, while workers run in the main thread
_set = ExitStack()
_runs = 0  # how many workers run in the main thread


def is_of_signal(error: BaseException) -> bool:
    """True if it was a signal that raised this exception."""
    return any(error is each.raised for each in _ours.values())


@contextmanager
def bearing_its_own_code() -> Iterator[None]:
    """Ignore what an error's own code raises, such as its `__str__`. Raises: exceptions of signals."""
    try:
        yield
    except BaseException as failure:
        if is_of_signal(failure):
            raise


@contextmanager
def remembering_interrupts() -> Iterator[None]:
    """Remember what signals raise meanwhile; only the main thread runs their handlers."""
    global _runs
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _runs:
        _take_over()
    _runs += 1
    try:
        yield
    finally:
        _runs -= 1
        if not _runs:
            _give_back()


def _take_over() -> None:
    for number in _NUMBERS:
        if callable(before := signal.getsignal(number)):
            _ours[number] = ours = _Remembering(before)
            _set.enter_context(replacing_signal(number, ours))


def _give_back() -> None:
    _set.close()
    _ours.clear()
