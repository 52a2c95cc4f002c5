"""A server with an operators' listener."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from fairq.server.run import Served

from .test_health import asked


@pytest.fixture
async def answering(server_store: str) -> AsyncIterator[tuple[Served, httpx.AsyncClient]]:
    """The server, and a client without a token."""
    async with asked(server_store) as found:
        yield found


@pytest.fixture
def admin(answering: tuple[Served, httpx.AsyncClient]) -> Served:
    return answering[0]


@pytest.fixture
def client(answering: tuple[Served, httpx.AsyncClient]) -> httpx.AsyncClient:
    return answering[1]
