"""What a worker sees of tasks whose next lost lease would be their last: they come one by one, and alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from fairq.server.run import Served
from fairq.store.partitions import place_in
from tests.store.waiting import wait_until

from .clock import StoreClock
from .harness import OPERATOR, WORKER, Raw, lease_of, raw, running, tenant
from .test_reconnect import LONG, end_grace

SHORT_MS = 300


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker without room hears soon that no claim of its can leave."""
    monkeypatch.setattr("fairq.server.engine.dispatch.dispatcher._EMPTY_S", 0.1)


@pytest.fixture
def standing_clock(store_clock: StoreClock, monkeypatch: pytest.MonkeyPatch) -> StoreClock:
    """A store's clock by which short leases last: the test moves it. Workers neither lose them nor are silent."""
    for limit in "dispatch.worker_account.OVER_S", "net.silent_workers.SILENT_S":
        monkeypatch.setattr(f"fairq.server.engine.{limit}", 3600.0)
    return store_clock


async def lose(served: Served, count: int, waiting: int = 0) -> None:
    """Have a worker take so many tasks, while others wait for it, and die."""
    async with raw(served, WORKER) as worker:
        await worker.attach("q", credit=count + waiting)
        await worker.pushed(count)
        await is_in_line(served, waiting)
    await wait_until(lambda: bool(served.app.leases.kept))
    await end_grace(served)


async def states_and_losses(served: Served, *ids: str) -> list[tuple[str, int]]:
    """Read states and lost leases of ada's tasks."""
    found = await served.app.store.tasks("q", [f"ada/{id}" for id in ids])
    return [(state.state, state.lost_leases) for state in found]


@asynccontextmanager
async def suspected(store: str, *ids: str, **settings: int) -> AsyncIterator[tuple[Served, Raw]]:
    """A server whose tasks have lost so many leases that they run alone next time."""
    async with running(store, reconnect_grace=LONG) as served, raw(served, tenant("ada")) as ada:
        async with raw(served, OPERATOR) as operator:
            await operator.ask("configure", queue="q", settings={"max_lost_leases": 2, **settings})
        await ada.enqueue("q", ids)
        await lose(served, len(ids))
        assert await states_and_losses(served, *ids) == [("ready", 1)] * len(ids)
        yield served, ada


async def is_in_line(served: Served, count: int) -> None:
    await wait_until(lambda: sum(len(each.account.line.waiting) for each in served.app.connections) == count)


async def test_they_come_one_by_one_and_nothing_beside_them(server_store: str) -> None:
    async with suspected(server_store, "a", "b") as (served, ada), raw(served, WORKER) as worker:
        await worker.attach("q", credit=5)
        for id in ("a", "b"):
            (task,) = await worker.pushed()
            assert task["id"] == id
            await ada.enqueue("q", [f"beside-{id}"])
            assert not (await worker.ask("idle"))["is_idle"]
            assert not worker.pushes
            await worker.settle("q", "ack", task)
        assert {task["id"] for task in await worker.pushed(2)} == {"beside-a", "beside-b"}


async def take_beside(served: Served, worker: Raw) -> dict[str, Any]:
    """Have a worker hold a task of bob's, and ada's wait for it."""
    async with raw(served, OPERATOR) as operator:
        await operator.ask("set_paused", queue="q", tenant="ada", paused=True)
        async with raw(served, tenant("bob")) as bob:
            await bob.enqueue("q", ["slow"])
        await worker.attach("q", credit=5)
        (slow,) = await worker.pushed()
        await operator.ask("set_paused", queue="q", tenant="ada", paused=False)
    await is_in_line(served, 1)
    return slow


async def test_a_worker_has_room_again_when_none_waits_for_it_any_more(server_store: str) -> None:
    async with suspected(server_store, "a") as (served, ada), raw(served, WORKER) as worker:
        await take_beside(served, worker)
        assert not (await worker.ask("idle"))["is_idle"]  # a claim finds no room
        assert (await ada.ask("cancel", queue="q", ids=["a"]))["outcomes"] == ["running"]
        await is_in_line(served, 0)
        await ada.enqueue("q", ["b"])
        with trio.fail_after(10):  # much later it would be found anyhow
            assert [task["id"] for task in await worker.pushed()] == ["b"]


async def test_one_waits_until_its_worker_holds_nothing(server_store: str) -> None:
    async with suspected(server_store, "a") as (served, _), raw(served, WORKER) as worker:
        slow = await take_beside(served, worker)
        assert not (await worker.ask("idle"))["is_idle"]
        assert not worker.pushes
        await worker.settle("q", "ack", slow)
        assert [task["id"] for task in await worker.pushed()] == ["a"]


async def test_one_of_a_partition_is_charged_to_that(server_store: str) -> None:
    async with suspected(server_store, "a", partitions=2) as (served, _), raw(served, WORKER) as worker:
        await worker.attach("q", credit=5)
        assert [task["id"] for task in await worker.pushed()] == ["a"]
        (holder,) = (each for each in served.app.connections if each.account.held)
        place = place_in(await served.app.store.registry.places("q"), "ada")
        assert [each.place for each in holder.account.terms.values()] == [place]
        assert {of: each.running for of, each in served.app.queues.accounts._queues.items() if each.running} == {
            place: 1
        }


