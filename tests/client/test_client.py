"""The SDK for those who enqueue: what is acknowledged is there, once, whatever happens to connections."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
import trio.testing

import fairq
from fairq.errors import BadRequest, FairqError
from fairq.server.run import Served
from tests import stores
from tests.server.clock import StoreClock
from tests.server.harness import WORKER, raw, running, tenant, url_of
from tests.store.cases import raises_for

from .harness import wait_state


@asynccontextmanager
async def opened(served: Served | str, name: str = "ada") -> AsyncIterator[fairq.Client]:
    url = served if isinstance(served, str) else url_of(served)
    async with fairq.open_client(url, token=tenant(name)) as client:
        yield client


async def test_an_expiry_may_count_from_the_start(
    served: Served, server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = StoreClock(monkeypatch, "q2")
    clock.govern(server_store)
    began = clock.now_ms
    async with opened(served) as client, raw(served, WORKER) as worker:
        for window in ({"delay": 5.0, "expires_in": 3.0}, {"start_at": began / 1000 + 5, "expires_in": 3.0}):
            with pytest.raises(BadRequest, match="expires_after_start counts from the start"):
                await client.enqueue("q2", 0, **window)  # type: ignore[arg-type]
        first, late, moved = await client.enqueue_many("q2", [1, 2, 3], delay=5, expires_after_start=3)
        assert await client.reschedule("q2", [moved.id], delay=60) == ["ok"]
        clock.move(began + 7_999, served)
        await worker.attach("q2")
        (task,) = await worker.pushed()
        assert (task["start_at_ms"] - began, task["expires_at_ms"] - began) == (5_000, 8_000)
        clock.move(began + 8_000, served)
        await worker.settle("q2", "ack", task)
        assert (await wait_state(late, "dead")).reason == "expired"
        assert (await first.state()).state == "done"
        clock.move(began + 62_999, served)
        (task,) = await worker.pushed()
        assert (task["id"], task["expires_at_ms"] - began) == (moved.id, 63_000)


async def test_a_task_whose_window_is_over_is_refused(served: Served) -> None:
    async with opened(served) as client:
        with raises_for("expires_at"):
            await client.enqueue("emails", 1, expires_at=time.time() - 60)


async def test_clients_begin_at_any_of_several_servers(served: Served, server_store: str) -> None:
    async with running(server_store) as other, AsyncExitStack() as stack:
        for _ in range(20):  # at one of the two in all of 20: once in 2 ** 19 runs
            urls = [url_of(served), url_of(other)]
            client = await stack.enter_async_context(fairq.open_client(urls, token=tenant("ada")))
            await client.enqueue("emails", 1)
        assert served.app.connections
        assert other.app.connections


async def test_white_space_around_a_token_is_stripped(served: Served) -> None:
    async with fairq.open_client(url_of(served), token=f" {tenant('ada')}\n") as client:
        await client.enqueue("emails", 1)


async def test_leaving_the_block_fails_what_still_waits(served: Served) -> None:
    errors: list[str] = []
    async with trio.open_nursery() as nursery, opened(f"ws://127.0.0.1:{stores.free_port()}") as client:

        async def call() -> None:
            try:
                await client.enqueue("emails", 1)
            except FairqError as error:
                errors.append(error.code)

        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert errors == ["closed"]
