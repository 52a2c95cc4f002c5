"""A server with its HTTP API on an empty store, and who asks it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fairq.server.run import Served
from tests.server.harness import PRODUCER, WORKER

from .harness import Client, api, serving


@pytest.fixture
async def served(server_store: str) -> AsyncIterator[Served]:
    """A server with development tokens and an HTTP API."""
    async with serving(server_store) as served:
        yield served


@pytest.fixture
async def ada(served: Served) -> AsyncIterator[Client]:
    async with api(served) as client:
        yield client


@pytest.fixture
async def worker(served: Served) -> AsyncIterator[Client]:
    """Who claims tasks."""
    async with api(served, WORKER) as client:
        yield client


@pytest.fixture
async def product(served: Served) -> AsyncIterator[Client]:
    async with api(served, PRODUCER) as client:
        yield client
