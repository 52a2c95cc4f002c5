"""A server with a dashboard. All tests share the compiled templates: to compile one takes 50 ms."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import cache

import pytest

from fairq.server.web.dashboard import live, writing
from fairq.server.web.dashboard import site as module

from .harness import Raw, Site, filled, visited


@pytest.fixture(scope="session", autouse=True)
def templates() -> Iterator[None]:
    """Make one environment per process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "make_environment", cache(writing.make_environment))
        yield


@pytest.fixture(autouse=True)
def quick_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that look for changes all the time."""
    monkeypatch.setattr(live, "STEP_S", 0.05)
    monkeypatch.setattr(module, "KEPT_S", 0.04)


@pytest.fixture
async def site(server_store: str) -> AsyncIterator[Site]:
    """A server, and a browser that --dev has signed in."""
    async with visited(server_store) as found:
        yield found


@pytest.fixture
async def worker(site: Site) -> AsyncIterator[Raw]:
    """What fills the site's queue q, and runs one of its tasks."""
    async with filled(site) as found:
        yield found
