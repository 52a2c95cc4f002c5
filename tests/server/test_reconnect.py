"""A connection that breaks for a moment costs no task its attempt, wherever its worker comes back to."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from fairq.server.engine.net.socket_connection import SocketConnection
from fairq.server.run import Served
from fairq.wire.terms import Role
from tests.store.waiting import wait_until

from .harness import WORKER, Raw, lease_of, raw, running, tenant

LONG = 60.0  # of a grace that a test ends by itself


async def broken(served: Served, *ids: str, **attach: Any) -> list[dict[str, Any]]:
    """Have a worker take tasks, and its connection break; returns them as soon as the server has noticed."""
    async with raw(served, tenant("ada")) as ada, raw(served, WORKER) as worker:
        await worker.attach("q", credit=len(ids), **attach)
        await ada.enqueue("q", ids)
        tasks = await worker.pushed(len(ids))
    await wait_until(lambda: not served.app.connections)
    return tasks


async def end_grace(served: Served) -> None:
    """Let the time be over for which leases of broken connections are kept."""
    for connection in served.app.leases.kept:
        connection.end_leases_now.set()
    await wait_until(lambda: not served.app.leases.kept)


@pytest.mark.parametrize("where", ["the same server", "another server"])
async def test_a_worker_that_comes_back_in_time_goes_on_with_its_tasks(server_store: str, where: str) -> None:
    async with running(server_store, reconnect_grace=LONG) as one, running(server_store) as two:
        tasks = await broken(one, "a", "b")
        assert len(one.app.leases.kept) == 1
        async with raw(one if where.startswith("the same") else two, WORKER) as again:
            assert await again.attach("q", credit=3, leases=[lease_of(task) for task in tasks]) == ["ok", "ok"]
            await end_grace(one)
            states = await one.app.store.tasks("q", ["ada/a", "ada/b"])
            assert [(state.state, state.attempt) for state in states] == [("leased", 1)] * 2
            await again.quiet()
            assert await again.settle("q", "ack", *tasks) == ["ok", "ok"]
        assert not one.app.leases.owners
        assert not two.app.leases.owners


async def test_leases_go_from_server_to_server_and_back(server_store: str) -> None:
    """Each of them gives back, when all is over, what it had: none of it is its own any more but the last."""
    async with running(server_store, reconnect_grace=LONG) as one, running(server_store, reconnect_grace=LONG) as two:
        (task,) = await broken(one, "a")
        for served in (two, one, two):
            async with raw(served, WORKER) as again:
                assert await again.attach("q", credit=1, leases=[lease_of(task)]) == ["ok"]
            await wait_until(lambda served=served: not served.app.connections)  # type: ignore[misc]
        await end_grace(one)
        (state,) = await one.app.store.tasks("q", ["ada/a"])
        assert (state.state, state.attempt) == ("leased", 1)
        await end_grace(two)
        assert (await one.app.store.tasks("q", ["ada/a"]))[0].state == "ready"


@pytest.mark.parametrize("action", ["release", "ack"])
async def test_a_settlement_is_repeated_after_a_break(server_store: str, action: str) -> None:
    async with running(server_store, reconnect_grace=LONG) as served:
        (task,) = await broken(served, "a", name="mill")
        async with raw(served, WORKER) as again:
            await again.attach("q", credit=0, name="mill")
            assert await again.settle("q", action, task) == ["ok"]
        assert not any(connection.account.held for connection in served.app.leases.kept)


async def test_leases_are_kept_for_as_long_as_all_need_to_come_back_when_many_break(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(server_store, reconnect_grace=0.05) as served:
        served.app.leases.reconnects.take(
            served.app.leases.reconnects.per_second * LONG, trio.current_time()
        )  # so many broke before
        await broken(served, "a")
        await trio.sleep(0.2)
        assert served.app.leases.kept, "well beyond the grace"
        await end_grace(served)
        monkeypatch.setattr("fairq.server.engine.leases.MAX_RECONNECT_GRACE_S", 0.1)
        await broken(served, "b")
        await wait_until(lambda: not served.app.leases.kept)


async def test_tenants_that_break_off_do_not_prolong_the_grace_of_workers(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairq.server.engine.leases.RECONNECTS_PER_S", 1 / LONG)
    async with running(server_store, reconnect_grace=0.05) as served:
        for _ in range(5):
            async with raw(served, tenant("eve")) as eve:
                await eve.ask("tasks", queue="q", ids=["a"])
        await wait_until(lambda: not served.app.connections)
        assert served.app.leases.reconnects.is_whole(trio.current_time())
        async with raw(served, WORKER) as worker:
            await worker.attach("q", credit=1)
        await wait_until(lambda: not served.app.connections)
        assert not served.app.leases.reconnects.is_whole(trio.current_time()), "a worker may be back"


async def test_a_killed_worker_does_not_wait_for_the_ends_of_tenants(served: Served) -> None:
    """Thousands of tenants' connections may break in the moment in which it is killed."""
    async with raw(served, tenant("eve")) as eve:
        await eve.ask("tasks", queue="q", ids=["a"])
        (connection,) = served.app.connections
        assert isinstance(connection, SocketConnection)
        connection.ends.per_turn = 0  # others fill each turn
    async with raw(served, WORKER) as worker:
        await worker.attach("q", credit=1)
    await wait_until(lambda: [each.identity.role for each in served.app.connections] == [Role.TENANT])


async def test_a_restarted_worker_does_not_wait_for_the_grace(server_store: str) -> None:
    """Nor does one that comes back without a task that it never heard of, if its name is its own."""
    async with running(server_store, reconnect_grace=LONG) as served:
        heard, _ = await broken(served, "a", "b", name="mill", started_at_ms=5)
        async with raw(served, WORKER) as again:
            leases = [lease_of(heard)]
            assert await again.attach("q", credit=2, name="mill", started_at_ms=5, leases=leases) == ["ok"]
            (task,) = await again.pushed()
            assert (task["id"], task["attempt"]) == ("b", 2)


async def close(worker: Raw, code: int) -> None:
    """Say good-bye, and hear the answer."""
    worker.transport.websocket.close(code)
    await worker.transport.flush()
    await worker.closed()


async def test_a_server_that_stops_keeps_nothing_for_those_who_broke_off(server_store: str) -> None:
    async with running(server_store, reconnect_grace=LONG) as served:
        await broken(served, "a")
        await served.app.drain(LONG)
        (state,) = await served.app.store.tasks("q", ["ada/a"])
        assert (state.state, served.app.leases.kept) == ("ready", set())