async def test_it_alone_is_dead_when_the_process_dies_again(server_store: str) -> None:
    async with suspected(server_store, "a", "b") as (served, _):
        await lose(served, 1, waiting=1)
        assert sorted(await states_and_losses(served, "a", "b")) == [("dead", 2), ("ready", 1)]
        (dead,) = (await served.app.store.dead("q")).letters
        assert (dead.reason, dead.lost_leases) == ("lease_lost", 2)


async def test_it_is_alone_also_after_its_worker_has_reconnected(server_store: str) -> None:
    async with suspected(server_store, "a") as (served, ada):
        async with raw(served, WORKER) as worker:
            await worker.attach("q", credit=5)
            (task,) = await worker.pushed()
        await wait_until(lambda: bool(served.app.leases.kept))
        async with raw(served, WORKER) as again:
            assert await again.attach("q", credit=5, leases=[lease_of(task)]) == ["ok"]
            await ada.enqueue("q", ["b"])
            assert not (await again.ask("idle"))["is_idle"]
            assert not again.pushes
            await again.settle("q", "ack", task)
            assert [each["id"] for each in await again.pushed()] == ["b"]


async def test_a_lost_lease_beside_others_is_never_the_last(server_store: str) -> None:
    """Also where the limit was lowered meanwhile."""
    async with suspected(server_store, "a", "b", max_lost_leases=3) as (served, _):
        async with raw(served, OPERATOR) as operator, raw(served, WORKER) as worker:
            await worker.attach("q", credit=2)
            await worker.pushed(2)
            await operator.ask("configure", queue="q", settings={"max_lost_leases": 2})
        await wait_until(lambda: bool(served.app.leases.kept))
        await end_grace(served)
        assert [lost for _, lost in await states_and_losses(served, "a", "b")] == [1, 1]


async def cancel(served: Served, ada: Raw, worker: Raw) -> None:
    assert (await ada.ask("cancel", queue="q", ids=["b"]))["outcomes"] == ["running"]


async def offer_nothing(served: Served, ada: Raw, worker: Raw) -> None:
    await worker.ask("credit", credit=0)


async def drain(served: Served, ada: Raw, worker: Raw) -> None:
    served.app.worker_registry.dismiss("w", 0)


async def end(served: Served, ada: Raw, worker: Raw) -> None:
    for connection in served.app.connections:
        if connection.queues:
            connection.close(1001, "it ends")


WAYS: dict[Callable[[Served, Raw, Raw], Awaitable[None]], str] = {
    cancel: "cancelled", offer_nothing: "ready", drain: "ready", end: "ready",
}  # fmt: skip


@pytest.mark.usefixtures("standing_clock")
@pytest.mark.parametrize("way", WAYS)
async def test_one_that_waits_goes_back(server_store: str, way: Callable[[Served, Raw, Raw], Awaitable[None]]) -> None:
    async with suspected(server_store, "a", "b", lease_ms=SHORT_MS) as (served, ada), raw(served, WORKER) as worker:
        await worker.attach("q", credit=2)
        (first,) = await worker.pushed()
        await is_in_line(served, 1)
        await way(served, ada, worker)

        async def is_back() -> bool:
            return (await states_and_losses(served, "b"))[0][0] == WAYS[way]

        await wait_until(is_back)
        assert first["id"] == "a"
        assert (await states_and_losses(served, "b"))[0][1] in (0, 1)


async def test_its_lease_goes_on_while_it_waits(server_store: str, standing_clock: StoreClock) -> None:
    async with suspected(server_store, "a", "b", lease_ms=SHORT_MS) as (served, _), raw(served, WORKER) as worker:
        await worker.attach("q", credit=2)
        (first,) = await worker.pushed()
        await is_in_line(served, 1)

        async def is_renewed() -> bool:
            (second,) = await served.app.store.tasks("q", ["ada/b"])
            return second.at_ms == standing_clock.now_ms + SHORT_MS

        for _ in range(8):
            standing_clock.move(standing_clock.now_ms + SHORT_MS // 4)
            assert await worker.settle("q", "extend", first) == ["ok"]
            await wait_until(is_renewed)
        await worker.settle("q", "ack", first)
        (second,) = await worker.pushed()
        assert (second["id"], second["attempt"]) == ("b", first["attempt"])


@pytest.mark.parametrize(("run", "lost"), [(5, 0), (6, 1)])
@pytest.mark.parametrize("where", ["the same server", "another server"])
async def test_a_process_that_is_back_has_not_died(server_store: str, where: str, run: int, lost: int) -> None:
    """It has no lease of a task that it never heard of; another process of its name knows that it died."""
    async with running(server_store, reconnect_grace=LONG) as one, running(server_store) as two:
        async with raw(one, tenant("ada")) as ada, raw(one, WORKER) as worker:
            await worker.attach("q", credit=1, name="mill", started_at_ms=5)
            await ada.enqueue("q", ["a"])
            await worker.pushed()
        async with raw(one if where == "the same server" else two, WORKER) as again:
            await again.attach("q", credit=0, name="mill", started_at_ms=run)
            await wait_until(lambda: not one.app.leases.kept)
            assert await states_and_losses(one, "a") == [("ready", lost)]
