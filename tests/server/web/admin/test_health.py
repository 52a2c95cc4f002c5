"""/livez, /readyz and /metrics: what they say of a server that is well, stopping, or without its store."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import redis
import trio
from prometheus_client.parser import text_string_to_metric_families

from fairq.server.run import Served
from fairq.server.web.admin import health, metrics
from tests.server.harness import OPERATOR, WORKER, noted_calls, open_fds, raw, running, tenant
from tests.store.proxy import Proxy

DOCKERFILE = Path(__file__).parents[4] / "deploy" / "Dockerfile"
TOKEN = {"Authorization": f"Bearer {OPERATOR}"}


@asynccontextmanager
async def asked(
    store: str, listener: str = "admin", **settings: Any
) -> AsyncIterator[tuple[Served, httpx.AsyncClient]]:
    """A server, and a client of one of its listeners without a token."""
    async with running(store, **{f"{listener}_port": 0, **settings}) as served:
        found = getattr(served, listener)
        base = f"http://{found.host}:{found.port}"
        async with httpx.AsyncClient(base_url=base, timeout=60, verify=False) as client:
            yield served, client


def values(text: str) -> dict[tuple[str, ...], float]:
    """The samples of a page of metrics: name, then the labels' values."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_a_server_that_is_well_is_live_and_ready(client: httpx.AsyncClient) -> None:
    for path, said in (("/livez", "live\n"), ("/readyz", "ready\n")):
        answer = await client.get(path)
        assert (answer.status_code, answer.text) == (200, said)
    reply = (await client.get("/readyz", headers=TOKEN)).json()
    assert (reply["ready"], reply["troubles"]) == (True, [])
    assert reply["store_ms"] >= 0
    assert (await client.head("/livez")).status_code == 200


REFUSED: list[tuple[str, str, dict[str, str], int, str]] = [
    ("GET", "/nothing", {}, 404, "not_found"), ("POST", "/livez", {}, 405, "method_not_allowed"),
    ("GET", "/readyz", {"Authorization": "Bearer nonsense"}, 401, "unauthorized"),
    ("GET", "/readyz", {"Authorization": f"Bearer {tenant('ada')}"}, 403, "forbidden"),
    ("GET", "/livez", {"Origin": "https://evil.example"}, 403, "forbidden"),
    ("GET", "/livez", {"Host": "evil.example"}, 421, "not_here"),
]  # fmt: skip


async def test_what_is_refused_says_why(client: httpx.AsyncClient) -> None:
    for method, path, headers, status, code in REFUSED:
        answer = await client.request(method, path, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (status, code), (method, path, headers)


async def test_strangers_learn_that_it_is_not_ready_and_operators_why(
    proxy: Proxy, proxied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "KEPT_S", 0.0)
    async with asked(proxied) as (_, client):
        assert (await client.get("/readyz")).status_code == 200
        monkeypatch.setattr(health, "ANSWER_S", 0.05)
        proxy.hold()
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.text) == (503, "not ready\n")
        assert (await client.get("/livez")).status_code == 200
        reply = (await client.get("/readyz", headers=TOKEN)).json()
        assert reply["ready"] is False
        assert "store" in reply["troubles"][0]
        page = values((await client.get("/metrics")).text)
        assert page[("fairq_ready",)] == 0
        proxy.release()
        monkeypatch.setattr(health, "ANSWER_S", 20.0)
        for _ in range(100):  # held answers come first
            if (await client.get("/readyz")).status_code == 200:
                return
    raise AssertionError("it is not ready again")


async def test_a_server_with_a_full_store_is_not_ready(client: httpx.AsyncClient, redis_store: redis.Redis) -> None:
    redis_store.config_set("maxmemory", 1)
    answer = await client.get("/readyz", headers=TOKEN)
    redis_store.config_set("maxmemory", 0)
    assert (answer.status_code, answer.json()["ready"]) == (503, False)


async def test_a_server_that_stops_is_not_ready(admin: Served, client: httpx.AsyncClient) -> None:
    admin.app.is_draining = True
    assert (await client.get("/readyz")).status_code == 503
    answer = (await client.get("/readyz", headers=TOKEN)).json()
    assert answer["troubles"] == ["the server is stopping"]


async def test_metrics_are_those_of_the_store_and_of_the_server(admin: Served, client: httpx.AsyncClient) -> None:
    async with raw(admin, tenant("ada")) as ada, raw(admin, WORKER) as worker:
        await ada.ask("enqueue", queue="emails", tasks=[{"id": f"t{n}", "payload": n} for n in range(5)])
        await ada.ask("enqueue", queue="emails", tasks=[{"id": "late", "payload": 1, "delay_ms": 60_000}])
        await worker.attach("emails", credit=2)
        await worker.pushed()
        answer = await client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=")
        page = values(answer.text)
        assert page[("fairq_queue_tasks", "emails", "ready")] == 3
        assert page[("fairq_queue_tasks", "emails", "leased")] == 2
        assert page[("fairq_queue_tasks", "emails", "delayed")] == 1
        assert page[("fairq_tasks_enqueued_total", "emails")] == 6
        assert (page[("fairq_slots", "emails")], page[("fairq_workers", "emails")]) == (2, 1)
        assert (page[("fairq_ready",)], page[("fairq_queues",)]) == (1, 1)
        assert page[("fairq_connections", "tenant")] == page[("fairq_connections", "worker")] == 1
        assert page[("process_open_fds",)] == pytest.approx(open_fds(), abs=20)


@pytest.mark.usefixtures("no_polls")
async def test_a_hundred_that_ask_cost_the_store_as_much_as_one(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, limit in ((health, "KEPT_S"), (metrics, "KEPT_S"), (health, "ANSWER_S")):
        monkeypatch.setattr(module, limit, 3600.0)
    async with asked(server_store) as (_, client):
        looks = noted_calls(monkeypatch, "queues").args
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(client.get, "/metrics")
                nursery.start_soon(client.get, "/readyz")
        assert len(looks) == 2, "one for each of the two paths"


async def test_the_images_health_check_tells_a_ready_server_from_one_that_stops(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "KEPT_S", -1.0)
    (form,) = re.findall(r"^HEALTHCHECK .*?CMD (\[.*?\])$", DOCKERFILE.read_text(), re.MULTILINE | re.DOTALL)
    program = orjson.loads(form)[2]
    async with running(server_store, admin_port=0) as served:
        assert served.admin is not None
        environment = {**os.environ, "FAIRQ_ADMIN_PORT": str(served.admin.port)}
        for is_draining in (False, True):
            served.app.is_draining = is_draining
            command = [sys.executable, "-c", program]
            done = await trio.run_process(command, env=environment, check=False, capture_stderr=True)
            assert (done.returncode != 0) == is_draining, done.stderr
