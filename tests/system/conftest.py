"""Processes that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests import stores
from tests.server.conftest import plain_logs

from .harness import World, open_world

__all__ = ["plain_logs"]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The processes of one test."""
    with open_world(tmp_path) as world:
        yield world


@pytest.fixture
def durable_store(tmp_path: Path) -> Iterator[Callable[[], stores.LocalServer]]:
    """A Valkey of the test's own that syncs every write before it answers; started when asked for."""
    settings: Mapping[str, str] = {"appendfsync": "always"}
    started: list[stores.LocalServer] = []

    def start() -> stores.LocalServer:
        server = stores.LocalServer("valkey", tmp_path / "store", settings)
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()
