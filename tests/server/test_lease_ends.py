"""The table of PROTOCOL.md on how a lease ends: each row is played, with a task of one attempt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fairq.server.engine.net.socket_connection import SocketConnection
from fairq.server.run import Served
from fairq.wire.terms import Role
from tests.store.waiting import wait_until
from tests.system.harness import open_world
from tests.test_documents import PROTOCOL, table_after

from .clock import StoreClock
from .harness import OPERATOR, WORKER, Raw, raw, running, tenant
from .test_reconnect import LONG, close, end_grace

ENDS = {row["it ends by"].replace("`", ""): row for row in table_after(PROTOCOL, "| it ends by |")}
HOUR_MS = 3_600_000


async def state_of(served: Served) -> str:
    (found,) = await served.app.store.tasks("q", ["ada/a"])
    return found.state


async def lost_leases_of(served: Served) -> int:
    (found,) = await served.app.store.tasks("q", ["ada/a"])
    return found.lost_leases


async def ended(served: Served) -> str:
    """Wait until the task is leased no more, and return its state."""

    async def is_over() -> bool:
        return await state_of(served) != "leased"

    await wait_until(is_over)
    return await state_of(served)


class Held(NamedTuple):
    """A task that a worker holds."""

    served: Served
    operator: Raw
    worker: Raw
    task: dict[str, Any]
    token: str
    connection: AsyncExitStack  # the worker's
    clock: StoreClock

    async def is_leased(self) -> bool:
        """True if the lease is not over."""
        return await state_of(self.served) == "leased"


async def settle(action: str, held: Held) -> None:
    assert await held.worker.settle("q", action, held.task) == ["ok"]


async def release_for_an_hour(held: Held) -> None:
    assert await held.worker.settle("q", "release", held.task, delay_ms=HOUR_MS) == ["ok"]


async def close_it(held: Held) -> None:
    await close(held.worker, 1000)


async def break_it(held: Held) -> None:
    await held.connection.aclose()
    await wait_until(lambda: bool(held.served.app.leases.kept))
    assert await held.is_leased()
    await end_grace(held.served)


async def revoke(held: Held) -> None:
    await held.operator.ask("revoke_token", id=held.token.split("_")[2])


async def supersede(held: Held) -> None:
    async with raw(held.served, held.token) as heir:
        await heir.attach("q", credit=0, started_at_ms=2)


async def stop(held: Held) -> None:
    await held.served.app.drain(0.0)


async def be_silent(held: Held) -> None:
    (connection,) = (each for each in held.served.app.connections if each.name == "w")
    assert isinstance(connection, SocketConnection)
    connection.session.is_timed_out = True
    connection._woken.set()
    assert (await held.worker.closed())[0] == 4003
    await do_nothing(held)


async def do_nothing(held: Held) -> None:
    held.clock.move(held.clock.now_ms + HOUR_MS - 1, held.served)
    assert await held.is_leased()
    held.clock.move(held.clock.now_ms + 1, held.served)


async def delete(held: Held) -> None:
    while (await held.operator.ask("delete_queue", queue="q", purge=True))["outcome"] == "more":
        pass
    held.clock.govern(held.served.store_url)  # that was deleted too


RUNS_OUT, SILENT = "it is not extended for lease_ms", "nothing is received for 50 s"  # which ends no lease by itself
PLAYED: dict[str, Callable[[Held], Awaitable[None]]] = {
    **{action: partial(settle, action) for action in ("ack", "nack", "reject", "release")},
    "release with a delay_ms": release_for_an_hour,
    "the connection is closed": close_it,
    "the connection is broken": break_it,
    "the token is revoked": revoke,
    "the worker is superseded": supersede,
    "the server stops": stop,
    SILENT: be_silent,
    RUNS_OUT: do_nothing,
    "the queue is deleted": delete,
}


def states_of(row: dict[str, str]) -> set[str]:
    """Return the states in which a task of one attempt is afterwards, as the table has it."""
    if not row["the attempt"]:
        return {"unknown"}
    if row["the attempt"] == "does not count":
        return {"ready", "delayed"}
    return {"done"} if row["the task then"] == "is done" else {"dead"}


def lost_leases_in(row: dict[str, str]) -> int:
    """Return how many lost leases the task has afterwards, as the table has it."""
    return int("lost lease" in row["the attempt"])


@pytest.mark.parametrize("way", PLAYED)
async def test_a_lease_ends_as_the_page_says(server_store: str, store_clock: StoreClock, way: str) -> None:
    row = ENDS[RUNS_OUT if way == SILENT else way]
    async with (
        running(server_store, reconnect_grace=LONG) as served,
        raw(served, OPERATOR) as operator,
        raw(served, tenant("ada")) as ada,
        AsyncExitStack() as connection,
    ):
        await operator.ask("configure", queue="q", settings={"lease_ms": HOUR_MS})
        _, token = await operator.create_token(Role.WORKER)
        worker = await connection.enter_async_context(raw(served, token))
        await worker.attach("q", started_at_ms=1)
        await ada.enqueue("q", ["a"], max_attempts=1)
        (task,) = await worker.pushed()
        await worker.ask("credit", credit=0)
        held = Held(served, operator, worker, task, token, connection, store_clock)
        await PLAYED[way](held)
        assert await ended(served) in states_of(row)
        assert await lost_leases_of(served) == lost_leases_in(row)


async def test_the_lease_of_a_server_that_died_ends_when_its_time_is_over(server_store: str, tmp_path: Path) -> None:
    row = ENDS[RUNS_OUT]
    with open_world(tmp_path) as world:
        doomed = world.run("serve", "--dev", "--store", server_store, "--port", "0", "--http-port", "0")
        url = await doomed.wait_url()
        async with raw(url, tenant("ada")) as ada, raw(url, WORKER) as worker, raw(url, OPERATOR) as operator:
            await operator.ask("configure", queue="q", settings={"lease_ms": 1_000})
            await worker.attach("q")
            await ada.enqueue("q", ["a"], max_attempts=1)
            await worker.pushed()
            doomed.kill()
        async with running(server_store) as served:
            assert {await ended(served)} == states_of(row)
            assert await lost_leases_of(served) == lost_leases_in(row) == 0


def test_every_row_is_played() -> None:
    assert set(ENDS) == PLAYED.keys() - {SILENT}
