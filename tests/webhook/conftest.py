"""The webhook worker's logs, as data, and a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from tests.logs import captured_logs
from tests.server.conftest import ada, operator, served, server_store

__all__ = ["ada", "operator", "served", "server_store"]


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as lines, captured_logs() as more:
        yield lines
        lines += more
