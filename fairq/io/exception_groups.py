"""Exceptions out of task groups: a single one comes as it is, under every runtime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def leaves(error: BaseException) -> list[BaseException]:
    """Return the exceptions that a group holds, however deep, in their order; of no group, the exception itself."""
    found, waiting = list[BaseException](), [error]
    while waiting:
        error = waiting.pop()
        if isinstance(error, BaseExceptionGroup):
            waiting += reversed(error.exceptions)
        else:
            found.append(error)
    return found


def unwrap(error: BaseException) -> BaseException:
    """Return the one exception that a group holds, however deep; a group of several, or no group, as it is."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


@contextmanager
def ungrouped() -> Iterator[None]:
    """Raise a single exception of the block as it is, not in a group."""
    try:
        yield
    except BaseExceptionGroup as group:
        error = unwrap(group)
        if error is group:
            raise
        try:
            raise error from error.__cause__
        finally:
            del error  # its traceback has this frame
