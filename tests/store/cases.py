"""Cases of one test: the one that failed is named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(*what: object) -> Iterator[None]:
    """Name the case in whatever its block raises."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {', '.join(map(repr, what))[:500]}")
        raise
