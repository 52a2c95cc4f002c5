"""/metrics: what it tells of queues, workers, refusals and the store, under which names, and to whom."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from fairq.errors import Unavailable
from fairq.server.run import Served
from fairq.server.settings import Settings
from fairq.server.web.admin import metrics
from fairq.store.partitions import place_in
from fairq.tokens import TokenRecord, hash_token, make_token
from fairq.wire.terms import Role
from tests.server.harness import OPERATOR, PRODUCER, WORKER, Refused, daily, lose, raw, tenant
from tests.stores import PASSWORD, LocalServer

from .test_health import TOKEN, asked, values

UNITS = {"seconds", "bytes", "total", "info"}


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page is written anew."""
    monkeypatch.setattr(metrics, "KEPT_S", -1.0)


async def test_metrics_are_named_by_prometheus_rules(server_store: str) -> None:
    async with asked(server_store) as (served, client), raw(served, tenant("ada")) as ada:
        await ada.enqueue("emails", ["a"])
        families = list(text_string_to_metric_families((await client.get("/metrics")).text))
    ours = [family for family in families if family.name.startswith("fairq")]
    assert len(ours) > 25
    assert len({family.name for family in families}) == len(families)
    for family in ours:
        assert re.fullmatch(r"fairq(_[a-z]+)+", family.name), family.name
        assert family.documentation
        assert not re.search("_(ms|milliseconds|minutes|kb|count)$", family.name), "base units"
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter"), sample
            assert set(sample.labels) <= {"queue", "state", "role", "code", "node", "version", "tenant"}


async def test_a_queue_tells_its_oldest_wait_its_dead_and_its_retries(admin: Served, client: httpx.AsyncClient) -> None:
    async with raw(admin, tenant("ada")) as ada, raw(admin, WORKER) as worker:
        await ada.enqueue("emails", ["a", "b"], max_attempts=2)
        await worker.attach("emails", credit=2)
        tasks = {task["id"]: task for task in await worker.pushed(2)}
        await worker.settle("emails", "nack", tasks["a"], delay_ms=0)
        await worker.settle("emails", "reject", tasks["b"], error="no")
        await worker.pushed(1)
        await ada.enqueue("other", ["c"])
        page = values((await client.get("/metrics")).text)
        assert page[("fairq_tasks_dead_total", "emails")] == 1
        assert page[("fairq_tasks_dispatched_total", "emails")] == 3
        assert page[("fairq_tasks_retried_total", "emails")] == 1
        assert (page[("fairq_worker_credit",)], page[("fairq_worker_leases",)]) == (2, 1)
        assert page[("fairq_oldest_ready_age_seconds", "emails")] == 0
        first = page[("fairq_oldest_ready_age_seconds", "other")]
        while values((await client.get("/metrics")).text)[("fairq_oldest_ready_age_seconds", "other")] <= first:
            await trio.lowlevel.checkpoint()


async def test_what_is_not_said_to_be_of_this_server_is_reported_alike_by_all(server_store: str) -> None:
    def scraped(text: str) -> dict[str, set[tuple[object, ...]]]:
        return {
            family.name: {(sample.name, *sample.labels.items(), sample.value) for sample in family.samples}
            for family in text_string_to_metric_families(text)
            if family.name.startswith("fairq") and "this server" not in family.documentation
        }

    async with (
        asked(server_store) as (one, first),
        asked(server_store) as (_, second),
        raw(one, WORKER) as worker,
        raw(one, OPERATOR) as operator,
        raw(one, tenant("ada")) as ada,
        raw(one, tenant("bob")) as bob,
    ):
        await worker.attach("emails", credit=2)
        await ada.enqueue("emails", ["a"])
        await bob.enqueue("emails", ["b"])
        await worker.settle("emails", "reject", (await worker.pushed(2))[0], error="no")
        hours = daily(round(time.time() * 1000), 60, 120)
        await operator.ask("set_opening_hours", queue="emails", opening_hours=hours)
        while True:  # servers tell each other of their workers
            found, elsewhere = scraped((await first.get("/metrics")).text), scraped((await second.get("/metrics")).text)
            if elsewhere["fairq_slots"] == found["fairq_slots"]:
                break
            await trio.lowlevel.checkpoint()
    used = {name for name in found if "memory" in name}  # grows while it is read
    assert {name for name in found if found[name] != elsewhere[name]} <= used
    assert found["fairq_queue_closed"] == {("fairq_queue_closed", ("queue", "emails"), 1.0)}
    assert len(found) > 20


