"""The SDK for threads runs against a real server, in a thread of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import fairq.sync
from tests.client.conftest import certificate, frames, no_polls, plain_logs, server_store, service
from tests.client.runtimes import Service
from tests.server.harness import tenant

__all__ = ["certificate", "frames", "no_polls", "plain_logs", "server_store", "service"]


@pytest.fixture
def ada(service: Service) -> Iterator[fairq.sync.Client]:
    """A tenant's client, behind the proxy."""
    with fairq.sync.open_client(service.proxied, token=tenant("ada")) as client:
        yield client
