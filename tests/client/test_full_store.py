"""A full store, through the SDK and a server, on each kind of store: nothing new is taken, all that is there drains."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
import trio

import fairq
from fairq.errors import StoreFull
from fairq.server.run import Served
from tests.server.clock import StoreClock
from tests.server.harness import OPERATOR, WORKER, Refused, raw, running, tenant, url_of
from tests.store.waiting import wait_until

from .conftest import LIMIT_S
from .harness import worker_of, working


@pytest.fixture
async def served(store_url: str) -> AsyncIterator[Served]:
    """A server on each kind of store."""
    with trio.fail_after(LIMIT_S):
        async with running(store_url) as served:
            yield served


@pytest.fixture
async def ada(served: Served) -> AsyncIterator[fairq.Client]:
    """A tenant's client."""
    async with fairq.open_client(url_of(served), token=tenant("ada")) as client:
        yield client


@contextmanager
def full(client: redis.Redis) -> Iterator[None]:
    """Leave the store no room while the block runs."""
    client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)


async def bury(ada: fairq.Client, served: Served, id: str) -> None:
    """Make a dead letter of ada's."""
    await ada.enqueue("emails", id, id=id)
    async with raw(served, WORKER) as worker:
        await worker.attach("emails", name="undertaker")
        await worker.settle("emails", "reject", *await worker.pushed())


async def test_what_needs_room_is_refused_by_its_code(
    served: Served, ada: fairq.Client, redis_client: redis.Redis
) -> None:
    await bury(ada, served, "dead")
    await ada.enqueue("emails", "old", dedupe_key="k")
    batch = await ada.open_batch("emails")
    async with raw(served, OPERATOR) as operator:
        with full(redis_client):
            for call in (
                lambda: ada.enqueue("emails", 1),
                lambda: ada.enqueue_many("emails", range(600)),
                lambda: ada.enqueue("emails", 1, group="g", name="n"),
                lambda: ada.enqueue("emails", 1, max_attempts=0, expires_after_start=60),
                lambda: ada.enqueue("emails", "new", dedupe_key="k", replace=True),
                lambda: batch.add(1),
                lambda: ada.open_batch("emails"),
                lambda: ada.schedule("emails", "nightly", 1, cron="0 3 * * *"),
                lambda: ada.dead_letters("emails").replay(["dead"]),
            ):
                with pytest.raises(StoreFull):
                    await call()
            for verb, body in (
                ("create_token", {"id": "abcd", "role": "worker", "hash": "0" * 64}),
                ("set_paused", {"queue": "never-seen", "paused": True}),
            ):
                with pytest.raises(Refused) as caught:
                    await operator.ask(verb, **body)
                assert caught.value.code == "store_full"
        row = await served.app.store.queue("emails")
        assert (row.enqueued, row.ready, row.dead) == (2, 1, 1)
        assert [task.payload for task in await ada.peek("emails")] == ["old"]
        assert await served.app.store.queues() == ["emails"]
    assert await ada.dead_letters("emails").replay(["dead"]) == ["ok"]
    await ada.enqueue("emails", 1)
    assert (await served.app.store.queue("emails")).ready == 3


async def test_a_full_store_is_purged(served: Served, ada: fairq.Client, redis_client: redis.Redis) -> None:
    await bury(ada, served, "dead")
    batch = await ada.open_batch("emails", id="b")
    await batch.add_many(range(300))
    await ada.enqueue_many("emails", range(300), group="g")
    async with fairq.open_operator(url_of(served), token=OPERATOR) as op, raw(served, WORKER) as worker:
        await worker.attach("emails", name="mill", credit=1)
        (held,) = await worker.pushed()
        with full(redis_client):
            await op.configure("emails", max_attempts=0)
            assert [task.id for task in (await op.worker_tasks("mill")).tasks] == [held["full_id"]]
            assert await batch.cancel() == "open"
            assert [state.id async for state in ada.batches("emails")] == ["b"]
            async for step in op.purge_queue("emails"):
                assert step.cancelled <= 300
            await worker.settle("emails", "ack", held)
            await op.empty_tenant("emails", "ada")
            row = await served.app.store.queue("emails")
            assert (row.ready, row.pending, row.dead, row.cancelled + row.done) == (0, 0, 0, 600)
            await op.delete_queue("emails", purge=True)
            assert not await op.queue_exists("emails")


