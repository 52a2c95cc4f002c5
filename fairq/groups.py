"""Exceptions out of task groups: a single one comes as it is, under every runtime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def unwrap(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the one exception that a group holds, however deep, or the group if it holds several."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup) and len(found.exceptions) == 1:
        found = found.exceptions[0]
    return found


@contextmanager
def ungrouped() -> Iterator[None]:
    """Raise a single exception of the block as it is, not in a group."""
    try:
        yield
    except BaseExceptionGroup as group:
        error = unwrap(group)
        if error is group:
            raise
        raise error from error.__cause__
