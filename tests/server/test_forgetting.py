"""Tenants and queues that have had nothing for a day leave the listings by themselves, through servers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import redis

from fairq.model.operator_views import Takers
from fairq.server.engine.timers import forgetting
from fairq.server.engine.timers.forgetting import IDLE_MS, Forgotten, forget_once
from fairq.server.run import Served
from fairq.store import keys
from tests.store.waiting import wait_until

from .clock import StoreClock
from .harness import OPERATOR, WORKER, raw, running, tenant

MINUTE_MS = 60_000
NOTHING = Forgotten(0, [])


async def run_one(served: Served) -> None:
    """Have a task of queue q done."""
    async with raw(served, tenant("ada")) as ada, raw(served, WORKER) as worker:
        await worker.attach("q", credit=1)
        await ada.enqueue("q", ["a"])
        assert await worker.settle("q", "ack", *await worker.pushed()) == ["ok"]


async def listed(served: Served) -> list[str]:
    """Name the queues that an operator is shown."""
    async with raw(served, OPERATOR) as operator:
        return [row["queue"] for row in (await operator.ask("queues"))["queues"]]


async def empty_queue(served: Served) -> None:
    """Make a queue for ada that has nothing but a tenant."""
    async with raw(served, tenant("ada")) as ada:
        await ada.ask("schedule", queue="q", name="s", payload=1, every_ms=60_000)
        await ada.ask("unschedule", queue="q", name="s")


async def forget(served: Served, idle_ms: int = 0) -> Forgotten:
    """Let a server look through all queues once."""
    return await forget_once(served.app.store, idle_ms, served.app.takers)


async def test_a_queue_leaves_the_list_when_it_has_had_nothing_for_a_day(
    server_store: str, store_clock: StoreClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(server_store, queue_quota=1) as served:
        store, began = served.app.store, store_clock.now_ms
        await run_one(served)
        monkeypatch.setattr("fairq.store.registry.time.time", lambda: store_clock.now_ms / 1000)  # servers' clocks

        async def look(after_ms: int) -> Forgotten:
            store_clock.now_ms = began + after_ms
            await store.tick("q")
            return await forget(served, IDLE_MS)

        changed = 3 * MINUTE_MS  # the marks of ended tasks have gone
        assert await look(changed) == NOTHING
        assert await look(changed + IDLE_MS - 1) == (1, [])
        assert await listed(served) == ["q"]
        assert await look(changed + IDLE_MS) == (0, ["q"])
        assert (await listed(served), await store.registry.read()) == ([], {})
        assert await look(changed + 2 * IDLE_MS) == NOTHING
        async with raw(served, tenant("ada")) as ada:
            assert await ada.enqueue("other", ["a"]) == ["ok"], "its quota was given back"


async def test_a_queue_with_an_idle_worker_at_any_server_stays(one: Served, two: Served) -> None:
    async with raw(two, WORKER) as worker:
        await worker.attach("q", credit=1)
        await wait_until(lambda: one.app.queues.count_slots("q") == 1)
        await empty_queue(one)
        assert await forget(one) == (1, [])
        assert await listed(one) == ["q"]
    await wait_until(lambda: one.app.queues.count_slots("q") == 0)
    assert await forget(one) == (0, ["q"])
    assert await listed(one) == await listed(two) == []


async def test_a_queue_stays_while_a_server_with_workers_does_not_answer(served: Served) -> None:
    async def unanswered(queues: Sequence[str]) -> dict[str, Takers]:
        return dict.fromkeys(queues, "unknown")

    await empty_queue(served)
    assert await forget_once(served.app.store, 0, unanswered) == (1, [])
    assert await listed(served) == ["q"]


async def test_all_servers_forget_a_queue_and_serve_it_when_it_comes_back(
    redis_store: redis.Redis, one: Served, two: Served
) -> None:
    for served in (one, two):
        await empty_queue(served)
    assert "q" in two.app.store.registry.known
    assert (await forget(one)).queues == ["q"]
    await wait_until(lambda: "q" not in two.app.store.registry.known)
    await run_one(two)
    assert await listed(one) == ["q"]
    assert redis_store.exists(f"{keys.queue_prefix('q')}:queue")


async def test_a_worker_that_comes_while_its_queue_is_removed_is_served_at_once(
    no_polls: None, one: Served, two: Served
) -> None:
    async with raw(two, WORKER) as worker:
        await empty_queue(one)

        async def none(queues: Sequence[str]) -> dict[str, Takers]:
            if queues:
                await worker.attach("q", credit=1)
                await wait_until(lambda: two.app.queues.dispatchers["q"].claiming.is_empty)  # it has looked, and waits
            return dict.fromkeys(queues, "none")

        assert await forget_once(one.app.store, 0, none) == (1, ["q"])
        async with raw(one, tenant("ada")) as ada:
            await ada.enqueue("q", ["a"])
        assert [task["id"] for task in await worker.pushed()] == ["a"]


async def test_servers_look_by_themselves(
    server_store: str, monkeypatch: pytest.MonkeyPatch, redis_store: redis.Redis
) -> None:
    monkeypatch.setattr(forgetting, "ROUND_S", 0.01)
    monkeypatch.setattr(forgetting, "IDLE_MS", 0)
    async with running(server_store) as served:
        await empty_queue(served)
        await wait_until(lambda: not redis_store.exists(keys.QUEUES))
