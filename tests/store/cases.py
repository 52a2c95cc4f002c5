"""Cases of one test: the one that failed is named. And what is refused for one field."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fairq.errors import BadRequest, FairqError


@contextmanager
def case(*what: object) -> Iterator[None]:
    """Name the case in whatever its block raises."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {', '.join(map(repr, what))[:500]}")
        raise


@contextmanager
def raises_for(
    field: str, error: type[FairqError] = BadRequest, *, match: str | None = None
) -> Iterator[pytest.ExceptionInfo[FairqError]]:
    """Check that the block raises an error about this field; yields what is raised."""
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert caught.value.field == field, f"refused for {caught.value.field}: {caught.value}"
