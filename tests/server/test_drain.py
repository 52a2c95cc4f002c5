"""Stopping: running tasks get their grace, the rest go back, and no answer is false."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from fairq.errors import Unavailable
from fairq.server.run import Served
from tests.store.waiting import wait_until

from .harness import OPERATOR, WORKER, Raw, Refused, raw, tenant


async def test_unfinished_tasks_are_released_and_their_attempt_does_not_count(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The grace ends it, and nothing else.
    for limit in ("app.GIVE_BACK_S", "leases.GIVE_BACK_S", "net.socket_connection.END_S"):
        monkeypatch.setattr(f"fairq.server.engine.{limit}", 3600.0)
    async with raw(served, tenant("ada")) as ada, raw(served, WORKER) as worker:
        await ada.enqueue("q", ["a"], max_attempts=1)
        await worker.attach("q", credit=1)
        await worker.pushed()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.app.drain, 0.3)
            assert (await worker.receive())["type"] == "drain"
            assert (await worker.closed())[0] == 1001
        assert trio.current_time() - began >= 0.3
    (state,) = await served.app.store.tasks("q", ["ada/a"])
    assert (state.state, state.attempt) == ("ready", 1)
    (lease,) = (await served.app.store.claim("q", "next", 1)).leases
    assert (lease.attempt, lease.max_attempts) == (2, 2)


async def test_a_draining_server_pushes_nothing_more_and_takes_settlements_still(served: Served) -> None:
    async with raw(served, tenant("ada")) as ada, raw(served, WORKER) as worker:
        await ada.enqueue("q", ["a", "b", "c"])
        await worker.attach("q", credit=2)
        first, second = await worker.pushed(2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.app.drain, 3600.0)
            assert (await worker.receive())["type"] == "drain"
            assert await worker.settle("q", "ack", first) == ["ok"]
            await served.app.queues.dispatchers["q"].stopped.wait()
            assert await worker.settle("q", "ack", second) == ["ok"]
            assert (await worker.closed())[0] == 1001
    assert not worker.pushes
    assert (await served.app.store.queue("q")).ready == 1


async def test_tenants_and_operators_are_informed_and_closed_at_once(served: Served) -> None:
    async with raw(served, tenant("ada")) as ada, raw(served, OPERATOR) as operator:
        await served.app.drain(3600.0)
        for client in (ada, operator):
            assert (await client.receive())["type"] == "drain"
            assert (await client.closed())[0] == 1001
    with pytest.raises(Unavailable):
        async with raw(served, WORKER):
            pass


async def test_a_drained_server_is_asked_nothing_more(served: Served, worker: Raw) -> None:
    """Else a question of another server waits for its answer, until its list of workers has expired."""
    await worker.attach("q", credit=5)
    await served.app.worker_registry.write()
    assert await served.app.store.workers.servers() == {served.app.name}
    await served.app.drain(3600.0)
    assert await served.app.store.workers.servers() == set()


async def test_an_idle_worker_does_not_hold_up_the_drain(served: Served, worker: Raw) -> None:
    await worker.attach("q", credit=5)
    await served.app.drain(3600.0)
    assert (await worker.receive())["type"] == "drain"
    assert (await worker.closed())[0] == 1001


async def test_what_is_asked_while_draining_is_refused_as_draining_and_not_as_a_mistake(
    served: Served, ada: Raw, worker: Raw
) -> None:
    for connection in served.app.connections:
        connection.session.drain()
    with pytest.raises(Refused, match=r"^draining "):
        await ada.enqueue("q", ["a"])
    with pytest.raises(Refused, match=r"^draining "):
        await worker.attach("q")


@pytest.mark.usefixtures("no_polls")
@pytest.mark.parametrize("grace", [3600.0, 0.0])
async def test_a_waiting_request_is_answered_before_the_connection_is_closed(
    served: Served, ada: Raw, grace: float
) -> None:
    await ada.enqueue("q", ["a"])
    await ada.ask("open_batch", queue="q", id="b")
    waits: list[tuple[str, dict[str, Any]]] = [
        ("wait_tasks", {"ids": ["a"]}),
        ("batch", {"id": "b"}),
        ("events", {}),
        ("wait_tasks", {"ids": ["a"]}),
    ]
    for ref, (verb, body) in enumerate(waits, 100):
        await ada.send(verb, ref=ref, queue="q", timeout_ms=60_000, **body)
    (connection,) = served.app.connections
    await wait_until(lambda: connection._waited_for == len(waits))
    await served.app.drain(grace)
    said = [await ada.receive() for _ in range(1 + len(waits))]
    assert said[0] == {"type": "drain"}
    assert {(frame["ref"], frame["code"]) for frame in said[1:]} == {(100 + n, "draining") for n in range(4)}
    assert (await ada.closed())[0] == 1001


async def test_a_silent_client_learns_why_its_connection_ends(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairq.wire.session.TIMEOUT_S", 0.2)
    async with raw(served, WORKER) as worker:
        assert await worker.closed() == (4003, "nothing was received for 50 s")
