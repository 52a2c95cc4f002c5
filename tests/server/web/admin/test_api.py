"""/api: a path for every frame of an operator, versions as ETags, and clear answers to what is wrong."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import jsonschema_rs
import trio

from fairq.server.run import Served
from fairq.server.web.admin import rate_limit
from fairq.server.web.admin.api import make_document
from fairq.server.web.admin.routes import ROWS
from fairq.wire import frames
from fairq.wire import messages as wire
from fairq.wire.terms import Role
from fairq.wire.verbs import CHANGES, VERBS
from tests.server.documents import check_routes
from tests.server.harness import OPERATOR, VIEWER, WORKER, tenant

QUEUE, ADA = "/api/queues/q", "/api/queues/q/tenants/ada"
DOCUMENT = make_document()


@asynccontextmanager
async def asked(served: Served, token: str | None = OPERATOR) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server's operators' listener."""
    assert served.admin is not None
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    base = f"http://{served.admin.host}:{served.admin.port}"
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=60, verify=False) as client:
        yield client


def test_every_frame_of_an_operator_has_a_path_or_a_reason() -> None:
    theirs = {frame for frame, verb in VERBS.items() if Role.OPERATOR in verb.roles}
    assert theirs - {row.frame for row in ROWS} == {frames.Ping}, "TCP sees to that"
    assert len({(row.method, row.path) for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert (row.method == "GET") == (row.frame not in CHANGES), f"{row}: GET reads, and nothing else does"


async def test_an_operator_changes_what_two_do_not_overwrite(admin: Served) -> None:
    async with asked(admin) as client:
        made = await client.put(f"{ADA}/weight", json={"weight": 2})
        assert (made.status_code, made.json()) == (200, {"previous": 1.0})
        read = await client.get(ADA)
        tag = read.headers["etag"]
        assert (read.json()["weight"], tag) == (2.0, f'"{read.json()["version"]}"')
        ann = await client.put(f"{ADA}/weight", json={"weight": 3}, headers={"If-Match": tag})
        assert ann.status_code == 200
        bob = await client.put(f"{ADA}/weight", json={"weight": 4}, headers={"If-Match": tag})
        now = (await client.get(ADA)).json()
        assert (bob.status_code, bob.json()["code"], now["weight"]) == (412, "stale_version", 3.0)
        assert bob.json()["detail"].endswith(f"its version is now {now['version']}")
        again = await client.put(f"{ADA}/weight", json={"weight": 3}, headers={"If-Match": tag})
        assert again.status_code == 200, "its first answer may have been lost"
        any_version = await client.put(f"{ADA}/weight", json={"weight": 5}, headers={"If-Match": "*"})
        assert any_version.status_code == 200
        for header in ("bare", '"a", "b"', '""'):
            wrong = await client.put(f"{ADA}/weight", json={"weight": 6}, headers={"If-Match": header})
            assert (wrong.status_code, wrong.json()["field"]) == (400, "if_version")


VERSIONED: list[tuple[str, str, str, dict[str, Any], dict[str, Any]]] = [
    (f"{QUEUE}/limits", "PATCH", f"{QUEUE}/limits", {"limits": {"queued": 5}}, {"limits": {"queued": 6}}),
    (f"{ADA}/limits", "PATCH", f"{ADA}/limits", {"limits": {"rate": 0.1}}, {"limits": {"rate": None, "dead": 7}}),
    (QUEUE, "PATCH", f"{QUEUE}/settings", {"settings": {"lease_ms": 100}}, {"settings": {"lease_ms": 200}}),
]


async def test_limits_and_settings_have_versions(admin: Served) -> None:
    async with asked(admin) as client:
        await client.put(f"{ADA}/weight", json={"weight": 2})  # makes the queue
        for read, change, path, one, other in VERSIONED:
            tags = [(await client.get(read)).headers["etag"]]
            for body in (one, other):
                match = {"If-Match": tags[-1]}
                assert (await client.request(change, path, json=body, headers=match)).status_code == 200
                tags.append((await client.get(read)).headers["etag"])
            assert len(set(tags)) == 3
            stale = await client.request(change, path, json=one, headers={"If-Match": tags[0]})
            assert stale.status_code == 412
            assert (await client.get(read)).headers["etag"] == tags[-1]


WRONG: list[tuple[str | None, str, str, bytes | None, int, str, str | None]] = [
    (None, "GET", "/api/queues", None, 401, "unauthorized", None),
    ("nonsense", "GET", "/api/queues", None, 401, "unauthorized", None),
    (tenant("ada"), "GET", "/api/queues", None, 403, "forbidden", None),
    (WORKER, "PUT", f"{ADA}/weight", b'{"weight": 2}', 403, "forbidden", None),
    (VIEWER, "PUT", f"{ADA}/weight", b'{"weight": 2}', 403, "forbidden", "type"),
    (OPERATOR, "PUT", f"{ADA}/weight", b"{", 400, "bad_frame", "body"),
    (OPERATOR, "GET", f"{QUEUE}/tenants/nemo", None, 404, "not_found", "queue"),
    (OPERATOR, "GET", "/api/queues/none", None, 404, "not_found", "queue"),
    (OPERATOR, "GET", "/api/nothing", None, 404, "not_found", None),
    (OPERATOR, "POST", "/api/queues", b"{}", 405, "method_not_allowed", None),
    (OPERATOR, "GET", "/api/audit?since=soon", None, 400, "bad_request", "since"),
]


async def test_what_is_wrong_is_reported(admin: Served) -> None:
    for token, method, path, body, status, code, field in WRONG:
        async with asked(admin, token) as client:
            headers = {} if body is None else {"Content-Type": "application/json"}
            answer = await client.request(method, path, content=body, headers=headers)
            reply = answer.json()
            assert (answer.status_code, reply["code"], reply.get("field")) == (status, code, field), path
            assert reply["detail"]


async def test_a_viewer_reads_all_and_changes_nothing(admin: Served) -> None:
    async with asked(admin) as operator, asked(admin, VIEWER) as viewer:
        await operator.put(f"{ADA}/weight", json={"weight": 2})
        for row in ROWS:
            path = row.path.format(queue="q", tenant="ada", id="ada/x", name="n", worker="w")
            if row.path == "/api/tokens/{id}":
                path = "/api/tokens/abcd"
            query = {"ids": "ada/x"} if row.frame is wire.Tasks else {}
            answer = await viewer.request(row.method, path, params=query, json={} if row.has_body else None)
            if row.frame in CHANGES:
                assert answer.status_code in (400, 403), row
            else:
                assert answer.status_code in (200, 404), (row, answer.text)
        assert (await viewer.get("/readyz")).json()["ready"] is True
        changed = (await operator.get("/api/audit")).json()["changes"]
        assert [change["verb"] for change in changed] == ["set_weight"]


async def test_a_server_keeps_what_the_document_says_of_every_route(admin: Served) -> None:
    """`test_generated.py` has far more."""
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)
    async with asked(admin) as operator:
        assert len(await check_routes(lambda _: operator, DOCUMENT)) >= 40


async def test_the_document_is_served_to_all(admin: Served) -> None:
    async with asked(admin, None) as stranger:
        document = (await stranger.get("/api/openapi.json")).json()
        assert document == json.loads(json.dumps(DOCUMENT))
        ids = {each["operationId"] for path in document["paths"].values() for each in path.values()}
        assert len(ids) == len(ROWS)


async def test_a_flood_is_answered_slowly_and_probes_go_on(autojump_clock: object) -> None:
    answered: list[tuple[str, int]] = []

    async def inner(scope: Any, _: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    paced = rate_limit.RateLimit(inner)

    async def ask(path: str, address: str) -> int:
        statuses: list[int] = []

        async def send(message: Any) -> None:
            statuses.append(message.get("status", 0))

        async def receive() -> Any:
            raise AssertionError

        await paced({"type": "http", "path": path, "client": (address, 1)}, receive, send)
        answered.append((path, statuses[0]))
        return statuses[0]

    began = trio.current_time()
    for _ in range(int(rate_limit.ADDRESS_BURST)):
        assert await ask("/api/queues", "10.0.0.1") == 200
    assert trio.current_time() == began
    assert await ask("/api/queues", "10.0.0.1") == 429
    assert trio.current_time() == began + rate_limit.PENALTY_S
    assert await ask("/api/queues", "10.0.0.2") == 200, "another address has a rate of its own"
    for n in range(3, 20):  # from everywhere
        for _ in range(100):
            await trio.lowlevel.checkpoint()
            paced._takes(f"10.0.0.{n}", is_probe=False)
    assert await ask("/api/queues", "10.0.1.1") == 429
    assert await ask("/livez", "10.0.1.1") == 200
