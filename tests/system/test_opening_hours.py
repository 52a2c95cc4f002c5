"""Opening hours with real processes: each changes once and in time, whichever servers live and die.

Texts have minutes, so tests have the store change opening hours at given times. How late each was is printed
(`pytest -s`); store, servers and test read the same clock.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
import trio

import fairq
from fairq.model.limits import OpeningHours
from fairq.store.opening import open_store
from fairq.store.store import Store
from tests import stores
from tests.server.harness import WORKER, daily, raw, tenant
from tests.store.waiting import wait_until

from .harness import Process, World, operating, wait_drained

pytestmark = pytest.mark.deep("kills")

TASKS = 1500


async def due(store: Store, whose: str, *, opens: bool, in_ms: int) -> int:
    """Have opening hours change soon, as if their text said so; returns when."""
    now_ms, _ = await store.opening_hours("q")
    text = daily(now_ms, -60, 60) if opens else daily(now_ms, 60, 120)
    await store.set_opening_hours("q", OpeningHours(whose, text, not opens, now_ms + in_ms))
    return now_ms + in_ms


async def wait_changed(store: Store, whose: str, *, opens: bool) -> float:
    """Wait until opening hours have changed; returns when that was seen."""

    async def has_turned() -> bool:
        _, (hours,) = await store.opening_hours("q", [whose])
        return hours.is_open is opens

    await wait_until(has_turned)
    return time.time() * 1000


def changes(*servers: Process) -> tuple[int, int]:
    """Count the changes that servers logged: of hours that opened, and that closed."""
    printed = "".join(server.printed for server in servers)
    opened, closed = (re.findall(rf" opening hours changed .*\b{word}=(\d+)", printed) for word in ("opened", "closed"))
    return sum(map(int, opened)), sum(map(int, closed))


async def test_tasks_start_after_the_window_opened_and_none_after_it_closed(
    world: World, durable_store: Callable[[], stores.LocalServer]
) -> None:
    started: list[tuple[float, str]] = []

    async def work(url: str) -> None:
        async with raw(url, WORKER) as worker:
            await worker.attach("q", credit=2)
            while True:
                tasks = [task for push in worker.pushes for task in push["tasks"]]
                worker.pushes.clear()
                started.extend((time.time() * 1000, task["id"]) for task in tasks)
                if not tasks:
                    await worker.receive()
                    continue
                await trio.sleep(0.01)
                await worker.settle("q", "ack", *({**task, "full_id": task["id"]} for task in tasks))

    local = durable_store()
    with trio.fail_after(60):
        first, second = world.serve("--store", local.url), world.serve("--store", local.url)
        urls = (await first.wait_url(), await second.wait_url())
        async with (
            open_store(local.url) as store,
            fairq.open_client(urls, token=tenant("ada")) as client,
            trio.open_nursery() as nursery,
        ):
            opens_at = await due(store, "ada", opens=True, in_ms=2000)
            for url in urls:
                nursery.start_soon(work, url)
            await client.enqueue_many("q", list(range(TASKS)))
            assert not started
            opened = await wait_changed(store, "ada", opens=True)
            await wait_until(lambda: len(started) > 50)
            closes_at = await due(store, "ada", opens=False, in_ms=1200)
            closed = await wait_changed(store, "ada", opens=False)

            async def have_ended() -> bool:
                return (await store.queue("q")).leased == 0

            await wait_until(have_ended)
            count = len(started)
            for url in urls:
                async with raw(url, WORKER) as worker:
                    await worker.attach("q", credit=2)
                    await worker.quiet()
            nursery.cancel_scope.cancel()
        begins, ends = started[0][0] - opens_at, started[-1][0] - closes_at
        print(f"opened {opened - opens_at:.1f} ms late, first start after {begins:.1f} ms")
        print(f"closed {closed - closes_at:.1f} ms late, last start at {ends:.1f} ms")
        assert len(started) == count == len({id for _, id in started})
        assert 50 < count < TASKS
        assert begins >= -1
        assert changes(first, second) == (1, 1)


async def test_servers_killed_at_the_time_of_a_turn_leave_it_to_the_others(
    world: World, durable_store: Callable[[], stores.LocalServer]
) -> None:
    local = durable_store()
    with trio.fail_after(90):
        servers = [world.serve("--store", local.url), world.serve("--store", local.url)]
        urls = [await server.wait_url() for server in servers]
        ports = [url.rpartition(":")[2] for url in urls]
        world.work(*urls)
        killed: list[Process] = []
        async with open_store(local.url) as store, operating(*urls) as operator:
            await operator.request("configure", {"queue": "q", "settings": {"lease_ms": 1000}})
            for number in range(6):
                name = f"t{number}"
                opening_changes_at = await due(store, name, opens=True, in_ms=1500)
                async with fairq.open_client(urls, token=tenant(name)) as client:
                    await client.enqueue("q", {"first": 0, "then": 0}, id=name)
                wait_ms = (
                    opening_changes_at - 4 + 2 * number - time.time() * 1000
                )  # until just before the change, or just after
                await trio.sleep(max(0.0, wait_ms / 1000))
                servers[number % 2].kill()
                killed.append(servers[number % 2])
                changed = await wait_changed(store, name, opens=True)
                print(f"killed at {-4 + 2 * number} ms, changed {changed - opening_changes_at:.1f} ms late")
                assert changed - opening_changes_at >= -1
                await world.wait_journal(lambda ran, name=name: any(row.id == name for row in ran))  # type: ignore[misc]
                servers[number % 2] = world.serve("--store", local.url, "--port", ports[number % 2])
                await servers[number % 2].wait_url()
            row = await wait_drained(operator)
            assert (row["enqueued"], row["done"]) == (6, 6)
            opened, closed = changes(*killed, *servers)
            assert opened <= 6, "a server killed after a change may not have logged it"
            assert closed == 0
