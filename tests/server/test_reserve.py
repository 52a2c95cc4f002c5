"""Kept slots on real servers: who says how many slots there are, and who is told when there is room."""

from __future__ import annotations

import pytest

from fairq.server.net import server_slots, worker_registry
from fairq.server.run import Served
from tests.store.waiting import wait_until

from .harness import OPERATOR, WORKER, Raw, noted_calls, raw, running


async def slots_told(operator: Raw) -> tuple[int, int, int]:
    """Ask for the slots of queue q, those that are kept, and those that are idle."""
    (row,) = (await operator.ask("queues"))["queues"]
    return row["slots"], row["kept"], row["idle"]


@pytest.mark.usefixtures("no_polls")
async def test_a_changed_reserve_is_applied_by_a_tick(operator: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = noted_calls(monkeypatch, "tick")
    await operator.ask("configure", queue="q", settings={"reserve": 20})
    await wait_until(lambda: bool(ticks.args), 10)


async def test_the_slots_of_all_servers_count(server_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_registry, "_GATHER_S", 0.01)
    async with running(server_store) as one, running(server_store) as two, raw(two, OPERATOR) as operator:
        await operator.ask("configure", queue="q", settings={"reserve": 20})
        async with raw(one, WORKER) as worker:
            await worker.attach("q", "r", credit=7)
            await wait_until(lambda: two.app.queues.count_slots("q") == 7)
            assert (await slots_told(operator))[:2] == (7, 2)
            async with raw(two, WORKER) as another:
                await another.attach("q", credit=4, name="another")
                await wait_until(lambda: one.app.queues.count_slots("q") == 11)
                async with running(server_store) as three:
                    async with raw(three, WORKER) as third:
                        await third.attach("q", credit=1, name="third")
                        await wait_until(lambda: three.app.queues.count_slots("q") == 12)
                        await wait_until(lambda: one.app.queues.count_slots("q") == 12)
                    await wait_until(lambda: one.app.queues.count_slots("q") == 11)
        await wait_until(lambda: two.app.queues.count_slots("q") == 0)


async def test_a_server_that_is_not_heard_of_is_forgotten(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.app.worker_registry.on_announcement('{"server": "other", "slots": {"q": [5, 2.5]}}')
    assert served.app.queues.count_slots("q") == 5
    monkeypatch.setattr(server_slots, "_FORGET_S", 0.0)
    assert served.app.queues.count_slots("q") == 0
