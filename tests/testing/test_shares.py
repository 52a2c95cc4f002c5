"""Who is served next in memory: tenants by their shares, groups by turns, batches by their slots."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

import fairq
import fairq.testing
from fairq.errors import BadRequest, Forbidden, NoResult, QuotaExceeded


def make_app(order: list[Any]) -> fairq.Worker:
    """Make a worker that does one task after the other, and notes their payloads."""
    app = fairq.Worker(concurrency=1)

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        order.append(task.payload)

    return app


@pytest.fixture
async def order() -> AsyncIterator[list[Any]]:
    """What ran, in order; under a deadline."""
    with trio.fail_after(30):
        yield []


BY_COUNT = {"emails": {"share": "count"}}


async def test_groups_of_a_tenant_take_turns(order: list[Any]) -> None:
    async with fairq.testing.run(make_app(order)) as service:
        await service.enqueue_many("emails", ["a"] * 4, group="a")
        await service.enqueue_many("emails", ["b"] * 2, group="b")
        await service.drain()
    assert order == ["a", "b", "a", "b", "a", "a"]


async def test_an_operator_sets_weights(order: list[Any]) -> None:
    async with fairq.testing.run(make_app(order), tenant="ada", settings=BY_COUNT) as service:
        operator = service.as_operator()
        assert await operator.set_weight("emails", "ada", 3.0) == 1.0
        assert await operator.set_weight("emails", "ada", 3.0) == 3.0
        await service.enqueue_many("emails", ["ada"] * 90)
        await service.as_tenant("bob").enqueue_many("emails", ["bob"] * 90)
        await service.drain()
    assert order[:80].count("ada") == pytest.approx(60, abs=2)


async def test_an_operator_limits_tenants(order: list[Any]) -> None:
    async with fairq.testing.run(make_app(order), tenant="ada") as service:
        operator = service.as_operator()
        assert (await operator.set_limits("emails", "ada", queued=2, rate=0.1)).queued is None
        with pytest.raises(QuotaExceeded, match="the tenant has reached its limit queued"):
            await service.enqueue_many("emails", [1, 2, 3])
        began = service.now
        await service.enqueue_many("emails", [1, 2])
        await service.drain()
        assert (service.now - began).total_seconds() == pytest.approx(10, abs=1)
        with pytest.raises(Forbidden, match="no versions"):
            await operator.set_weight("emails", "ada", 3.0, if_version="0" * 12)
        with pytest.raises(BadRequest, match="guaranteed to one tenant"):
            await operator.set_limits("emails", guaranteed=1)


async def test_a_result_has_no_room_within_a_tenants_limit() -> None:
    app = fairq.Worker()

    @app.task("emails")
    async def handle(task: fairq.Task) -> str:
        if task.payload == "fail":
            raise fairq.Reject("é" * 300)
        return "r" * 2000

    async with fairq.testing.run(app, tenant="ada") as service:
        await service.as_operator().set_limits("emails", "ada", stored_bytes=2500)
        task = await service.enqueue("emails", 1, result_ttl=60)
        await service.drain()
        with pytest.raises(NoResult, match="its tenant's limit stored_bytes left no room") as caught:
            await task.result()
        assert caught.value.field == "stored_bytes"
        await service.as_operator().set_limits("emails", "ada", stored_bytes=1700)
        failed = await service.enqueue("emails", "fail")
        await service.drain()
        assert (await failed.state()).error == "é" * 20 + " [cut: stored_bytes]"


async def test_an_operator_pauses_a_tenant_and_the_queue(order: list[Any]) -> None:
    async with fairq.testing.run(make_app(order), tenant="ada") as service:
        operator = service.as_operator()
        await service.enqueue("emails", "ada")
        await service.as_tenant("bob").enqueue("emails", "bob")
        assert not await operator.pause("emails", "ada")
        assert not await operator.pause("emails")
        await service.drain()
        assert order == []
        assert await operator.resume("emails")
        await service.drain()
        assert order == ["bob"]
        assert await operator.resume("emails", "ada")
        await service.drain()
    assert order == ["bob", "ada"]


async def test_a_task_is_moved_to_another_start(order: list[Any]) -> None:
    async with fairq.testing.run(make_app(order)) as service:
        first, second = await service.enqueue_many("emails", [1, 2])
        assert await first.reschedule(delay=3600) == "ok"
        await service.drain()
        assert await first.reschedule() == "gone"
        assert (first.outcome, second.outcome) == ("done", "done")
    assert order == [2, 1]
