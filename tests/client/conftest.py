"""The client's tests run against a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import trio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import fairq
from fairq import otel
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.verbs.table import handle_request
from fairq.server.run import Served
from tests.server.conftest import certificate, no_polls, operator, plain_logs, server_store
from tests.server.harness import OPERATOR, running, tenant, url_of

from .runtimes import Service, running_service

__all__ = ["certificate", "no_polls", "operator", "plain_logs", "server_store"]

LIMIT_S = 60.0


@pytest.fixture
async def served(server_store: str) -> AsyncIterator[Served]:
    """A server with development tokens, for at most LIMIT_S: the test's deadline."""
    with trio.fail_after(LIMIT_S):
        async with running(server_store) as served:
            yield served


@pytest.fixture
async def ada(served: Served) -> AsyncIterator[fairq.Client]:
    async with fairq.open_client(url_of(served), token=tenant("ada")) as client:
        yield client


@pytest.fixture
async def boss(served: Served) -> AsyncIterator[fairq.OperatorClient]:
    async with fairq.open_operator(url_of(served), token=OPERATOR) as client:
        yield client


@pytest.fixture
def service(server_store: str) -> Iterator[Service]:
    """A server with development tokens in a thread, for tests of every runtime."""
    with running_service(server_store) as service:
        yield service


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The types of the requests that the server gets."""
    noted: list[str] = []

    async def note(self: Any, connection: Connection, request: Any) -> Any:
        noted.append(request.type)
        return await handle_request(self, connection, request)

    monkeypatch.setattr("fairq.server.listener.handle_request", note)
    return noted


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Tracing is on, and this has the spans that have ended."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    otel.instrument(provider)
    try:
        yield exporter
    finally:
        otel.uninstrument()