async def test_a_queue_that_cannot_be_read_leaves_the_others_their_metrics(
    admin: Served, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with raw(admin, tenant("ada")) as ada:
        for queue in ("away", "emails"):
            await ada.enqueue(queue, ["a"])
        numbers = admin.app.store.numbers

        async def read(_: object, queue: str, **options: Any) -> dict[str, float]:
            if queue == "away":
                raise Unavailable("no connection to the store")
            return await numbers(queue, **options)

        monkeypatch.setattr(type(admin.app.store), "numbers", read)
        page = values((await client.get("/metrics")).text)
        assert page[("fairq_queues",)] == 2
        assert [page[("fairq_queue_unavailable", queue)] for queue in ("away", "emails")] == [1, 0]
        assert {key[-1] for key in page if key[0] == "fairq_oldest_ready_age_seconds"} == {"emails"}


async def test_refusals_are_counted_by_code(admin: Served, client: httpx.AsyncClient) -> None:
    async with raw(admin, tenant("ada")) as ada:
        for _ in range(2):
            with pytest.raises(Refused):
                await ada.ask("enqueue", queue="No", tasks=[{"id": "a", "payload": 1}])
        await client.get("/nowhere")
        page = values((await client.get("/metrics")).text)
        assert page[("fairq_refusals_total", "bad_request")] == 2
        assert page[("fairq_refusals_total", "not_found")] == 1


async def test_a_store_at_a_socket_is_named_by_its_path(
    start_store: Callable[..., LocalServer], tmp_path: Path
) -> None:
    socket = tmp_path / "s"
    start_store({"unixsocket": str(socket), "unixsocketperm": "700"})
    async with asked(f"unix://fairq:{PASSWORD}@{socket}") as (_, client):
        page = values((await client.get("/metrics")).text)
    assert [labels[1:] for labels in page if labels[0] == "fairq_store_durable"] == [(str(socket),)]


async def test_the_store_tells_its_memory_and_whether_it_is_safe(server_store: str) -> None:
    async with asked(server_store) as (_, client):
        page = values((await client.get("/metrics")).text)
    node = server_store.partition("@")[2].partition("/")[0]
    assert page[("fairq_store_memory_bytes", node)] > 100_000
    assert page[("fairq_store_memory_limit_bytes", node)] == 0
    assert (page[("fairq_store_evicts", node)], page[("fairq_store_durable", node)]) == (0, 1)
    assert page[("fairq_store_clock_ahead",)] == 0


async def test_a_listener_of_its_own_has_metrics_and_nothing_else(server_store: str) -> None:
    async with asked(server_store, "metrics") as (served, client):
        assert (served.admin, served.http) == (None, None)
        assert "fairq_ready 1.0" in (await client.get("/metrics")).text
        for path in ("/", "/livez", "/readyz", "/api/queues"):
            assert (await client.get(path)).status_code == 404
        assert (await client.post("/metrics")).status_code == 405


async def test_metrics_beyond_loopback_are_for_operators(server_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "is_metrics_loopback", property(lambda self: False))
    async with asked(server_store, "metrics", plaintext=True) as (_, client):
        assert (await client.get("/metrics")).status_code == 401
        answer = await client.get("/metrics", headers={"Authorization": f"Bearer {tenant('a')}"})
        assert answer.status_code == 403
        for headers in (TOKEN, {"Authorization": "Bearer dev-viewer"}):
            assert (await client.get("/metrics", headers=headers)).status_code == 200
    assert TOKEN["Authorization"].endswith(OPERATOR)


async def test_ten_thousand_queues_make_no_page_longer_than_two_hundred(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "MAX_QUEUES", 3)
    async with asked(server_store) as (served, client), raw(served, tenant("ada")) as ada:
        for n in range(7):
            await ada.enqueue(f"q{n}", ["a"])
        page = values((await client.get("/metrics")).text)
        assert page[("fairq_queues",)] == 7
        assert len([key for key in page if key[0] == "fairq_slots"]) == 3


async def test_a_token_of_some_queues_sees_these_alone(server_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "is_metrics_loopback", property(lambda self: False))
    async with asked(server_store, "metrics", plaintext=True) as (served, client):
        async with raw(served, tenant("ada")) as ada, raw(served, tenant("bob")) as bob:
            await ada.enqueue("mine", ["a"])
            await bob.enqueue("theirs", ["b"])
        id, token = make_token(Role.VIEWER)
        await served.app.auth.create(TokenRecord(id, "viewer", hash_token(token), queues=["mine", "none"]))

        async def scraped(headers: dict[str, str]) -> tuple[set[str], set[str], float]:
            text = (await client.get("/metrics", headers=headers)).text
            samples = [sample for each in text_string_to_metric_families(text) for sample in each.samples]
            queues, tenants = ({s.labels[name] for s in samples if name in s.labels} for name in ("queue", "tenant"))
            return queues, tenants - {"(other)"}, next(s.value for s in samples if s.name == "fairq_queues")

        whole = {"mine", "theirs"}, {"ada", "bob"}, 2
        assert await scraped(TOKEN) == whole
        assert await scraped({"Authorization": f"Bearer {token}"}) == ({"mine"}, {"ada"}, 1)
        assert await scraped(TOKEN) == whole


async def test_the_page_has_what_answers_while_a_primary_is_away(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asked(server_store) as (served, client), raw(served, PRODUCER) as producer:
        places = await served.app.store.registry.make("imports", "", partitions=3)
        tenants = [f"t{n}" for n in range(9)]
        for queue in ("imports", "one", "two"):
            tasks = [{"tenant": each, "id": "a", "payload": 1} for each in tenants]
            await producer.ask("enqueue", queue=queue, tasks=tasks)
        lost = [each for each in tenants if place_in(places, each) == places[1]]
        lose(served, monkeypatch, places[1], "one")
        page = values((await client.get("/metrics")).text)
    assert {name: page["fairq_queue_partitions_away", name] for name in ("imports", "one", "two")} == {
        "imports": 1, "one": 1, "two": 0,
    }  # fmt: skip
    assert page["fairq_queue_tasks", "imports", "ready"] == len(tenants) - len(lost)
    assert page["fairq_queue_tasks", "two", "ready"] == page["fairq_tasks_enqueued_total", "two"] == len(tenants)
    assert ("fairq_queue_tasks", "one", "ready") not in page
    assert ("fairq_tasks_enqueued_total", "imports") not in page, "a counter never falls"
    named = {labels[1] for of, *labels in page if of == "fairq_tenant_ready" and labels[0] == "imports"}
    assert named == {each for each in tenants if each not in lost}
