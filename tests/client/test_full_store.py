"""A full store, through the SDK and a server, on each kind of store: nothing new is taken, all that is there drains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

import fairq
from fairq.server.run import Served
from tests.server.clock import StoreClock
from tests.server.harness import OPERATOR, WORKER, raw
from tests.store.waiting import wait_until

from .harness import worker_of, working


@pytest.fixture
def server_store(store_url: str) -> str:
    return store_url


@contextmanager
def full(client: redis.Redis) -> Iterator[None]:
    """Leave the store no room while the block runs."""
    client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)


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
        await lost.pushed()  # its lease runs out; the others' do not, however slow the machine is
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
