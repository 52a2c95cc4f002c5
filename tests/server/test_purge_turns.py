"""How requests that cancel or search all waiting tasks share the store: tenants take turns, however many requests."""

from __future__ import annotations

from typing import Any

import pytest
import trio

import fairq
from fairq.model.tasks import NewTask
from fairq.server.run import Served
from tests.server.harness import tenant, url_of


async def test_a_tenant_with_many_searches_has_one_turn_of_two(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    store, calls, has_begun = served.app.store, list[str](), trio.Event()
    search, cancel = store.waiting_tasks, store.cancel_waiting

    async def note_search(_: Any, queue: str, name: str, *more: Any) -> Any:
        calls.append(name)
        has_begun.set()
        return await search(queue, name, *more)

    async def note_cancel(_: Any, queue: str, ids: list[str]) -> Any:
        calls.append(ids[0].partition("/")[0])
        return await cancel(queue, ids)

    monkeypatch.setattr(type(store), "waiting_tasks", note_search)
    monkeypatch.setattr(type(store), "cancel_waiting", note_cancel)
    for name in ("noisy", "quiet"):
        await store.enqueue("q", name, [NewTask(f"{name}/{n}", b"1") for n in range(64)])
    async with (
        fairq.open_client(url_of(served), token=tenant("noisy")) as noisy,
        fairq.open_client(url_of(served), token=tenant("quiet")) as quiet,
        trio.open_nursery() as nursery,
    ):

        async def search_on() -> None:
            while True:
                async for _ in noisy.cancelling_all("q", dry_run=True):
                    pass

        for _ in range(20):
            nursery.start_soon(search_on)
        await has_begun.wait()
        assert await quiet.cancel_all("q") == 64
        nursery.cancel_scope.cancel()
    first = calls.index("quiet")
    last = len(calls) - 1 - calls[::-1].index("quiet")
    beside = calls[first : last + 1].count("noisy")
    assert beside <= calls.count("quiet") + 1, f"{beside} calls of the other between {calls.count('quiet')}"
