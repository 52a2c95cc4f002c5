"""Schedules with real processes: every fire is one task, whichever servers live and die."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import trio

import fairq
from tests import stores
from tests.server.harness import tenant

from .harness import Ran, World, counts, operating, wait_drained

pytestmark = pytest.mark.deep("kills")

EVERY_S = 1.5
EVERY_MS = 1500
PAYLOAD = {"first": 0, "then": 0}


def fires_of(ran: list[Ran], name: str) -> list[int]:
    """List the times of a schedule's fires that were worked on, each as often as its task was begun."""
    return sorted(int(row.id.rpartition("-")[2]) for row in ran if row.event == "start" and row.id.startswith(name))


def in_ms(moment: float) -> int:
    """Tell a moment in ms."""
    return round(moment * 1000)


def assert_each_once(fires: list[int], first: int) -> None:
    """Check that fires are the grid's, in order and each once; a machine that stood still for longer skips some."""
    assert fires[0] == first
    assert [fire for fire in fires if (fire - first) % EVERY_MS] == []
    assert fires == sorted(set(fires))


async def test_two_servers_on_one_store_fire_each_time_once(
    world: World, durable_store: Callable[[], stores.LocalServer]
) -> None:
    names = ("a", "b", "c")
    store = durable_store()
    with trio.fail_after(60):
        first, second = world.serve("--store", store.url), world.serve("--store", store.url)
        urls = (await first.wait_url(), await second.wait_url())
        world.work(*urls)
        async with fairq.open_client(urls, token=tenant("ada")) as client, operating(*urls) as operator:
            begun = {name: (await client.schedule("q", name, PAYLOAD, every=EVERY_S))[0] for name in names}
            ran = await world.wait_journal(lambda ran: all(len(fires_of(ran, name)) >= 5 for name in names))
            for name in names:
                assert await client.unschedule("q", name)
            row = await wait_drained(operator)
            ran = world.journal()
            for name in names:
                fires, at = fires_of(ran, name), in_ms(begun[name].timestamp())
                assert_each_once(fires, at)
            assert row["enqueued"] == row["done"] == sum(len(fires_of(ran, name)) for name in names)
            fired = [line for server in (first, second) for line in server.printed.splitlines() if " fired " in line]
            assert len(fired) >= 5


async def test_servers_killed_at_the_time_of_a_fire_lose_none_and_fire_none_twice(
    world: World, durable_store: Callable[[], stores.LocalServer]
) -> None:
    store = durable_store()
    with trio.fail_after(90):
        servers = [world.serve("--store", store.url), world.serve("--store", store.url)]
        urls = [await server.wait_url() for server in servers]
        ports = [url.rpartition(":")[2] for url in urls]
        world.work(*urls)
        async with fairq.open_client(urls, token=tenant("ada")) as client, operating(*urls) as operator:
            await operator.request("configure", {"queue": "q", "settings": {"lease_ms": 1000}})
            (begun, *_) = await client.schedule("q", "pulse", PAYLOAD, every=EVERY_S)
            for number in range(4):
                seen = len(fires_of(world.journal(), "pulse"))
                await world.wait_journal(lambda ran, seen=seen: len(fires_of(ran, "pulse")) > seen)  # type: ignore[misc]
                await trio.sleep(EVERY_S - 0.03 + 0.02 * number)  # just before the next fire, or just after
                servers[number % 2].kill()
                servers[number % 2] = world.serve("--store", store.url, "--port", ports[number % 2])
                await servers[number % 2].wait_url()
            seen = len(fires_of(world.journal(), "pulse"))
            await world.wait_journal(lambda ran: len(fires_of(ran, "pulse")) > seen)
            assert await client.unschedule("q", "pulse")
            row = await wait_drained(operator)
            fires, at = sorted(set(fires_of(world.journal(), "pulse"))), in_ms(begun.timestamp())
            assert_each_once(fires, at)
            assert row["enqueued"] == row["done"] == len(fires)


async def test_after_a_time_without_servers_a_schedule_goes_on_from_where_it_was(world: World) -> None:
    """Seconds only, which is late and not missed; the minute of grace is in tests/server and tests/lua."""
    with trio.fail_after(60):
        server = world.serve("--data-dir", world.directory / "data")
        url = await server.wait_url()
        world.work(url)
        async with fairq.open_client(url, token=tenant("ada")) as client:
            (begun, *_) = await client.schedule("q", "pulse", PAYLOAD, every=EVERY_S)
            await world.wait_journal(lambda ran: len(fires_of(ran, "pulse")) >= 2)
        server.kill()
        seen = fires_of(world.journal(), "pulse")
        await trio.sleep(3 * EVERY_S)
        again = world.serve("--data-dir", world.directory / "data", "--port", url.rpartition(":")[2])
        await again.wait_url()
        await world.wait_journal(lambda ran: len(fires_of(ran, "pulse")) >= len(seen) + 3)
        async with operating(url) as operator:
            await operator.request("unschedule", {"queue": "q", "name": "pulse", "tenant": "ada"})
            row = await wait_drained(operator)
            fires, at = fires_of(world.journal(), "pulse"), in_ms(begun.timestamp())
            assert len(set(fires)) == row["enqueued"] == row["done"]
            assert all((fire - at) % EVERY_MS == 0 for fire in fires)
            gap = max(later - earlier for earlier, later in pairwise(fires))
            assert gap >= 2 * EVERY_MS, "one task stands for those that nobody was there for"
            assert (await counts(operator))["delayed"] == 0
