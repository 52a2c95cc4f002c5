"""The examples run against a server process for a first try."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import fairq.sync
from tests.cli.harness import read_until, started


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URLs of a server and of its HTTP API."""
    with started("serve", "--dev", "--port", "0", "--data-dir", tmp_path_factory.mktemp("data")) as server:
        line = read_until(server, "ws://")
        yield re.findall(r"ws://\S+", line)[0], re.findall(r"http=(\S+)", line)[0]


@pytest.fixture(scope="module")
def url(urls: tuple[str, str]) -> str:
    """The URL of a server."""
    return urls[0]


@pytest.fixture
def shop(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[fairq.sync.Client]:
    """A client of the tenant that the examples enqueue for, which the environment names."""
    monkeypatch.setenv("FAIRQ_URL", url)
    monkeypatch.setenv("FAIRQ_TOKEN", "dev-tenant:shop")
    with fairq.sync.open_client() as client:
        yield client
