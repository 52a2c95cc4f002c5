"""The examples run against a server process for a first try."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import fairq.sync
from tests.cli.harness import read_until, started


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server."""
    with started("serve", "--dev", "--port", "0", "--data-dir", tmp_path_factory.mktemp("data")) as server:
        yield re.findall(r"ws://\S+", read_until(server, "ws://"))[0]


@pytest.fixture
def shop(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[fairq.sync.Client]:
    """A client of the tenant that the examples enqueue for, which the environment names."""
    monkeypatch.setenv("FAIRQ_URL", url)
    monkeypatch.setenv("FAIRQ_TOKEN", "dev-tenant:shop")
    with fairq.sync.open_client() as client:
        yield client
