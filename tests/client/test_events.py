"""The feed through the SDK: it goes on for ever, across everything that breaks, and tells each event once."""

from __future__ import annotations

import trio

import fairq
from fairq.model.events import Event
from fairq.server.run import Served
from tests.server.harness import tenant, url_of
from tests.store.proxy import open_proxy
from tests.store.waiting import wait_until

from .harness import worker_of, working


def mill(served: Served) -> fairq.Worker:
    app = worker_of(served)

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        if task.payload == "reject":
            raise fairq.Reject("bad address")
        if task.payload == "retry" and task.attempt == 1:
            raise fairq.Retry("not now", delay=0)

    return app


async def follow(client: fairq.Client, seen: list[Event], after: int = 0) -> None:
    """Note events, for ever."""
    async for event in client.events("emails", after):
        seen.append(event)


async def first(client: fairq.Client, count: int, after: int = 0) -> list[Event]:
    seen: list[Event] = []
    async for event in client.events("emails", after):
        seen.append(event)
        if len(seen) == count:
            return seen
    raise AssertionError


async def test_a_complete_batch_tells_how_its_tasks_ended_also_later(served: Served, ada: fairq.Client) -> None:
    batch = await ada.open_batch("emails", id="b", events=True)
    await batch.add("short", expires_in=0.001)
    tasks = await batch.add_many(["a", "b", "c", "reject", "later"], max_attempts=1)
    assert await tasks[-1].cancel() == "ok"
    await batch.close()
    async with working(mill(served)):
        (event,) = await first(ada, 1)
    assert (event.done, event.dead, event.cancelled, event.expired) == (3, 2, 1, 1)
    state = await batch.state()
    assert (state.done, state.dead, state.cancelled, state.expired, state.ended) == (3, 2, 1, 1, 6)
    async with fairq.open_client(url_of(served), token=tenant("ada")) as later:
        assert await first(later, 1) == [event]


async def test_following_goes_on_over_a_connection_that_breaks_and_tells_each_event_once(served: Served) -> None:
    seen: list[Event] = []
    async with (
        open_proxy(served.port) as proxy,
        fairq.open_client(f"ws://127.0.0.1:{proxy.port}", token=tenant("ada")) as client,
        fairq.open_client(url_of(served), token=tenant("ada")) as other,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(follow, client, seen)
        async with working(mill(served)):
            await other.enqueue("emails", 1, events=True)
            await wait_until(lambda: len(seen) == 1)
            proxy.hold()  # events from now on go into a connection that breaks
            await other.enqueue_many("emails", range(5), events=True)
            await wait_until(lambda: reads_to(other, 6))
            proxy.cut()
            proxy.release()
            await other.enqueue("emails", 2, events=True)
            await wait_until(lambda: len(seen) >= 7)
        nursery.cancel_scope.cancel()
    assert [event.id for event in seen] == [1, 2, 3, 4, 5, 6, 7]


async def reads_to(client: fairq.Client, newest: int) -> bool:
    """True if so many events have come."""
    return (await client.read_events("emails", count=1)).newest == newest
