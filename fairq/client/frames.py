"""Lets go the frames of what a handler raised: what they hold is free when the task has ended.

A traceback names frames, and a frame often has the exception that names it, or one that led to it: the worker's own
frames, those of contextlib, of asyncio's and anyio's task groups, and handlers' do. Such a circle waits for Python's
collector, with all that the handler had. What takes an exception out of a handler lets its frames go.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR

_traceback, *_LED_TO_IT = [  # an exception's own may raise
    vars(BaseException)[name].__get__ for name in ("__traceback__", "__cause__", "__context__")
]
_in_group = vars(BaseExceptionGroup)["exceptions"].__get__
_CLEAR_CLOSES = 0 if sys.version_info >= (3, 13) else CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


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
            if not frames.tb_frame.f_code.co_flags & _CLEAR_CLOSES:  # one that is suspended goes on elsewhere
                with suppress(RuntimeError):  # so does one that runs
                    frames.tb_frame.clear()
            frames = frames.tb_next
