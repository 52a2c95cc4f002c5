"""Why a task waits, through the server: which workers count, and what each role may see; tests/lua has each cause."""

from __future__ import annotations

import pytest

import fairq
from fairq.errors import NotYet
from fairq.server.run import Served
from tests.store.waiting import wait_until

from .harness import OPERATOR, PRODUCER, WORKER, Raw, raw, tenant, url_of


async def test_workers_of_other_servers_count_and_those_that_are_drained_do_not(one: Served, two: Served) -> None:
    async with raw(one, tenant("ada")) as ada, raw(one, OPERATOR) as operator, raw(two, WORKER) as worker:
        await ada.enqueue("q", ["t0", "t"])
        await worker.attach("q", "other", credit=1)
        await worker.pushed()

        async def has_slots(wanted: float) -> bool:
            found = await ada.ask("why", queue="q", id="t")
            return bool(found.get("slots", 0) == wanted)

        await wait_until(lambda: has_slots(0.5))
        await ada.enqueue("othr", ["t"])
        assert (await ada.ask("why", queue="othr", id="t"))["served"] == ["other", "q"]
        await operator.ask("drain_worker", worker="w")
        await wait_until(lambda: has_slots(0))


async def test_queues_that_workers_serve_are_named_the_nearest_first_where_none_takes_ones_own(
    served: Served, ada: Raw, bob: Raw, operator: Raw, worker: Raw
) -> None:
    for client, queue in ((ada, "adas"), (bob, "bobs"), (ada, "emials")):
        await client.enqueue(queue, ["t0", "t"])
    await worker.attach("adas", "bobs", "emails", "unmade", credit=2)

    async def served_queues(client: Raw, id: str) -> list[str]:
        found = await client.ask("why", queue="emials", id=id)
        assert found["causes"] == ["no_worker"]
        return list(found.get("served", ()))

    assert await served_queues(ada, "t0") == ["emails", "adas", "unmade"], (
        "another tenant's queue is none of its business"
    )
    assert await served_queues(operator, "ada/t0") == ["emails", "adas", "bobs", "unmade"]
    async with raw(served, PRODUCER) as producer:
        assert await served_queues(producer, "ada/t0") == ["emails", "adas", "bobs", "unmade"]
    assert "served" not in await ada.ask("why", queue="adas", id="t")


async def test_a_result_that_does_not_come_says_why(served: Served, worker: Raw) -> None:
    await worker.attach("emails", credit=1)
    async with fairq.open_client(url_of(served), token=tenant("ada")) as client:
        task = await client.enqueue("emials", 1, result_ttl=60)
        with pytest.raises(NotYet) as caught:
            await task.result(timeout=1)
        assert caught.value.message == (
            f"task {task.id} has not ended: no worker is attached to the queue; those that are take tasks of emails"
        )
        with pytest.raises(NotYet) as caught:
            await task.result(timeout=0.01)
        assert caught.value.message == f"task {task.id} has not ended"


async def test_a_batch_that_is_not_complete_says_why(served: Served, worker: Raw) -> None:
    await worker.attach("emails", credit=1)
    for token, owner in ((tenant("ada"), None), (PRODUCER, "bob")):
        async with fairq.open_client(url_of(served), token=token) as client:
            batch = await client.open_batch("emials", tenant=owner)
            first, second = await batch.add_many([1, 2])
            why = "no worker is attached to the queue; those that are take tasks of emails"
            with pytest.raises(NotYet) as caught:
                await batch.wait(timeout=1)
            assert caught.value.message == (
                f"batch {batch.id} is not complete: 0 of 2 tasks have ended; it is open until `close` is called;"
                f" task {first.id}: {why}"
            )
            await first.cancel()
            await batch.close()
            with pytest.raises(NotYet) as caught:
                async for _ in batch.watch(every=60, timeout=1):
                    pass
            found = f"batch {batch.id} is not complete: 1 of 2 tasks have ended"
            assert caught.value.message == f"{found}; task {second.id}: {why}"
            with pytest.raises(NotYet) as caught:
                await batch.wait(timeout=0.01)
            assert caught.value.message == found
            await second.cancel()
            assert (await batch.wait()).cancelled == 2
