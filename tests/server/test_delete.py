"""Queues end to end: who may make how many, and a deleted one is forgotten by every server at once."""

from __future__ import annotations

import math
from typing import Any

import pytest
import redis

from fairq.model.tasks import NewTask
from fairq.server.run import Served
from fairq.store import keys
from tests.store.waiting import wait_until

from .harness import OPERATOR, PRODUCER, WORKER, Raw, Refused, lease_of, raw, running, tenant

HOUR_MS = 3_600_000


def crowd(redis_store: redis.Redis) -> None:
    """Give the store so many other keys that no deletion ends with its first call."""
    redis_store.mset({f"other:{n}": "" for n in range(1000)})


def keys_of(redis_store: redis.Redis) -> set[bytes]:
    return set(redis_store.scan_iter(f"{keys.queue_prefix('q')}:*"))


async def test_a_tenant_that_makes_names_without_end_is_stopped_at_its_quota(
    served: Served, redis_store: redis.Redis, ada: Raw, operator: Raw
) -> None:
    refused = []
    async with raw(served, tenant("eve")) as eve:
        for number in range(130):
            try:
                await eve.enqueue(f"q-{number}", ["a"], delay_ms=HOUR_MS)
            except Refused as error:
                refused.append((error.code, error.field, error.frame.get("retry_in_ms")))
        assert refused == [("quota_exceeded", "queues", None)] * 30
        assert len((await operator.ask("queues"))["queues"]) == 100
        assert len([key for key in redis_store.scan_iter("fq:{q-*:queue")]) == 100
        assert set(served.app.ticker.queues) <= {f"q-{number}" for number in range(100)}
        assert await eve.enqueue("q-0", ["b"]) == await ada.enqueue("hers", ["a"]) == ["ok"]
        assert await eve.enqueue("hers", ["a"]) == ["ok"]
        makers: dict[str, dict[str, Any]] = {
            "open_batch": {"id": "b"}, "schedule": {"name": "s", "payload": 1, "every_ms": 60_000},
        }  # fmt: skip
        for verb, body in makers.items():
            with pytest.raises(Refused, match="quota_exceeded queues"):
                await eve.ask(verb, queue="more", **body)
        await operator.ask("delete_queue", queue="q-7", purge=True)
        assert await eve.enqueue("more", ["a"]) == ["ok"]


async def test_operators_make_queues_that_count_for_nobody(server_store: str) -> None:
    async with (
        running(server_store, queue_quota=0) as served,
        raw(served, OPERATOR) as operator,
        raw(served, tenant("ada")) as ada,
    ):
        await operator.ask("configure", queue="q", settings={"max_attempts": 3})
        await operator.ask("schedule", queue="s", tenant="ada", name="n", payload=1, every_ms=60_000)
        assert await ada.enqueue("q", ["a"]) == await ada.enqueue("s", ["a"]) == ["ok"]
        rows = (await operator.ask("queues"))["queues"]
        assert [(row["queue"], row["made_by"], row["made_at_ms"] > 0) for row in rows] == [
            ("q", "", True), ("s", "", True),
        ]  # fmt: skip


async def test_only_operators_make_queues_where_no_tenant_may(server_store: str) -> None:
    async with (
        running(server_store, queue_quota=0) as served,
        raw(served, OPERATOR) as operator,
        raw(served, PRODUCER) as producer,
        raw(served, WORKER) as worker,
        raw(served, tenant("ada")) as ada,
    ):
        registry, task = served.app.store.registry, {"id": "t", "payload": 1}
        for name in ("emails", "reports"):
            await operator.ask("configure", queue=name, settings={"max_attempts": 3})
        wrong: list[tuple[Raw, str, dict[str, Any]]] = [
            (ada, "enqueue", {"tasks": [task]}),
            (ada, "open_batch", {"id": "b", "max_running": 0}),
            (ada, "schedule", {"name": "s", "payload": 1, "every_ms": 60_000}),
            (producer, "open_batch", {"id": "bob/b", "max_running": 0}),
            (producer, "schedule", {"tenant": "bob", "name": "s", "payload": 1, "every_ms": 60_000}),
        ]
        for client, verb, body in wrong:
            registry.offered_at = -math.inf
            with pytest.raises(Refused, match=r"there is no queue emials.*did you mean emails\?") as caught:
                await client.ask(verb, queue="emials", **body)
            assert (caught.value.code, caught.value.field) == ("not_found", "queue")
        registry.offered_at = -math.inf
        reply = await producer.ask("enqueue", queue="emials", tenant="bob", tasks=[task])
        message = "there is no queue emials, and only operators make queues here; did you mean emails?"
        assert reply["refusals"] == {"bob": {"code": "not_found", "message": message, "field": "queue"}}
        assert [row["queue"] for row in (await operator.ask("queues"))["queues"]] == ["emails", "reports"]
        assert await ada.enqueue("emails", ["a"]) == ["ok"]
        await producer.ask("enqueue", queue="reports", tenant="bob", tasks=[task])
        await worker.attach("emails", credit=1)
        (lease,) = await worker.pushed()
        with pytest.raises(Refused, match="not_found queue"):
            await worker.ask("enqueue_from", queue="emials", leases=[lease_of(lease, "emails")], tasks=[task])


