"""Requests that are generated from the OpenAPI documents, against a real server: all it answers is documented."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from fairq.server.web.admin import api as admin
from fairq.server.web.http import openapi
from tests import stores
from tests.cli.harness import environment
from tests.server.harness import OPERATOR, PRODUCER, VIEWER, WORKER, tenant

pytestmark = [pytest.mark.deep("fuzz"), pytest.mark.timeout(900)]

REFUSALS = [400, 401, 403, 404, 405, 409, 412, 413, 415, 429]
CHECKS = {"negative_data_rejection": {"expected-statuses": REFUSALS}}


@pytest.fixture(scope="module")
def urls(pytestconfig: pytest.Config, running_stores: Callable[[str], stores.Server]) -> Iterator[dict[str, str]]:
    """The URLs of a server process, which answers as fast as it is asked: one in this process would share its random
    numbers."""
    store = running_stores(pytestconfig.getoption("--store"))
    client = stores.connect(store.url)
    client.flushall()
    client.close()
    flags = ["--dev", "--port=0", "--http-port=0", "--admin-port=0", "--store", store.url, "--unsafe-store"]
    start = (
        "import sys; from fairq.server.web.admin import rate_limit as limit;"
        "limit.PER_ADDRESS = limit.IN_ALL = limit.BURST = limit.ADDRESS_BURST = 1e6;"
        "from fairq.cli.app import run; sys.exit(run(sys.argv[1:]))"
    )
    argv = [sys.executable, "-c", start, "serve", *flags, "--log-json"]
    with subprocess.Popen(argv, env=environment(), stderr=subprocess.PIPE) as server:
        assert server.stderr is not None
        logged = (json.loads(line) for line in server.stderr)
        yield next(line for line in logged if line["event"] == "serving")
        server.terminate()
        server.communicate(timeout=30)


def operations(document: dict[str, Any]) -> Iterator[Any]:
    """Read the operations of a document; schemathesis is imported here because it takes long."""
    import schemathesis
    from schemathesis.config import SchemathesisConfig

    @schemathesis.serializer("application/x-ndjson")
    def write_lines(_: object, value: Any) -> bytes:
        return str(value).encode()

    kept = {name: it for name, it in document.items() if name != "security"}  # the test gives the tokens
    config = SchemathesisConfig.from_dict({"checks": CHECKS})
    found: Any = schemathesis.openapi.from_dict(kept, config=config).get_all_operations()
    return (each.ok() for each in found)


def drive(case: Any, token: str, url: str) -> None:
    """Send a generated request, and check its answer against the document."""
    from schemathesis.specs.openapi import checks

    for part in (case.query, case.body):
        wait = str(part.get("wait")) if isinstance(part, dict) else ""
        if isinstance(part, dict) and re.fullmatch(r"[0-9.]+", wait) and float(wait) <= 60:
            part["wait"] = 0.001  # else it takes a minute
    excluded: list[Any] = [checks.positive_data_acceptance]  # there are rules between fields, such as delay or start_at
    if case.path.endswith("/tasks") and case.method == "GET":
        excluded.append(checks.negative_data_rejection)  # it takes one id, `ids=true`, for no list
    if "{id}" in case.path or case.path.endswith(("/close", "/replay", "/purge", "/cancel", "/reschedule")):
        excluded.append(checks.unsupported_method)  # `0/close` may be the id of a batch
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}  # a stream would not end
    case.call_and_validate(base_url=url, headers=headers, excluded_checks=excluded, timeout=30)


@pytest.mark.parametrize(
    ("api", "token"),
    [("http", tenant("ada")), ("http", PRODUCER), ("http", WORKER), ("admin", OPERATOR), ("admin", VIEWER)],
)
def test_the_server_keeps_what_the_document_says(urls: dict[str, str], api: str, token: str) -> None:
    from hypothesis import HealthCheck, given, settings
    from hypothesis.errors import Unsatisfiable
    from schemathesis import GenerationMode

    document = openapi.make_document() if api == "http" else admin.make_document()
    for operation in operations(document):
        for mode in GenerationMode:

            @settings(max_examples=20, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
            @given(operation.as_strategy(generation_mode=mode))
            def keeps(case: Any) -> None:
                drive(case, token, urls[api])

            with suppress(Unsatisfiable):  # nothing can be wrong with a request that takes nothing
                keeps()
