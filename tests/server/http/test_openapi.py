"""The OpenAPI document, and what schemathesis makes of it against a real server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance, unsupported_method

from fairq.server.http.openapi import make_document
from fairq.server.http.routes import ROWS
from fairq.wire import frames, terms
from fairq.wire import messages as wire
from tests import stores
from tests.cli.harness import environment
from tests.conftest import store_kinds

from .harness import api, check, serving

DOCUMENT = make_document()
REFUSALS = [400, 401, 403, 404, 405, 409, 413, 415, 429]
CHECKS = {"negative_data_rejection": {"expected-statuses": REFUSALS}}
WHOLE, QUICK = (
    schemathesis.openapi.from_dict(
        {name: it for name, it in DOCUMENT.items() if name != "security"},  # the tests give the tokens
        config=SchemathesisConfig.from_dict({"checks": CHECKS, "phases": {"coverage": {"enabled": covers}}}),
    )
    for covers in (True, False)
)


@schemathesis.serializer("application/x-ndjson")
def write_lines(_: object, value: Any) -> bytes:
    """Send generated text as the lines of a body."""
    return str(value).encode()


@pytest.fixture(scope="module")
def url(pytestconfig: pytest.Config, running_stores: Callable[[str], stores.Server]) -> Iterator[str]:
    """The URL of the HTTP API of a server process: one in this process would share its random numbers."""
    store = running_stores(store_kinds(pytestconfig)[0])
    client = stores.connect(store.url)
    client.flushall()
    client.close()
    flags = ("--dev", "--port", "0", "--http-port", "0", "--store", store.url, "--unsafe-store", "--log-json")
    argv = [sys.executable, "-m", "fairq", "serve", *flags]
    with subprocess.Popen(argv, env=environment(), stderr=subprocess.PIPE) as server:
        assert server.stderr is not None
        logged = (json.loads(line) for line in server.stderr)
        yield next(line["http"] for line in logged if line["event"] == "serving")
        server.terminate()
        server.communicate(timeout=30)


def test_every_frame_of_a_tenant_producer_or_worker_has_a_path_or_a_reason() -> None:
    reasons = {
        wire.Attach: "a worker over HTTP is attached by its first claim",
        wire.Credit: "each claim says how many tasks it wants",
        wire.Extend: "the leases' action `extend`",
        wire.Settle: "POST /v1/leases",
        frames.Drain: "a client that claims nothing gets nothing",
        wire.Progress: "a lease over HTTP is on no account",
        wire.EnqueueFrom: "POST /v1/leases/tasks",
        wire.Idle: "a claim that waits for nothing",
        wire.Webhooks: "for those who post to them",
        frames.Ping: "TCP",
    }
    theirs = {
        frame for frame, (roles, _) in wire.CLIENT_FRAMES.items() if roles - {terms.Role.OPERATOR, terms.Role.VIEWER}
    }
    assert theirs - {row.frame for row in ROWS} == reasons.keys()


async def test_the_document_is_served_to_all(server_store: str) -> None:
    async with serving(server_store) as served, api(served, None) as stranger:
        document: Any = check(await stranger.get("/openapi.json"))
        assert document == DOCUMENT
        assert document["openapi"].startswith("3.1")
        assert len({each["operationId"] for path in document["paths"].values() for each in path.values()}) == len(ROWS)


def drive(case: Case[Any], token: str, url: str) -> None:
    """Send a generated request, and check its answer against the document."""
    for part in (case.query, case.body):
        wait = str(part.get("wait")) if isinstance(part, dict) else ""
        if isinstance(part, dict) and re.fullmatch(r"[0-9.]+", wait) and float(wait) <= 60:
            part["wait"] = 0.001  # else it takes a minute
    excluded: list[Any] = [positive_data_acceptance]  # there are rules between fields, such as delay or start_at
    if case.path.endswith("/tasks") and case.method == "GET":
        excluded.append(negative_data_rejection)  # it takes one id, `ids=true`, for no list
    if case.path.endswith("/close"):
        excluded.append(unsupported_method)  # `0/close` may be the id of a producer's batch
    case.call_and_validate(
        base_url=url,
        headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},  # a stream would not end
        excluded_checks=excluded,
        timeout=30,
    )


ALL = list(HealthCheck)


@QUICK.parametrize()
@settings(max_examples=5, derandomize=True, deadline=None, suppress_health_check=ALL)
def test_the_server_keeps_what_the_document_says(case: Case[Any], url: str) -> None:
    drive(case, "dev-worker" if case.path.endswith(("/claims", "/leases", "/leases/tasks")) else "dev-tenant:ada", url)


@pytest.mark.deep
@WHOLE.parametrize()
@settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=ALL)
@pytest.mark.parametrize("token", ["dev-tenant:ada", "dev-producer", "dev-worker"])
def test_the_server_keeps_it_for_every_role(case: Case[Any], token: str, url: str) -> None:
    drive(case, token, url)