@pytest.mark.usefixtures("no_polls")
async def test_the_other_server_forgets_a_deleted_queue_at_once(
    redis_store: redis.Redis, one: Served, two: Served
) -> None:
    async with raw(one, OPERATOR) as operator, raw(two, tenant("ada")) as ada:
        async with raw(two, WORKER) as worker:
            await worker.attach("q", credit=1)
            await ada.enqueue("q", ["a"])
            await worker.settle("q", "ack", *await worker.pushed())
            assert "q" in two.app.recorder.counts.queues
        await ada.enqueue("q", ["late"], delay_ms=HOUR_MS)
        await ada.ask("wait_tasks", queue="q", ids=["late"], timeout_ms=1)
        app = two.app
        assert "q" in app.ticker.queues
        assert "q" in app.store.registry.known
        assert "q" in app.queues.dispatchers
        assert "q" in app.queues.long_polls
        with pytest.raises(Refused, match="not_empty purge: queue q is not empty: 1 delayed"):
            await operator.ask("delete_queue", queue="q")
        answer = await operator.ask("delete_queue", queue="q", purge=True)
        assert (answer["outcome"], answer["contents"]["delayed"]) == ("ok", 1)
        assert keys_of(redis_store) == set()
        places = (
            app.ticker.queues,
            app.store.registry.known,
            app.queues.dispatchers,
            app.queues.long_polls,
            one.app.ticker.queues,
        )
        await wait_until(lambda: not any("q" in place for place in places))
        assert "q" not in app.recorder.counts.queues
        assert await operator.ask("delete_queue", queue="q") == {"outcome": "gone", "contents": {}}


@pytest.mark.usefixtures("no_polls")
async def test_workers_of_a_deleted_queue_are_stopped_and_serve_it_when_it_is_made_anew(
    redis_store: redis.Redis, one: Served, two: Served
) -> None:
    async with raw(one, OPERATOR) as operator, raw(one, tenant("ada")) as ada, raw(two, WORKER) as worker:
        await worker.attach("q", credit=1)
        await ada.enqueue("q", ["a", "b"])
        (task,) = await worker.pushed()
        assert (await operator.ask("delete_queue", queue="q", purge=True))["outcome"] == "ok"
        stop = await worker.receive()
        assert (stop["type"], stop["leases"]) == ("stop", [{"id": "ada/a", "lease": task["lease"]}])
        assert await worker.settle("q", "ack", task) == ["gone"]
        await worker.quiet()
        assert await ada.enqueue("q", ["b"]) == ["ok"]
        (task,) = await worker.pushed()
        assert await worker.settle("q", "ack", task) == ["ok"]
        assert (await two.app.store.queue("q")).done == 1


@pytest.mark.usefixtures("quick_floor")
async def test_a_deletion_that_its_server_did_not_finish_is_finished_by_another(
    server_store: str, redis_store: redis.Redis
) -> None:
    async with running(server_store) as stays, raw(stays, tenant("ada")) as ada, raw(stays, WORKER) as worker:
        async with running(server_store) as dies:
            await worker.attach("q", credit=1)
            await ada.enqueue("q", ["a"])
            (task,) = await worker.pushed()
            await dies.app.store.enqueue("q", "bob", [NewTask(f"b-{n}", b"1", priority=9) for n in range(300)])
            crowd(redis_store)
            await worker.ask("credit", credit=0)
            assert (await dies.app.store.registry.delete("q", purge=True, seconds=0)).outcome == "more"
        with pytest.raises(Refused, match="deleting queue: the queue is being deleted"):
            await ada.enqueue("q", ["b"])
        assert await worker.settle("q", "ack", task) == ["gone"]
        await worker.ask("credit", credit=1)  # a claim finds nothing, and harms nothing
        async with raw(stays, OPERATOR) as operator:
            (row,) = (await operator.ask("queues"))["queues"]
            assert row["is_deleting"]
            assert (await operator.ask("delete_queue", queue="q"))["outcome"] == "ok"
            assert (await operator.ask("delete_queue", queue="q"))["outcome"] == "gone"
        assert await ada.enqueue("q", ["c"]) == ["ok"]
        assert [each["id"] for each in await worker.pushed()] == ["c"]


async def test_a_long_deletion_is_answered_before_it_is_done(
    served: Served, redis_store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairq.server.engine.verbs.admin._DELETE_S", 0.0)
    crowd(redis_store)
    async with raw(served, OPERATOR) as operator, raw(served, tenant("ada")) as ada:
        for _ in range(2):
            await ada.enqueue("q", [f"id-{n}" for n in range(160)], priority=9)
            outcomes: list[str] = []
            while not outcomes or outcomes[-1] == "more":
                outcomes.append((await operator.ask("delete_queue", queue="q", purge=not outcomes))["outcome"])
            assert set(outcomes[:-1]) == {"more"}
            assert outcomes[-1] == "ok"
            assert keys_of(redis_store) == set()
