"""The typed store on a real one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest

from fairq.store.opening import open_store
from fairq.store.store import Store


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    """The typed API of an empty store of each kind."""
    async with open_store(store_url, connect_timeout=30) as store:
        yield store


@pytest.fixture
def store_port(store_url: str) -> int:
    port = urlsplit(store_url).port
    assert port is not None
    return port
