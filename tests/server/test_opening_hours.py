"""Opening hours through servers: a closed tenant waits, opens by itself, and once however many servers run.

Texts have minutes, so tests have the store change opening hours at given times: see `due`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import structlog
import trio

from fairq.model.limits import OpeningHours
from fairq.server.engine.timers import calendar_jobs, ticker
from fairq.server.run import Served
from fairq.store.store import Store
from tests.store.waiting import wait_until

from .harness import WORKER, Raw, daily, raw, running, tenant

MARS = "12:00-15:00 Mars/Olympus"
HOUR_MS = 3_600_000


async def due(store: Store, tenant: str, *, opens: bool, in_ms: int = 300, text: str = "") -> int:
    """Have opening hours change soon, as if their text said so; returns when."""
    now_ms, _ = await store.opening_hours("q")
    text = text or (daily(now_ms, -60, 60) if opens else daily(now_ms, 60, 120))
    await store.set_opening_hours("q", OpeningHours(tenant, text, not opens, now_ms + in_ms))
    return now_ms + in_ms


async def is_open(store: Store, tenant: str) -> bool:
    """Read whether a tenant, or the queue, is open."""
    _, (hours,) = await store.opening_hours("q", [tenant])
    return hours.is_open


@pytest.mark.usefixtures("no_polls")
async def test_who_sets_windows_is_heard_by_workers_at_once(
    served: Served, worker: Raw, ada: Raw, operator: Raw
) -> None:
    now_ms, _ = await served.app.store.opening_hours("q")
    shut = daily(now_ms, 60, 120)
    answer = await operator.ask("set_opening_hours", queue="q", tenant="ada", opening_hours=shut)
    opens_at_ms = (now_ms // 60_000 + 60) * 60_000
    assert answer == {"previous": "", "opening_hours": shut, "is_open": False, "changes_at_ms": opens_at_ms}
    await worker.attach("q", credit=5)
    await ada.enqueue("q", ["a"])
    await worker.quiet()
    assert (await operator.ask("set_opening_hours", queue="q", tenant="ada", opening_hours=""))["previous"] == shut
    (task,) = await worker.pushed()
    assert task["id"] == "a"


def changed(logs: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Count the hours that servers say they opened and closed."""
    lines = [line for line in logs if line["event"] == "opening hours changed"]
    return sum(line["opened"] for line in lines), sum(line["closed"] for line in lines)


async def test_with_many_servers_each_window_turns_once(server_store: str) -> None:
    names = [f"t{number}" for number in range(20)]
    with structlog.testing.capture_logs() as logs:
        async with (
            running(server_store) as one,
            running(server_store) as two,
            running(server_store) as three,
            raw(two, WORKER) as worker,
        ):
            await worker.attach("q", credit=50)
            for name in names:
                async with raw(one, tenant(name)) as client:
                    opens_at = await due(one.app.store, name, opens=True, in_ms=500)
                    await client.enqueue("q", [name])
            for served in (one, two, three):
                served.app.ticker.tick_within("q", 500)
            assert sorted(task["id"] for task in await worker.pushed(20)) == sorted(names)
            assert time.time() * 1000 >= opens_at - 1
            assert all([await is_open(one.app.store, name) for name in names])
            await wait_until(lambda: changed(logs)[0] >= 20)  # it is logged after the tasks have come
    assert changed(logs) == (20, 0)


async def test_turns_that_nobody_was_there_for_count_as_the_clock_shows_now(served: Served) -> None:
    store = served.app.store
    await due(store, "", opens=True, in_ms=-50 * HOUR_MS)
    now_ms, _ = await store.opening_hours("q")
    await store.set_opening_hours("q", OpeningHours("bob", daily(now_ms, 60, 120), False, now_ms - 50 * HOUR_MS))
    served.app.ticker.tick_within("q", 0)

    async def have_turned() -> bool:
        return (await store.opening_hours("q"))[1] == []

    await wait_until(have_turned)
    assert (await is_open(store, ""), await is_open(store, "bob")) == (True, False)


async def test_more_windows_than_a_call_reads_turn_together(served: Served) -> None:
    store = served.app.store
    async with trio.open_nursery() as nursery:
        for number in range(250):
            nursery.start_soon(lambda name: due(store, name, opens=True, in_ms=-1000), f"t{number}")

    async def are_open() -> bool:
        return not any(row.is_closed for row in await store.tenants("q"))

    served.app.ticker.tick_within("q", 0)
    await wait_until(are_open)
    assert len(await store.tenants("q")) == 250


def tries(logs: Sequence[Mapping[str, Any]]) -> int:
    """Count how often a server failed to find a next change."""
    return sum(line["event"] == "cannot compute the next change of opening hours" for line in logs)


@pytest.mark.usefixtures("quick_floor")
async def test_a_window_that_this_server_cannot_read_holds_up_no_other_and_is_not_lost(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calendar_jobs, "AGAIN_S", ticker.FLOOR_S)
    store = served.app.store
    began = trio.current_time()
    with structlog.testing.capture_logs() as logs:
        async with raw(served, WORKER) as worker, raw(served, tenant("ada")) as ada, raw(served, tenant("bob")) as bob:
            await worker.attach("q", credit=5)
            await due(store, "bob", opens=True, in_ms=-1000, text=MARS)
            await due(store, "ada", opens=True)
            await ada.enqueue("q", ["a"])
            await bob.enqueue("q", ["b"])
            assert [task["id"] for task in await worker.pushed()] == ["a"]
            await wait_until(lambda: tries(logs) >= 3)
            most = 1 + (trio.current_time() - began) / ticker.FLOOR_S
            assert tries(logs) <= most, "it is tried again at the floor, not without pause"
            assert not await is_open(store, "bob")
            await due(store, "bob", opens=True, in_ms=-1000)
            assert [task["id"] for task in await worker.pushed()] == ["b"]
