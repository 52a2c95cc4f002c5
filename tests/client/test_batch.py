"""Batches through the SDK: tasks are added while others run, a limit holds, and the end comes once and is heard of."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

import fairq
from fairq.errors import BadRequest, NotFound, NotYet
from fairq.model.batches import BatchState
from fairq.model.dead_letters import Sweep
from fairq.model.tasks import NewTask, Settlement
from fairq.server.run import Served
from fairq.store.keys import queue_prefix
from tests.server.harness import OPERATOR, WORKER, raw, running, tenant, url_of
from tests.store.waiting import wait_until

from .harness import through_proxy, waiting_at, worker_of, working


class Mill:
    """A worker that notes what it runs; handlers wait for `gate` (open at first)."""

    def __init__(self, served: Served, concurrency: int = 20) -> None:
        self.app = worker_of(served, concurrency)
        self.gate = trio.Event()
        self.gate.set()
        self.ran: list[Any] = []
        self.running = 0
        self.app.task("emails")(self.work)

    def has_run(self, count: int) -> bool:
        """Tell whether so many have come to their end."""
        return len(self.ran) >= count

    async def work(self, task: fairq.Task) -> None:
        """Run a task."""
        self.running += 1
        await self.gate.wait()
        await trio.lowlevel.checkpoint()
        self.ran.append(task.payload)
        self.running -= 1


def counts(state: BatchState) -> tuple[int, int, int, int, int, int]:
    """A batch's counts: total, waiting, running, done, dead, cancelled."""
    return state.total, state.waiting, state.running, state.done, state.dead, state.cancelled


async def test_no_more_run_at_once_than_the_limit(served: Served, ada: fairq.Client) -> None:
    mill, other = Mill(served, 20), Mill(served, 20)
    other.app.name, mill.gate = "worker-2", trio.Event()
    other.gate = mill.gate
    async with working(mill.app), working(other.app):
        batch = await ada.open_batch("emails", max_running=3)
        await batch.add_many(range(60))
        await wait_until(lambda: mill.running + other.running == 3)
        await ada.enqueue("emails", "not of the batch")
        await wait_until(lambda: mill.running + other.running == 4)
        assert counts(await batch.state()) == (60, 57, 3, 0, 0, 0)
        highest = 0

        async def watch() -> None:
            nonlocal highest
            while True:
                highest = max(highest, mill.running + other.running)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            mill.gate.set()
            await batch.close()
            assert (await batch.wait(timeout=30)).done == 60
            nursery.cancel_scope.cancel()
    assert highest == 4  # three, and the one that is not of the batch
    assert len(mill.ran) + len(other.ran) == 61


async def test_watching_ends_at_its_timeout(ada: fairq.Client) -> None:
    batch = await ada.open_batch("emails")
    seen = list[str]()

    async def watch() -> None:
        async for state in batch.watch(every=3600, timeout=0.05):
            seen.append(state.state)

    with pytest.raises(NotYet):
        await watch()
    assert seen in (["open", "open"], ["open"])  # one: the first answer came late
    with pytest.raises(NotFound):
        await anext(ada.batch("emails", "nobody").watch())


async def test_batches_are_listed_and_read_by_their_ids(served: Served, ada: fairq.Client) -> None:
    async with (
        fairq.open_client(url_of(served), token=tenant("bob")) as bob,
        fairq.open_operator(url_of(served), token=OPERATOR) as seer,
    ):
        await bob.open_batch("emails", id="bobs")
        for n in range(505):
            await ada.open_batch("emails", id=f"b{n}")
        await ada.batch("emails", "b7").close()
        mine = [state async for state in ada.batches("emails")]
        assert {state.id for state in mine} == {f"b{n}" for n in range(505)}
        assert [state.id async for state in ada.batches("emails", state="complete")] == ["b7"]
        assert len([1 async for _ in seer.batches("emails")]) == 506
        theirs = [(s.id, s.tenant) async for s in seer.batches("emails", tenant="bob")]
        assert theirs == [("bob/bobs", "bob")]
        found = await ada.read_batches("emails", ["b7", "bobs", "b1"])
        assert {id: state.state for id, state in found.items()} == {"b7": "complete", "b1": "open"}
        assert len(await ada.read_batches("emails", [f"b{n}" for n in range(600)])) == 505
        seen = await seer.read_batches("emails", ["bob/bobs", "ada/b7"])
        assert seen.keys() == {"bob/bobs", "ada/b7"}
        assert (await seer.batch("emails", "ada/b7").state()).state == "complete"
        with pytest.raises(BadRequest):
            seer.batch("emails", "ada/b/7")


