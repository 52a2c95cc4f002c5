"""The OpenAPI document, and what schemathesis makes of it against a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case

from fairq.server.http.openapi import make_document
from fairq.server.http.routes import ROWS
from fairq.wire import messages as wire
from tests import stores
from tests.cli.harness import ServerThread
from tests.conftest import store_kinds

from .harness import api, check, serving

DOCUMENT = make_document()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)


@pytest.fixture(scope="module")
def url(pytestconfig: pytest.Config, running_stores: Callable[[str], stores.Server]) -> Iterator[str]:
    """The URL of a server's HTTP API."""
    store = running_stores(store_kinds(pytestconfig)[0])
    client = stores.connect(store.url)
    client.flushall()
    client.close()
    server = ServerThread(store.url, http_port=0)
    server.start()
    assert server.served is not None
    assert server.served.http is not None
    yield f"http://127.0.0.1:{server.served.http.port}"
    server.stop()


def test_every_frame_of_a_tenant_producer_or_worker_has_a_path_or_a_reason() -> None:
    reasons = {
        wire.Attach: "a worker over HTTP is attached by its first claim",
        wire.Credit: "each claim says how many tasks it wants",
        wire.Extend: "the leases' action `extend`",
        wire.Settle: "POST /v1/leases",
        wire.Drain: "a client that claims nothing gets nothing",
        wire.Progress: "a lease over HTTP is on no account",
        wire.Idle: "a claim that waits for nothing",
        wire.Webhooks: "for those who post to them",
        wire.Ping: "TCP",
    }
    frames = {frame for frame, (roles, _) in wire.CLIENT_FRAMES.items() if roles - {wire.Role.OPERATOR}}
    assert frames - {row.frame for row in ROWS} == reasons.keys()


async def test_the_document_is_served_to_all(server_store: str) -> None:
    async with serving(server_store) as served, api(served, None) as stranger:
        document: Any = check(await stranger.get("/openapi.json"))
        assert document == DOCUMENT
        assert document["openapi"].startswith("3.1")
        assert len({each["operationId"] for path in document["paths"].values() for each in path.values()}) == len(ROWS)


@SCHEMA.parametrize()
@settings(max_examples=25, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.parametrize("token", ["dev-tenant:ada", "dev-producer", "dev-worker"])
def test_the_server_keeps_what_the_document_says(case: Case, token: str, url: str) -> None:
    case.call_and_validate(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30)
