"""Processes that end with their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
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
def durable_store(start_store: Callable[..., stores.LocalServer]) -> Callable[[], stores.LocalServer]:
    """A store of the test's own that syncs every write before it answers; started when asked for."""
    return partial(start_store, {"appendfsync": "always"})