async def test_each_task_may_have_options_of_its_own(ada: fairq.Client) -> None:
    batch = await ada.open_batch("emails", id="b")
    tasks = [NewTask("t1", b"1", priority=9), NewTask("t2", b"2"), NewTask("t3", b"3", batch=batch.id, priority=1)]
    assert [task.is_duplicate for task in await ada.enqueue_tasks("emails", tasks)] == [False] * 3
    assert [task.is_duplicate for task in await ada.enqueue_tasks("emails", tasks)] == [True] * 3
    assert [waiting.id for waiting in await ada.peek("emails")] == ["t3", "t1", "t2"]
    assert (await batch.state()).total == 1


@asynccontextmanager
async def waited_for(client: fairq.Client, served: Served) -> AsyncIterator[None]:
    """A batch of one task that a client waits for; the block ends the task, and the client hears of it."""

    async def wait() -> None:
        assert (await batch.wait()).done == 1

    batch = await client.open_batch("emails")
    await batch.add(1)
    await batch.close()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_until(lambda: waiting_at(served) == 1)
        yield


async def end_task(served: Served) -> None:
    """Take the task, and finish it."""
    async with raw(served, WORKER) as worker:
        await worker.attach("emails")
        (pushed,) = await worker.pushed()
        assert await worker.settle("emails", "ack", pushed) == ["ok"]


@pytest.mark.usefixtures("no_polls")
async def test_a_batch_that_ends_at_another_server_is_announced(
    served: Served, server_store: str, ada: fairq.Client
) -> None:
    async with running(server_store) as other, waited_for(ada, served):
        await end_task(other)


@pytest.mark.usefixtures("no_polls")
async def test_a_batch_whose_end_is_sent_into_a_connection_that_breaks_is_asked_for_again(served: Served) -> None:
    async with through_proxy(served) as (proxy, client), waited_for(client, served):
        proxy.hold()
        await end_task(served)
        await wait_until(lambda: waiting_at(served) == 0)
        proxy.cut()
        proxy.release()


async def test_a_dead_task_that_is_replayed_counts_at_each_server(
    served: Served, server_store: str, ada: fairq.Client
) -> None:
    batch = await ada.open_batch("emails", on_success="all")
    await batch.add(1, max_attempts=1, id="a")
    await batch.close()
    async with raw(served, WORKER) as worker:
        await worker.attach("emails")
        (pushed,) = await worker.pushed()
        assert await worker.settle("emails", "reject", pushed) == ["ok"]
    assert (await batch.wait()).dead == 1
    letters = ada.dead_letters("emails")
    async with running(server_store) as other:
        assert await letters.replay(["a"]) == ["ok"]
        assert counts(await batch.state()) == (1, 1, 0, 0, 0, 0)
        await end_task(other)
        assert counts(await batch.wait()) == (1, 0, 0, 1, 0, 0)
        async with raw(other, WORKER) as worker:
            await worker.attach("emails")
            (pushed,) = await worker.pushed()
            assert pushed["payload"] == "all"


async def test_a_replay_says_that_its_batch_is_gone(served: Served, ada: fairq.Client) -> None:
    batch = await ada.open_batch("emails")
    await batch.add_many([1, 2], ids=["a", "b"])
    await batch.close()
    store = served.app.store
    for lease in (await store.claim("emails", "w", 2)).leases:
        await store.settle("emails", [Settlement("reject", lease.id, lease.lease)])
    await store.connection.call("DEL", queue_prefix("emails") + ":batches")
    letters = ada.dead_letters("emails")
    assert await letters.replay(["a", "c"]) == ["batch_gone", "gone"]
    assert [sweep async for sweep in letters.replay_all()][-1] == Sweep(1, 0, 0, batch_gone=1)
