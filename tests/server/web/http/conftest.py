"""A server with its HTTP API on an empty store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fairq.server.run import Served

from .harness import serving


@pytest.fixture
async def served(server_store: str) -> AsyncIterator[Served]:
    """A server with development tokens and an HTTP API."""
    async with serving(server_store) as served:
        yield served
