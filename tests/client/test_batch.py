"""Batches through the SDK: tasks are added while others run, a limit holds, and the end comes once and is heard of."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

import fairq
from fairq.errors import BadRequest, BatchClosed, NotFound, NotYet, TooLarge
from fairq.model.batches import BatchState
from fairq.model.tasks import NewTask
from fairq.server.run import Served
from tests.server.harness import OPERATOR, Raw, running, tenant, url_of
from tests.store.cases import case
from tests.store.waiting import wait_until

from .harness import worker_of, working


class Mill:
    """A worker that notes what it runs; handlers wait for `gate` (open at first), and do what their payload says."""

    def __init__(self, served: Served, concurrency: int = 20) -> None:
        self.app = worker_of(served, concurrency)
        self.gate = trio.Event()
        self.gate.set()
        self.ran: list[Any] = []
        self.running = self.most = self.cancelled = 0
        self.app.task("emails")(self.work)

    def has_run(self, count: int) -> bool:
        """Tell whether so many have come to their end."""
        return len(self.ran) >= count

    async def work(self, task: fairq.Task) -> Any:
        """Run a task."""
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.gate.wait()
            await trio.lowlevel.checkpoint()
            self.ran.append(task.payload)
            if task.payload == "reject":
                raise fairq.Reject("bad address")
            return task.payload
        except trio.Cancelled:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1


async def waited_for(served: Served, count: int = 1) -> None:
    """Wait until the server has so many requests that wait for a batch of the queue."""
    polls = served.app.queues.long_polls
    await wait_until(lambda: "emails" in polls and len(polls["emails"]._watches) == count)


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


@pytest.mark.usefixtures("no_polls")
async def test_the_end_is_heard_at_another_server(server_store: str) -> None:
    with trio.fail_after(30):
        async with (
            running(server_store) as one,
            running(server_store) as two,
            fairq.open_client(url_of(one), token=tenant("ada")) as client,
        ):
            mill = Mill(two)
            batch = await client.open_batch("emails")
            await batch.add("one")
            await batch.close()
            async with trio.open_nursery() as nursery:

                async def wait() -> None:
                    assert (await batch.wait(timeout=60)).done == 1
                    nursery.cancel_scope.cancel()

                nursery.start_soon(wait)
                await waited_for(one)
                nursery.start_soon(mill.app.run)


async def test_cancelling_a_batch_cancels_its_handlers_and_what_waits(
    served: Served, ada: fairq.Client, operator: Raw
) -> None:
    """Handlers are told, and do not find out when leases are renewed."""
    mill = Mill(served, 5)
    mill.gate = trio.Event()
    await operator.ask("configure", queue="emails", settings={"lease_ms": 3_600_000})
    async with working(mill.app):
        batch = await ada.open_batch("emails", on_success="never", on_complete="after")
        await batch.add_many(range(1_200))
        await batch.add_many(range(10), delay=3600)
        await wait_until(lambda: mill.running == 5)
        await batch.cancel()
        state = await batch.wait(timeout=30)  # more than one call of the store can cancel
        assert mill.cancelled >= 5  # some were leased between two of those calls
        mill.gate.set()
        await wait_until(lambda: mill.ran == ["after"])
    assert (state.state, counts(state)) == ("complete", (1_210, 0, 0, 0, 0, 1_210))


async def test_a_closed_batch_takes_no_more_and_spoils_nobody_elses_frame(served: Served, ada: fairq.Client) -> None:
    batch = await ada.open_batch("emails")
    first = await batch.add(1, id="first")
    await batch.close()
    await batch.close()
    refused: list[str] = []

    async def add() -> None:
        with pytest.raises(BatchClosed) as caught:
            await batch.add("too late")
        refused.append(caught.value.code)

    taken: list[fairq.EnqueuedTask] = []

    async def enqueue(number: int) -> None:
        taken.append(await ada.enqueue("emails", number))

    async with trio.open_nursery() as nursery:  # all in one frame
        for number in range(10):
            nursery.start_soon(enqueue, number)
        nursery.start_soon(add)
    assert (refused, len(taken)) == (["batch_closed"], 10)
    with pytest.raises(BatchClosed):
        await batch.add_many(range(600))
    assert (await batch.add(1, id="first")).is_duplicate  # a call that is repeated
    assert (await first.state()).state == "ready"
    assert (await batch.state()).total == 1
    assert (await served.app.store.queue("emails")).ready == 11


async def test_a_batch_is_its_tenants(served: Served, ada: fairq.Client) -> None:
    mine = await ada.open_batch("emails", id="report-1")
    async with fairq.open_client(url_of(served), token=tenant("bob")) as bob:
        theirs = bob.batch("emails", "report-1")
        for ask in (theirs.state, theirs.close, theirs.cancel, theirs.wait, lambda: theirs.add(1)):
            with pytest.raises(NotFound):
                await ask()
        await bob.open_batch("emails", id="report-1")  # bob's own batch of that name
        await theirs.close()
        assert (await theirs.wait(timeout=30)).state == "complete"
    assert (await mine.state()).state == "open"


async def test_a_batch_that_cannot_be_is_refused(ada: fairq.Client) -> None:
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"queue": "Emails"}, BadRequest, "queue"),
        ({"id": "a/b"}, BadRequest, "id"),
        ({"id": "x" * 41}, BadRequest, "id"),
        ({"max_running": -1}, BadRequest, "max_running"),
        ({"max_running": 1.5}, BadRequest, "max_running"),
        ({"max_running": 1_000_001}, BadRequest, "max_running"),
        ({"on_complete": object()}, BadRequest, "payload"),
        ({"on_success": "x" * 65_535}, TooLarge, "on_success"),
        ({"on_death": "x" * (1 << 20)}, TooLarge, "payload"),
    ]
    for options, error, field in cases:
        with case(options, error, field):
            with pytest.raises(error) as caught:
                await ada.open_batch(**{"queue": "emails", **options})
            assert caught.value.field == field  # type: ignore[attr-defined]


async def test_watching_ends_at_its_timeout(ada: fairq.Client) -> None:
    batch = await ada.open_batch("emails")
    states = batch.watch(every=10, timeout=0.05)
    assert [(await anext(states)).state for _ in range(2)] == ["open", "open"]
    with pytest.raises(NotYet):
        await anext(states)
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
