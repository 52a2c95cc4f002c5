"""The verbs `cancel_all` and `drop_tenant`, and the forgetting of tenants, through a server."""

from __future__ import annotations

from typing import Any

import pytest
import trio

import fairq
from fairq.model.tasks import NewTask
from fairq.server.run import Served
from tests.server.harness import OPERATOR, noted_calls, raw, tenant, url_of
from tests.store.waiting import wait_until


async def enqueue(served: Served, name: str, count: int, **options: object) -> None:
    """Give a tenant tasks of queue q."""
    store = served.app.store
    for first in range(0, count, 500):
        some = [NewTask(f"{name}/{n}", b"1", **options) for n in range(first, min(first + 500, count))]  # type: ignore[arg-type]
        assert set(await store.enqueue("q", name, some)) == {"ok"}


@pytest.mark.parametrize("options", [{}, {"group": "g"}, {"batch": "b"}], ids=["plain", "of a group", "of a batch"])
async def test_tasks_that_come_while_a_purge_is_under_way_stay(served: Served, options: dict[str, str]) -> None:
    async with fairq.open_client(url_of(served), token=tenant("ada")) as ada:
        batch = await ada.open_batch("q", id="b")
        await ada.enqueue_many("q", range(600), **options)  # type: ignore[arg-type]
        steps = [step async for step in ada.cancelling_all("q", dry_run=True)]
        assert (steps[-1].found, steps[-1].cancelled, steps[-1].waiting) == (600, 0, 600)
        new: list[fairq.EnqueuedTask] = []
        async with trio.open_nursery() as nursery:

            async def go_on() -> None:
                while True:
                    new.append(await ada.enqueue("q", 2, **options))  # type: ignore[arg-type]

            nursery.start_soon(go_on)
            cancelled = await ada.cancel_all("q")
            nursery.cancel_scope.cancel()
        (row,) = await served.app.store.tenants("q", ["ada"])
        assert cancelled >= 600
        assert cancelled + row.ready >= 600 + len(new)
        assert await ada.cancel_all("q") == row.ready
        assert await ada.cancel_all("q") == 0
        await batch.close()
        assert (await batch.state()).cancelled == (cancelled + row.ready if "batch" in options else 0)


async def test_a_request_whose_time_is_over_says_where_the_next_goes_on(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairq.server.engine.verbs.cancel_all._WORK_S", 0.0)
    await enqueue(served, "ada", 1_200)
    async with raw(served, tenant("ada")) as ada:
        replies = [await ada.ask("cancel_all", queue="q", dry_run=True)]
        while (cursor := replies[-1]["cursor"]) and len(replies) < 100:
            replies.append(await ada.ask("cancel_all", queue="q", dry_run=True, cursor=cursor))
    assert len(replies) > 1
    assert sum(reply["found"] for reply in replies) == 1_200


async def test_a_tenant_that_gets_tasks_while_it_is_emptied_is_not_deleted_with_them(served: Served) -> None:
    await enqueue(served, "ada", 600, group="g")
    async with (
        fairq.open_client(url_of(served), token=tenant("ada")) as ada,
        fairq.open_operator(url_of(served), token=OPERATOR) as op,
        trio.open_nursery() as nursery,
    ):
        new: list[fairq.EnqueuedTask] = []

        async def go_on() -> None:
            while True:
                new.append(await ada.enqueue("q", 2, group="g"))

        nursery.start_soon(go_on)
        await op.empty_tenant("q", "ada")
        count = len(new)
        await wait_until(lambda: len(new) > count)
        with pytest.raises(fairq.NotEmpty, match="ready"):
            await op.delete_tenant("q", "ada")
        nursery.cancel_scope.cancel()
    async with fairq.open_operator(url_of(served), token=OPERATOR) as op:
        row = await served.app.store.queue("q")
        assert row.enqueued == row.ready + row.cancelled
        await op.empty_tenant("q", "ada")
        await op.delete_tenant("q", "ada")
        assert await op.tenants("q") == []


async def test_a_tenant_that_is_emptied_has_no_open_batch_which_would_be_kept_for_ever(served: Served) -> None:
    async with (
        fairq.open_client(url_of(served), token=tenant("ada")) as ada,
        fairq.open_operator(url_of(served), token=OPERATOR) as op,
    ):
        batches = [await ada.open_batch("q", id=id, max_running=1, on_complete=1) for id in ("empty", "filled")]
        await batches[1].add_many([1, 2])
        await op.empty_tenant("q", "ada")
        assert {(await batch.state()).state for batch in batches} == {"complete"}
        await op.empty_tenant("q", "ada")  # a callback that came at the end of the first time
        with pytest.raises(fairq.NotEmpty, match=r"bytes of batches \(kept until a day after they are complete\)$"):
            await op.delete_tenant("q", "ada")


async def test_many_purges_are_no_more_work_for_the_store_than_one(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancels = noted_calls(monkeypatch, "cancel_waiting")
    for name in ("ada", "bob"):
        await enqueue(served, name, 100)
    async with (
        fairq.open_client(url_of(served), token=tenant("ada")) as ada,
        fairq.open_client(url_of(served), token=tenant("bob")) as bob,
        trio.open_nursery() as nursery,
    ):
        for client in [ada, bob] * 4:
            nursery.start_soon(client.cancel_all, "q")
    assert cancels.most == 1
    assert (await served.app.store.queue("q")).ready == 0


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
