"""All tests share the compiled templates: to compile one takes 50 ms."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from fairq.server.web.dashboard import site, writing


@pytest.fixture(scope="session", autouse=True)
def templates() -> Iterator[None]:
    """Make one environment per process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site, "make_environment", cache(writing.make_environment))
        yield
