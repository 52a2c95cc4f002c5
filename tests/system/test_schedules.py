"""Schedules with real processes: every fire is one task, whichever servers live and die."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

import fairq
from tests import stores
from tests.server.harness import tenant

from .harness import Ran, World, operating, wait_drained

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
