"""Frequent requests run without a task. The store fails them here: it lost the library, a queue or the connection."""

from __future__ import annotations

from functools import partial

import redis

from fairq.server.run import Served
from fairq.store.opening import open_store
from tests.store.proxy import Proxy
from tests.store.waiting import wait_until

from .harness import OPERATOR, WORKER, Raw, raw, running, tenant


async def test_a_library_that_the_store_has_lost_is_loaded_again(
    redis_store: redis.Redis, ada: Raw, worker: Raw
) -> None:
    await worker.attach("q", credit=1)
    await ada.enqueue("q", ["a"])
    (task,) = await worker.pushed()
    for request in (partial(worker.settle, "q", "ack", task), partial(ada.enqueue, "q", ["b"])):
        redis_store.function_flush()
        assert await request() == ["ok"]
    assert (await worker.pushed())[0]["id"] == "b"


async def test_a_queue_that_was_deleted_unheard_is_made_anew(served: Served, ada: Raw, worker: Raw) -> None:
    await worker.attach("q", credit=1)
    await ada.enqueue("q", ["a"])
    (task,) = await worker.pushed()
    async with raw(served, OPERATOR) as operator:
        await operator.ask("delete_queue", queue="q", purge=True)
    served.app.store.registry.known["q"] = ("q",)
    assert await worker.settle("q", "ack", task) == ["gone"]
    assert await ada.enqueue("q", ["b"]) == ["ok"]
    assert (await worker.pushed())[0]["id"] == "b"


async def test_requests_under_way_when_the_store_is_lost_fail_and_may_be_sent_again(
    proxy: Proxy, proxied: str, server_store: str
) -> None:
    async with (
        open_store(server_store) as direct,
        running(proxied) as served,
        raw(served, tenant("ada")) as ada,
        raw(served, WORKER) as worker,
    ):

        async def are_carried_out() -> bool:
            row = await direct.queue("q")
            return (row.done, row.enqueued) == (1, 2)

        await worker.attach("q", credit=1)
        await ada.enqueue("q", ["a"])
        (task,) = await worker.pushed()
        proxy.hold()
        settled = {"settlements": [{"action": "ack", "id": task["full_id"], "lease": task["lease"]}]}
        await worker.send("settle", ref=901, queue="q", **settled)
        await ada.send("enqueue", ref=902, queue="q", tasks=[{"id": "b", "payload": 1}])
        await wait_until(are_carried_out)
        proxy.cut()
        proxy.release()
        for client in (worker, ada):
            frame = await client.receive()
            assert (frame["type"], frame["code"], frame["ref"]) == ("error", "outcome_unknown", frame["ref"])
        (row,) = served.app.worker_registry.named_here("w", 1, None)[0]
        assert row[3] == 1, "it holds its lease again"
        await served.app.store.connection.wait_connected()
        assert await ada.enqueue("q", ["b"]) == ["duplicate"]
        assert await worker.settle("q", "ack", task) == ["gone"], "it was carried out"
        assert (await worker.pushed())[0]["id"] == "b"
