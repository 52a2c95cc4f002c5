"""The OpenAPI document: every route is there, and a server keeps what it says; test_generated.py has far more."""

from __future__ import annotations

from typing import Any

import jsonschema_rs

from fairq.server.web.http.openapi import make_document
from fairq.server.web.http.routes import ROWS
from fairq.wire import frames, terms
from fairq.wire import messages as wire
from fairq.wire.verbs import VERBS
from tests.server.documents import check_routes
from tests.server.harness import WORKER

from .harness import api, check, serving

DOCUMENT = make_document()
OF_WORKERS = ("/claims", "/leases", "/leases/tasks", "/leases/results")


def test_every_frame_of_a_tenant_producer_or_worker_has_a_path_or_a_reason() -> None:
    reasons = {
        wire.Attach: "a worker over HTTP is attached by its first claim",
        wire.Credit: "each claim says how many tasks it wants",
        wire.Settle: "POST /v1/leases",
        wire.Declare: "a worker over HTTP has no code that the service could ask for again",
        wire.BatchResults: "POST /v1/leases/results",
        wire.Progress: "a lease over HTTP is on no account",
        wire.EnqueueFrom: "POST /v1/leases/tasks",
        wire.Idle: "a claim that waits for nothing",
        wire.Webhooks: "for those who post to them",
        frames.Ping: "TCP",
    }
    theirs = {frame for frame, verb in VERBS.items() if verb.roles - {terms.Role.OPERATOR, terms.Role.VIEWER}}
    assert theirs - {row.frame for row in ROWS} == reasons.keys()


async def test_the_document_is_served_to_all(server_store: str) -> None:
    async with serving(server_store) as served, api(served, None) as stranger:
        document: Any = check(await stranger.get("/openapi.json"))
        assert document == DOCUMENT
        assert document["openapi"].startswith("3.1")
        assert len({each["operationId"] for path in document["paths"].values() for each in path.values()}) == len(ROWS)


async def test_a_server_keeps_what_the_document_says_of_every_route(server_store: str) -> None:
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)
    async with serving(server_store) as served, api(served) as ada, api(served, WORKER) as worker:
        done = await check_routes(
            lambda path: worker if path.endswith(OF_WORKERS) else ada, DOCUMENT, id="t", ids=["t"]
        )
    assert len(done) > 20
