"""The load test's features: each is on where it ought to be, all tasks go through, ratios are to the neighbours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from fairq.store import keys
from fairq.store.embedded import embedded_store
from fairq.store.store import Store
from loadtest.bench import PAYLOAD, Bench
from loadtest.features import FEATURES, OFF, PLACES, Feature, Side, of_off
from loadtest.stores import opened

TENANTS, ROUNDS = 3, PLACES + 2
TENANT, IDS = "t2", [f"t2-{n}" for n in range(ROUNDS)]
Look = Callable[[Store, str], Awaitable[object]]


@asynccontextmanager
async def running_store(directory: Path) -> AsyncIterator[Store]:
    """Run an embedded store."""
    async with embedded_store(directory, fsync="everysec") as url, opened(url) as store:
        yield store


def limit(name: str, tenant: str = TENANT) -> Look:
    """Read a limit."""

    async def look(store: Store, queue: str) -> object:
        return getattr(await store.limits(queue, tenant), name)

    return look


def key(*command: str) -> Look:
    """Read a key of the queue."""

    async def look(store: Store, queue: str) -> object:
        verb, name, *rest = command
        return await store.connection.call(verb, f"{keys.queue_prefix(queue)}:{name}", *rest)

    return look


async def open_windows(store: Store, queue: str) -> object:
    """Count the tenants that are open."""
    names = [f"t{i}" for i in range(TENANTS)]
    return sum(period.is_open for period in (await store.opening_hours(queue, names))[1])


async def pending(store: Store, queue: str) -> object:
    """Count the tasks that wait for a place in their batch."""
    return (await store.queue(queue)).pending


async def results(store: Store, queue: str) -> object:
    """Read the results of a tenant's tasks."""
    return [result for result in await store.results(queue, IDS) if result]


async def events(store: Store, queue: str) -> object:
    """Name the events that a tenant has read."""
    return [(event.event, event.task) for event in (await store.events(queue, TENANT, 0, 100)).events]


# what shows that a feature is on while its tasks wait: where to look, what is there, and without it
WAITING: dict[str, tuple[Look, object, object]] = {
    "max_running for all": (limit("max_running", ""), 1_000_000, 0),
    "max_running of their own": (limit("max_running"), 1_000_000, None),
    "rates of their own": (limit("rate"), 1_000_000, None),
    "guarantees of their own": (limit("guaranteed"), 1, None),
    "quotas of their own": (limit("queued"), 1_000_000, None),
    "opening hours, open": (open_windows, TENANTS, 0),
    "three priorities": (key("ZCOUNT", f"ready:{TENANT}", "0", f"{49 * 2**42}"), -(-ROUNDS // 3), 0),
    "three groups": (key("ZCARD", f"turns:{TENANT}:50"), 4, 0),  # and the clock
    "a group per task": (key("ZCARD", f"turns:{TENANT}:50"), 1 + ROUNDS, 0),
    "dedupe keys": (key("GET", f"unique:{TENANT}:{TENANT}-4"), b"0 t2-4", None),
    "batches with max_running": (pending, TENANTS * (ROUNDS - PLACES), 0),
    "expiry": (key("ZCARD", "expiring"), TENANTS * ROUNDS, 0),
}
ENDED: dict[str, tuple[Look, object, object]] = {  # and when they have ended
    "results": (results, [PAYLOAD] * ROUNDS, []),
    "events": (events, [("done", id) for id in IDS], []),
}


def test_every_feature_is_looked_at() -> None:
    assert {feature.name for feature in FEATURES} == WAITING.keys() | ENDED.keys()


async def test_a_feature_is_on_and_off_without_it(tmp_path: Path) -> None:
    looks = {**WAITING, **ENDED}
    with trio.fail_after(120):
        async with running_store(tmp_path) as store:
            off = looks.items()
            await run_side(store, "off", OFF, {name: (look, shown) for name, (look, _, shown) in off})
            for n, feature in enumerate(FEATURES):
                look, shown, _ = looks[feature.name]
                await run_side(store, f"on-{n}", feature, {feature.name: (look, shown)})


async def run_side(store: Store, queue: str, feature: Feature, looks: dict[str, tuple[Look, object]]) -> None:
    """Have tasks done in a queue with a feature, and look whether what it does is there."""
    side = Side(feature, Bench(store, queue), TENANTS)
    await side.prepare()
    for step, shown in ((side.enqueue, WAITING), (side.work, ENDED)):
        for _ in range(ROUNDS):
            await step()
        for name in shown.keys() & looks.keys():
            look, expected = looks[name]
            assert await look(store, queue) == expected, (feature.name, name)
    state = await store.queue(queue)
    assert (state.done, state.ready, state.pending, state.leased) == (TENANTS * ROUNDS, 0, 0, 0)
    assert side.bench.verdict().is_clean


def test_a_round_is_reported_as_a_part_of_those_around_it() -> None:
    assert of_off([30.0], [10.0, 20.0]) == 2
    assert of_off([10.0, 44.0, 99.0], [10.0, 10.0, 30.0, 3.0]) == 2.2  # 1, 2.2, 6: one that is far off is nothing