async def test_everything_there_is_drains_to_nothing(
    served: Served, ada: fairq.Client, redis_client: redis.Redis
) -> None:
    ran: Counter[Any] = Counter()
    app = worker_of(served, 50)

    @app.task("emails")
    async def send(task: fairq.Task) -> Any:
        ran[task.payload] += 1
        await task.progress(0.5, "half")
        if task.payload == "retry" and task.attempt == 1:
            raise fairq.Retry(delay=0.01)
        if task.payload == "reject":
            raise fairq.Reject("bad address")
        return task.payload

    async def is_drained() -> bool:
        row = await served.app.store.queue("emails")
        return row.ready == row.delayed == row.leased == row.pending == 0

    async with raw(served, OPERATOR) as operator, raw(served, WORKER) as lost:
        await operator.ask("configure", queue="emails", settings={"lease_ms": 1000})
        await ada.enqueue("emails", "lost")
        await lost.attach("emails", name="lost")
        await lost.pushed()  # whose lease runs out; the others' do not, however slow the machine is
        await lost.ask("credit", credit=0)  # its place is free again then
        await operator.ask("configure", queue="emails", settings={"lease_ms": 60_000})
        await ada.enqueue_many("emails", ["plain"] * 100 + ["retry"] * 20 + ["reject"])
        wanted = await ada.enqueue("emails", "result", result_ttl=60)
        capped = await ada.open_batch(
            "emails", max_running=3, on_complete="complete", on_success="success", on_death="x"
        )
        await capped.add_many(["capped"] * 50)
        doomed = await ada.open_batch("emails", on_complete="doomed is over")
        await doomed.add_many(["never"] * 1200, delay=3600)
        await ada.enqueue_many("emails", ["late"] * 200, delay=1.5)
        await ada.enqueue("emails", "expires", delay=3600, expires_in=3601, id="expires")
        await ada.schedule("emails", "pulse", "pulse", every=1)
        with full(redis_client):
            async with working(app):
                assert await ada.cancel("emails", ["expires"]) == ["ok"]
                await capped.close()
                await doomed.cancel()
                assert await wanted.result(timeout=30) == "result"
                assert (await capped.wait(timeout=30)).done == 50
                assert (await doomed.wait(timeout=30)).cancelled == 1200
                await wait_until(is_drained)
                letters = ada.dead_letters("emails")
                (letter,) = [each async for each in letters.walk()]
                assert (letter.payload, letter.error) == ("reject", "bad address")
                assert await letters.purge([letter.id]) == ["ok"]
                ran.pop("pulse", None)  # it may have fired before the store was full
                assert ran == {
                    "plain": 100, "retry": 40, "reject": 1, "result": 1, "capped": 50, "complete": 1, "success": 1,
                    "doomed is over": 1, "late": 200, "lost": 1,
                }  # fmt: skip
        async with working(app):  # there is room again
            await wait_until(lambda: ran["pulse"] > 0)
            assert await (await ada.enqueue("emails", "more", result_ttl=60)).result(timeout=30) == "more"


async def test_a_due_schedule_that_cannot_fire_holds_nothing_up(
    served: Served, ada: fairq.Client, redis_client: redis.Redis, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = StoreClock(monkeypatch, "emails")
    clock.govern(store_url)
    await ada.enqueue_many("emails", range(1000), delay=3)
    await ada.schedule("emails", "pulse", "pulse", every=2)
    with full(redis_client):
        clock.move(clock.now_ms + 5000, served)

        async def are_promoted() -> bool:
            return (await served.app.store.queue("emails")).ready == 1000

        await wait_until(are_promoted)
        assert not await has_fired(ada)
    await wait_until(lambda: has_fired(ada))


async def has_fired(ada: fairq.Client) -> bool:
    """Tell whether the schedule has made a task."""
    return (await ada.read_schedule("emails", "pulse")).last_fired_at_ms > 0


async def test_a_worker_attaches_to_a_server_that_starts_on_a_full_store(
    served: Served, ada: fairq.Client, store_url: str, redis_client: redis.Redis
) -> None:
    task = await ada.enqueue("emails", 7, result_ttl=60)
    with full(redis_client):
        async with running(store_url) as other:
            app = worker_of(other)

            @app.task("emails")
            async def send(task: fairq.Task) -> Any:
                return task.payload

            async with working(app):
                assert await task.result(timeout=30) == 7
