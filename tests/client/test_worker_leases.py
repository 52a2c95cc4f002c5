"""A worker and its leases: renewed, lost, given back; and how a worker stops."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import trio

import fairq
from fairq.model.tasks import Outcome, Settlement
from fairq.server.run import Served
from fairq.store.store import Store
from tests.server.clock import StoreClock
from tests.server.harness import WORKER, Raw, raw
from tests.store.proxy import open_proxy
from tests.store.waiting import wait_until

from .harness import wait_state, worker_of, working


async def test_a_long_task_keeps_its_lease(
    served: Served, ada: fairq.Client, server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is renewed after a part of it; the store's time goes on by two thirds of it between two renewals."""
    monkeypatch.setattr("fairq.wire.worker_session._RENEWALS_PER_LEASE", 600)  # every 50 ms
    clock = StoreClock(monkeypatch, "emails")
    clock.govern(server_store)
    app, attempts, finish = worker_of(served), [], trio.Event()
    renewed: list[str] = []
    settle = Store.settle

    async def settle_and_note(store: Store, queue: str, settlements: Sequence[Settlement]) -> list[Outcome]:
        outcomes = await settle(store, queue, settlements)
        renewed.extend(it for it, each in zip(outcomes, settlements, strict=True) if each.action == "extend")
        return outcomes

    monkeypatch.setattr(Store, "settle", settle_and_note)

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        attempts.append(task.attempt)
        await finish.wait()

    async with working(app):
        task = await ada.enqueue("emails", 1)
        for _ in range(4):
            seen = len(renewed)
            await wait_until(lambda seen=seen: len(renewed) >= seen + 2)  # type: ignore[misc]  # one may be older
            clock.move(clock.now_ms + 20_000)
            await served.app.store.tick("emails")
        finish.set()
        await wait_state(task, "done")
    assert attempts == [1]
    assert set(renewed) == {"ok"}


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_lost_lease_cancels_its_handler_and_settles_nothing(
    served: Served, ada: fairq.Client, operator: Raw, kind: str
) -> None:
    """The connection stops carrying replies; the lease runs out here as it does in the store."""
    await operator.ask("configure", queue="emails", settings={"lease_ms": 1000})
    began, cancelled, leave = trio.Event(), trio.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    async def linger(task: fairq.Task) -> None:
        began.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    def block(task: fairq.Task) -> None:
        token.run_sync_soon(began.set)
        leave.wait(30)

    async with open_proxy(served.port) as proxy:
        app = fairq.Worker(f"ws://127.0.0.1:{proxy.port}", WORKER, concurrency=1)
        app.task("emails")(linger if kind == "async" else block)
        task = await ada.enqueue("emails", 1)
        async with working(app):
            await began.wait()
            proxy.hold()
            if kind == "async":
                await cancelled.wait()
            await wait_state(task, "ready")
            await operator.ask("configure", queue="emails", settings={"lease_ms": 60_000})  # the heir keeps its own
            async with raw(served, WORKER) as heir:
                await heir.attach("emails", credit=1)
                (pushed,) = await heir.pushed()
                assert (pushed["id"], pushed["attempt"]) == (task.id, 2)
                leave.set()
                await wait_until(lambda: app.counts.total() == 1)
                assert await heir.settle("emails", "ack", pushed) == ["ok"]
            proxy.release()


async def test_a_worker_may_be_stopped_before_it_is_connected(served: Served) -> None:
    app = worker_of(served)
    app.task("emails")(print)
    async with trio.open_nursery() as nursery:
        await nursery.start(app.run)
        app.stop()


async def test_cancelling_a_worker_gives_back_also_what_it_had_not_begun(served: Served, ada: fairq.Client) -> None:
    """Handlers that never wait keep the loop; the tasks behind them were pushed, but not begun."""
    app, ran = worker_of(served, concurrency=50), []

    async with trio.open_nursery() as nursery:

        @app.task("emails")
        async def send(task: fairq.Task) -> None:
            ran.append(task.id)
            nursery.cancel_scope.cancel()
            await trio.sleep_forever()

        tasks = await ada.enqueue_many("emails", range(50), max_attempts=1)
        await app.run()
    for task in tasks:
        await wait_state(task, "ready")
    async with raw(served, WORKER) as heir:
        await heir.attach("emails", credit=50)
        pushed = await heir.pushed(50)
        assert all(task["attempt"] == task["max_attempts"] for task in pushed)  # their only attempt is still to come


async def test_an_id_that_is_used_again_ends_the_handler_of_the_first_task_and_not_that_of_the_second(
    served: Served, ada: fairq.Client
) -> None:
    """The worker never heard that the first was lost; both tasks are in their first attempt."""
    store, app = served.app.store, worker_of(served, concurrency=2)
    began, cancelled, finish = trio.Event(), trio.Event(), trio.Event()

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        began.set()
        if task.payload == "second":
            return await finish.wait()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async with working(app):
        await ada.enqueue("emails", "first", id="a")
        await began.wait()
        (lease,) = (lease for each in served.app.connections for lease in each.account.held.values())
        await store.settle("emails", [Settlement("reject", "ada/a", lease)])
        await store.purge("emails", ["ada/a"])
        await store.connection.call("HDEL", "fq:{emails/0}:tasks", "ada/a")  # as two minutes later
        task = await ada.enqueue("emails", "second", id="a")
        await cancelled.wait()
        await wait_until(lambda: app.counts["lost"] == 1)
        finish.set()
        await wait_state(task, "done")
        assert dict(app.counts) == {"lost": 1, "done": 1}
