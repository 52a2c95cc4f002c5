"""One client enqueues for all tenants of a product, and follows up what it enqueued."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio

import fairq
from fairq.client.operator import open_operator
from fairq.errors import BadRequest, Forbidden, QuotaExceeded, TenantsRefused
from fairq.server.run import Served
from fairq.tokens import TokenRecord, hash_token, make_token
from fairq.wire.terms import Role
from tests.server.harness import OPERATOR, PRODUCER, url_of
from tests.store.cases import raises_for


@pytest.fixture
async def shop(served: Served) -> AsyncIterator[fairq.Client]:
    """A producer's client, for all tenants."""
    async with fairq.open_client(url_of(served), token=PRODUCER) as client:
        yield client


async def limit(served: Served, name: str, **limits: Any) -> None:
    """Set limits of a tenant."""
    async with open_operator(url_of(served), token=OPERATOR) as operator:
        await operator.set_limits("emails", name, **limits)


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
            with raises_for(field, Forbidden):
                await call
        with pytest.raises(TenantsRefused) as several:
            await client.enqueue_many("emails", [1, 2], tenant=["acme", "zoo"])
        assert [type(refusal) for refusal in several.value.refusals.values()] == [Forbidden]
        with pytest.raises(Forbidden):
            await client.cancel("emails", [other.id])
        with pytest.raises(Forbidden):
            await client.wait_task("emails", other.id, 5)
        with pytest.raises(Forbidden):
            await client.open_batch("emails", tenant="zoo")


async def test_a_token_bounds_the_schedules_of_tenants(served: Served) -> None:
    id, token = make_token(Role.PRODUCER)
    async with open_operator(url_of(served), token=OPERATOR) as operator:
        await operator.create_token(TokenRecord(id, "producer", hash_token(token), "acme*", ["emails"]))
        await operator.schedule("emails", "daily", 1, every=60, tenant="zoo")
        async with fairq.open_client(url_of(served), token=token) as client:
            for n in range(2):  # the second changes nothing
                assert len(await client.schedule("emails", "daily", {"n": n // 2}, every=60, tenant="acme-1")) == 3
            assert await client.pause_schedule("emails", "daily", tenant="acme-1") is False
            assert await client.resume_schedule("emails", "daily", tenant="acme-1") is True
            assert (await client.read_schedule("emails", "daily", tenant="acme-1")).payload == {"n": 0}
            assert [(s.tenant, s.name) for s in await client.schedules("emails", tenant="acme-1")] == [
                ("acme-1", "daily")
            ]
            calls: list[tuple[Callable[..., Awaitable[Any]], tuple[Any, ...]]] = [
                (partial(client.schedule, every=60), ("daily", 1)), (client.unschedule, ("daily",)),
                (client.pause_schedule, ("daily",)), (client.resume_schedule, ("daily",)),
                (client.read_schedule, ("daily",)), (client.schedules, ()),
            ]  # fmt: skip
            for call, args in calls:
                with raises_for("tenant", Forbidden):
                    await call("emails", *args, tenant="zoo")
                with raises_for("tenant", BadRequest):
                    await call("emails", *args)
                with raises_for("queue", Forbidden):
                    await call("images", *args, tenant="acme-1")
            assert await client.unschedule("emails", "daily", tenant="acme-1") is True
        assert [(s.tenant, s.name) for s in await operator.schedules("emails")] == [("zoo", "daily")]
        noted = [(c.verb, c.role, c.tenant) for c in (await operator.audit(by_tenants=True)).changes]
    changed = ("unschedule", "set_schedule_paused", "set_schedule_paused", "schedule")
    assert noted == [(verb, "producer", "acme-1") for verb in changed]


async def test_a_tenant_that_is_no_text_is_refused_by_name(shop: fairq.Client) -> None:
    one: Any = 17
    for tenant in (one, [one]):
        with pytest.raises(BadRequest, match=r"tenant must be .*, not 17"):
            await shop.enqueue_many("emails", [1], tenant=tenant)


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
