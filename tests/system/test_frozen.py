"""A server is frozen, and comes back: its clients go on at another, and what it does then is harmless."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable

import pytest
import trio

import fairq
import fairq.sync
from tests import stores
from tests.server.harness import tenant

from .harness import World, operating, producing, wait_drained, wait_workers

pytestmark = pytest.mark.deep("kills")

ANSWERED_S = 15.0  # the rule says 6 s, and this machine may be busy; the protocol's time-out is 50 s
AT_ONCE = {"first": 0, "then": 0}


async def test_a_frozen_server_is_left_by_all_and_does_no_harm_when_it_is_back(
    world: World, durable_store: Callable[[], stores.LocalServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = durable_store()
    frozen, ready = threading.Event(), threading.Semaphore(0)
    monkeypatch.setattr("fairq.client.channel.random.sample", lambda targets, _: list(targets))
    with trio.fail_after(120):
        servers = [world.serve("--store", store.url) for _ in range(2)]
        by_url = {await server.wait_url(): server for server in servers}
        worker = world.work(*by_url, name="worker")
        first = (await worker.wait_printed(r"connected +url=(ws://[0-9.:]+)")).group(1)
        second = next(url for url in by_url if url != first)
        urls = [first, second]

        def in_threads() -> None:
            with fairq.sync.open_client(urls, token=tenant("ada")) as client:
                client.enqueue("q", AT_ONCE, id="sync-0")
                ready.release()
                frozen.wait()
                client.enqueue("q", AT_ONCE, id="sync-1", timeout=ANSWERED_S)

        async def in_asyncio() -> None:
            async with fairq.open_client(urls, token=tenant("ada")) as client:
                await client.enqueue("q", AT_ONCE, id="asyncio-0")
                ready.release()
                await asyncio.to_thread(frozen.wait)
                await client.enqueue("q", AT_ONCE, id="asyncio-1", timeout=ANSWERED_S)

        def as_new() -> None:
            ready.release()
            frozen.wait()
            with fairq.sync.open_client(urls, token=tenant("ada")) as client:
                client.enqueue("q", AT_ONCE, id="new-0", timeout=ANSWERED_S / 2)

        async with producing(*urls) as producer, operating(second) as operator:
            assert await producer.enqueue("long", first="done")
            await world.wait_journal(lambda ran: any(row.id == "long" for row in ran))
            async with trio.open_nursery() as nursery:
                for job in (in_threads, lambda: asyncio.run(in_asyncio()), as_new):
                    nursery.start_soon(trio.to_thread.run_sync, job)
                try:
                    for _ in range(3):
                        await trio.to_thread.run_sync(ready.acquire)
                    # One that the frozen server has claimed, and has not pushed, would wait for its lease to end.
                    await world.wait_journal(lambda ran: sum(row.event == "end" for row in ran) == 2)
                    by_url[first].send(signal.SIGSTOP)
                finally:
                    frozen.set()
                assert await producer.enqueue("trio-1", timeout=ANSWERED_S)
            ids = {"sync-0", "sync-1", "asyncio-0", "asyncio-1", "new-0"}
            producer.attempted |= ids
            producer.acknowledged |= ids
            await wait_workers(operator, 1)
            await world.wait_journal(lambda ran: {*ids, "trio-1"} <= {row.id for row in ran if row.event == "end"})
            by_url[first].send(signal.SIGCONT)
            async with operating(first) as thawed:
                await thawed.request("queues")
                assert await producer.enqueue("after")
                world.touch("done")
                row = await wait_drained(operator)
                await wait_drained(thawed)
            producer.check(world.journal())
            assert {row.attempt for row in world.journal("end")} == {1}
            assert row["done"] == row["enqueued"] == len(producer.acknowledged)
