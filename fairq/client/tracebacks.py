"""The traceback kept with a dead letter, of the exception that its handler raised."""

from __future__ import annotations

from traceback import format_exception
from types import TracebackType

from fairq.io.interrupts import is_of_signal
from fairq.log import Log
from fairq.model.checks import MAX_TRACEBACK_BYTES

log = Log("fairq.worker")

_PART_BYTES = 1_024  # of one frame or message
_CUT = b"\n[... the middle is left out ...]\n"
_MACHINERY = ("fairq.client", "fairq.testing", "anyio", "asyncio", "trio")  # what calls handlers


def traceback_of(error: BaseException) -> str:
    """Write the traceback of what a handler raised and of its causes, at most MAX_TRACEBACK_BYTES of UTF-8.

    Without the frames between the worker and the handler; empty if there are no others, and no cause.
    """
    try:
        frames = own_frames(error.__traceback__)
        if frames is None and error.__cause__ is None:
            return ""
        parts = format_exception(type(error), error, frames)
    except BaseException as failure:  # in the error's own code: what becomes of the task matters more
        if is_of_signal(failure):
            raise
        log.warning("a traceback cannot be written", error=type(error).__name__, why=type(failure).__name__)
        return ""
    return _shorten("".join(_shorten(part, _PART_BYTES) for part in parts).rstrip(), MAX_TRACEBACK_BYTES)


def own_frames(frames: TracebackType | None) -> TracebackType | None:
    """Skip the frames between the worker and the handler."""
    while frames is not None and _is_machinery(frames.tb_frame.f_globals.get("__name__")):
        frames = frames.tb_next
    return frames


def frames_of_hook(frames: TracebackType | None) -> TracebackType | None:
    """Skip the frames that lead to a function of on_startup; None if there was none."""
    while frames is not None and frames.tb_frame.f_globals.get("__name__") != "fairq.client.hooks":
        frames = frames.tb_next
    return own_frames(frames)


def _is_machinery(module: object) -> bool:
    return isinstance(module, str) and any(module == name or module.startswith(f"{name}.") for name in _MACHINERY)


def _shorten(text: str, most: int) -> str:
    """Cut out the middle of a text that is too long: the last lines say most, the first lines where it began."""
    whole = text.encode(errors="backslashreplace")
    if len(whole) <= most:
        return whole.decode()
    head = (most - len(_CUT)) // 4
    tail = most - len(_CUT) - head
    return (whole[:head] + _CUT + whole[-tail:]).decode(errors="ignore")
