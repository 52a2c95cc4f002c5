"""Clears the frames of a handler's exception, so that what they hold is freed when the task has ended.

A traceback refers to frames, and a frame often refers back to the exception, or to one that led to it: the worker's own
frames do, those of contextlib, of asyncio's and anyio's task groups, and handlers'. Such a cycle, with all that the
handler had, is only freed by Python's garbage collector. So the worker clears the frames of exceptions that it catches.
"""

from __future__ import annotations

from contextlib import suppress
from gc import get_referents
from types import FrameType

_traceback, *_LED_TO_IT = [  # an exception's own may raise
    vars(BaseException)[name].__get__ for name in ("__traceback__", "__cause__", "__context__")
]
_in_group = vars(BaseExceptionGroup)["exceptions"].__get__


def let_frames_go(error: BaseException) -> None:
    """Empty the frames of an exception, and of all that led to it or are in its group, and take its traceback off."""
    seen, waiting = set[int](), [error]
    while waiting:
        error = waiting.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        waiting += [each for find in _LED_TO_IT if (each := find(error)) is not None]
        if issubclass(type(error), BaseExceptionGroup):
            waiting += _in_group(error)
        frames = _traceback(error)
        BaseException.with_traceback(error, None)
        while frames is not None:
            if _has_ended(frames.tb_frame):
                with suppress(RuntimeError):  # it runs or is suspended, on Pythons that check
                    frames.tb_frame.clear()
            frames = frames.tb_next


def _has_ended(frame: FrameType) -> bool:
    """True unless a frame runs or is suspended: only then does the collector see what it holds, such as its code.

    Clearing a suspended frame would end a generator or coroutine that is used elsewhere.
    """
    return any(each is frame.f_code for each in get_referents(frame))
