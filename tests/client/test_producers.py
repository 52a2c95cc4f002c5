"""One client enqueues for all tenants of a product, and follows up what it enqueued."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

import fairq
from fairq.client.operator import open_operator
from fairq.errors import FairqError, Forbidden, QuotaExceeded, TenantsRefused
from fairq.model.tasks import Lease, Settlement
from fairq.server.run import Served
from fairq.tokens import TokenRecord, hash_token, make_token
from fairq.wire.terms import Role
from tests.server.harness import OPERATOR, PRODUCER, url_of


@pytest.fixture
async def shop(served: Served) -> AsyncIterator[fairq.Client]:
    """A producer's client, for all tenants."""
    async with fairq.open_client(url_of(served), token=PRODUCER) as client:
        yield client


async def claimed(served: Served, count: int = 100) -> list[Lease]:
    """Lease what is ready."""
    return (await served.app.store.claim("emails", "w", count)).leases


async def limit(served: Served, name: str, **limits: Any) -> None:
    """Set limits of a tenant."""
    async with open_operator(url_of(served), token=OPERATOR) as operator:
        await operator.set_limits("emails", name, **limits)


async def test_calls_that_share_a_frame_are_refused_for_themselves(served: Served, shop: fairq.Client) -> None:
    ended: dict[str, str] = {}

    async def call(name: str, count: int) -> None:
        try:
            await shop.enqueue_many("emails", range(count), tenant=name.partition("-")[0])
            ended[name] = "ok"
        except FairqError as error:
            ended[name] = error.code

    await limit(served, "full", queued=2)
    async with trio.open_nursery() as nursery:
        for name, count in [("full-1", 3), ("full-2", 2), ("acme-1", 5), ("zoo-1", 5), ("full-3", 3)]:
            nursery.start_soon(call, name, count)
    assert ended == {
        "full-1": "quota_exceeded", "full-2": "ok", "full-3": "quota_exceeded", "acme-1": "ok", "zoo-1": "ok",
    }  # fmt: skip


async def test_a_token_bounds_tenants_and_queues(served: Served) -> None:
    id, token = make_token(Role.PRODUCER)
    async with open_operator(url_of(served), token=OPERATOR) as operator:
        await operator.create_token(TokenRecord(id, "producer", hash_token(token), "acme*", ["emails"]))
    async with fairq.open_client(url_of(served), token=PRODUCER) as all_:
        other = await all_.enqueue("emails", 1, tenant="Acme-1")
        batch = await all_.open_batch("emails", tenant="zoo")
    async with fairq.open_client(url_of(served), token=token) as client:
        mine = await client.enqueue("emails", 1, tenant="acme-1")
        assert (await mine.state()).state == "ready"
        with pytest.raises(Forbidden) as queue:
            await client.enqueue("images", 1, tenant="acme-1")
        assert queue.value.field == "queue"
        refused: dict[str, Any] = {
            "tenant": client.enqueue("emails", 1, tenant="zoo"),
            "ids": client.tasks("emails", [mine.id, other.id]),
            "id": client.batch("emails", batch.id).state(),
        }
        for field, call in refused.items():
            with pytest.raises(Forbidden) as caught:
                await call
            assert caught.value.field == field
        with pytest.raises(TenantsRefused) as several:
            await client.enqueue_many("emails", [1, 2], tenant=["acme", "zoo"])
        assert [type(refusal) for refusal in several.value.refusals.values()] == [Forbidden]
        with pytest.raises(Forbidden):
            await client.cancel("emails", [other.id])
        with pytest.raises(Forbidden):
            await client.wait_task("emails", other.id, 5)
        with pytest.raises(Forbidden):
            await client.open_batch("emails", tenant="zoo")


async def test_a_flood_of_one_tenant_delays_no_call_of_another(shop: fairq.Client) -> None:
    ended: list[str] = []

    async def call(name: str, count: int) -> None:
        await shop.enqueue_many("emails", range(count), tenant=name)
        ended.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, "flood", 8_000)
        await shop.enqueue("emails", 1, tenant="first")  # in a frame of theirs, or behind some
        nursery.start_soon(call, "quiet", 1)
    assert ended == ["quiet", "flood"]


async def test_a_tenant_that_is_refused_delays_no_call_of_another(served: Served, shop: fairq.Client) -> None:
    refused, ended_before = [], []

    async def flood() -> None:
        with pytest.raises(QuotaExceeded):
            await shop.enqueue("emails", 1, tenant="full")
        refused.append(1)

    async def quiet() -> None:
        while not refused:
            await trio.lowlevel.checkpoint()
        await shop.enqueue("emails", 1, tenant="quiet")
        ended_before.append(len(refused))

    await limit(served, "full", queued=1)
    await shop.enqueue("emails", 1, tenant="full")
    async with trio.open_nursery() as nursery:
        for _ in range(300):
            nursery.start_soon(flood)
        nursery.start_soon(quiet)
    assert len(refused) == 300
    assert ended_before[0] < 100


async def test_a_tenant_that_waits_for_much_delays_no_wait_of_another(
    served: Served, shop: fairq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairq.wire.waits.MAX_WAITED", 500)
    tasks = await shop.enqueue_many("emails", range(600), tenant="flood", delay=3600, result_ttl=60)
    quick = await shop.enqueue("emails", 1, tenant="quiet", result_ttl=60)
    async with trio.open_nursery() as nursery:
        for task in tasks:
            nursery.start_soon(task.result)
        await shop.tasks("emails", [quick.id])  # behind their requests
        (lease,) = await claimed(served)
        await served.app.store.settle("emails", [Settlement("ack", quick.id, lease.lease, result=b"7")])
        assert await quick.result(timeout=15) == 7  # of a wait that begins behind theirs
        nursery.cancel_scope.cancel()
