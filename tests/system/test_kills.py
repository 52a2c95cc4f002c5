"""Processes are killed; acknowledged tasks are done, and soon."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
import trio

from tests import stores
from tests.store.waiting import wait_until

from .harness import World, child_of, counts, operating, producing, wait_drained, wait_workers

pytestmark = pytest.mark.deep("kills")


async def test_the_tasks_of_a_killed_worker_run_elsewhere_long_before_their_leases_end(world: World) -> None:
    with trio.fail_after(60):
        url = await world.serve("--data-dir", world.directory / "data").wait_url()
        victim = world.work(url, name="victim")
        async with producing(url) as producer, operating(url) as operator:
            await operator.request("configure", {"queue": "q", "settings": {"lease_ms": 3_600_000}})
            for number in range(4):
                await producer.enqueue(f"id-{number}", first=60, then=0)
            await world.wait_journal(lambda ran: len(ran) == 4)
            heir = world.work(url, name="heir")
            await wait_workers(operator, 2)
            victim.kill()
            await world.wait_journal(lambda ran: sum(row.event == "end" for row in ran) == 4)
            assert {(row.attempt, row.pid) for row in world.journal("end")} == {(2, heir.pid)}
            assert (await wait_drained(operator))["done"] == 4
            producer.check(world.journal())


async def test_when_a_server_is_killed_clients_and_workers_go_on_at_another(
    world: World, durable_store: Callable[[], stores.LocalServer]
) -> None:
    store = durable_store()
    stop = trio.Event()
    with trio.fail_after(90):
        first, second = world.serve("--store", store.url), world.serve("--store", store.url)
        urls = (await first.wait_url(), await second.wait_url())
        world.work(*urls, name="worker")
        async with producing(*urls) as producer, operating(*reversed(urls)) as operator:
            await operator.request("configure", {"queue": "q", "settings": {"lease_ms": 1000}})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(producer.keep_on, "id", stop)
                await world.wait_journal(lambda ran: len(ran) > 40)
                first.kill()
                before = len(producer.acknowledged)
                await wait_until(lambda: len(producer.acknowledged) >= before + 20)
                done = len(world.journal("end"))
                await world.wait_journal(lambda ran: sum(row.event == "end" for row in ran) > done + 20)
                stop.set()
            row = await wait_drained(operator)
            assert row["dead"] == 0
            assert producer.acknowledged == producer.attempted  # the SDK repeated what had no answer
            producer.check(world.journal(), may_repeat=lambda id: True)
            again = len(world.journal("end")) - len(producer.acknowledged)
            assert again <= 4 * 2  # no more than what the worker held when its connection broke


async def test_leases_that_a_server_and_its_worker_took_along_are_reaped_by_another(
    world: World, durable_store: Callable[[], stores.LocalServer]
) -> None:
    store = durable_store()
    with trio.fail_after(90):
        doomed, other = world.serve("--store", store.url), world.serve("--store", store.url)
        urls = (await doomed.wait_url(), await other.wait_url())
        victim = world.work(urls[0], name="victim")
        async with producing(urls[1]) as producer, operating(urls[1]) as operator:
            await operator.request("configure", {"queue": "q", "settings": {"lease_ms": 1000}})
            for number in range(4):
                await producer.enqueue(f"id-{number}", first=60)
            await world.wait_journal(lambda ran: len(ran) == 4)
            world.work(urls[1], name="heir")
            await wait_workers(operator, 1)
            doomed.kill()
            victim.kill()
            await world.wait_journal(lambda ran: sum(row.event == "end" for row in ran) == 4)
            await wait_drained(operator)
            producer.check(world.journal())


async def test_when_the_embedded_store_is_killed_all_resumes_and_nothing_acknowledged_is_lost(world: World) -> None:
    stop = trio.Event()
    with trio.fail_after(90):
        server = world.serve("--data-dir", world.directory / "data")
        url = await server.wait_url()
        world.work(url, name="worker")
        async with producing(url) as producer, operating(url) as operator:
            async with trio.open_nursery() as nursery:
                for lane in range(4):
                    nursery.start_soon(producer.keep_on, f"lane{lane}", stop, 0.002)
                for _ in range(2):
                    done = len(world.journal("end"))
                    await world.wait_journal(lambda ran, done=done: len(ran) > 2 * done + 60)  # type: ignore[misc]
                    os.kill(child_of(server.pid, "valkey"), signal.SIGKILL)
                    before = len(producer.acknowledged)
                    await wait_until(lambda before=before: len(producer.acknowledged) >= before + 20)  # type: ignore[misc]
                stop.set()
            await operator.request("configure", {"queue": "q", "settings": {"lease_ms": 30_000}})
            row = await wait_drained(operator)
            assert row["dead"] == 0
            assert row["enqueued"] == row["done"]
            producer.check(world.journal(), may_repeat=lambda id: True)
            assert server.process.poll() is None


async def test_an_enqueue_is_never_acknowledged_while_the_store_is_away(
    world: World, durable_store: Callable[[], stores.LocalServer]
) -> None:
    store = durable_store()
    with trio.fail_after(60):
        url = await world.serve("--store", store.url).wait_url()
        async with producing(url) as producer, operating(url) as operator:
            assert await producer.enqueue("before")
            store.kill()
            assert not any([await producer.enqueue(f"during-{number}", timeout=0.3) for number in range(3)])
            store.start()
            assert await producer.enqueue("after")
            assert (await counts(operator))["enqueued"] == 2
