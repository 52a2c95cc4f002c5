"""Kept slots on real servers: which claims say how many slots there are, and which servers learn that there is room."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

from fairq.model.texts import say_slots
from fairq.server.engine.net import server_slots, worker_registry
from fairq.server.run import Served
from tests.store.waiting import wait_until

from .harness import OPERATOR, WORKER, Raw, noted_calls, raw, running


async def slots_of_queue(operator: Raw) -> tuple[int, int, int]:
    """Ask for the slots of queue q, those that are kept, and those that are idle."""
    (row,) = (await operator.ask("queues", queue="q"))["queues"]
    return row["slots"], row["kept"], row["idle"]


@pytest.mark.usefixtures("no_polls")
async def test_a_changed_reserve_is_applied_by_a_tick(operator: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = noted_calls(monkeypatch, "tick")
    await operator.ask("configure", queue="q", settings={"reserve": 20})
    await wait_until(lambda: bool(ticks.args), 10)


async def test_the_slots_of_all_servers_count(server_store: str) -> None:
    async with running(server_store) as one, running(server_store) as two, raw(two, OPERATOR) as operator:
        await operator.ask("configure", queue="q", settings={"reserve": 20})
        async with raw(one, WORKER) as worker:
            await worker.attach("q", "r", credit=7)
            await wait_until(lambda: two.app.queues.count_slots("q") == 7)
            assert (await slots_of_queue(operator))[:2] == (7, 2)
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


async def test_a_server_that_begins_gets_the_slots_of_others(
    one: Served, server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_registry, "_WRITE_S", 3_600.0)
    async with raw(one, WORKER) as worker:
        await worker.attach("q", credit=7)

        async def is_written() -> bool:
            return bool(await one.app.store.workers.servers())

        await wait_until(is_written)
        async with running(server_store) as two:
            await wait_until(lambda: two.app.queues.count_slots("q") == 7)


GROUPS: list[tuple[list[tuple[list[str], int]], int | str]] = [
    ([(["q"], 500)] * 3, 1500),
    ([(["q", "r", "s"], 16)], "16, shared by 3 queues"),
    ([(["q", "r"], 1), (["s", "q"], 1), (["r", "s"], 9)], "2, shared by 3 queues"),
    ([(["q"], 4)] + [(["q", "r", "s"], 500)] * 2, "1,004, 1,000 shared by 3 queues"),
    ([(["q"], 0), (["q", "r"], 0)], 0),
]


@pytest.mark.parametrize(("groups", "said"), GROUPS)
async def test_slots_that_queues_share_are_not_to_be_added_up(
    groups: list[tuple[list[str], int]], said: int | str, one: Served, two: Served
) -> None:
    """Half of the workers are here, half at the other server."""
    async with AsyncExitStack() as stack:
        for n, (queues, slots) in enumerate(groups):
            worker = await stack.enter_async_context(raw((one, two)[n % 2], WORKER))
            await worker.attach(*queues, credit=slots, name=f"w{n}")
        many = sum("q" in queues for queues, _ in groups)
        for served in one, two:
            operator = await stack.enter_async_context(raw(served, OPERATOR))

            async def is_shown(operator: Raw = operator) -> bool:
                (row,) = (await operator.ask("queues", queue="q"))["queues"] or [{"workers": 0}]
                return row["workers"] == many and say_slots(row) == said

            await wait_until(is_shown)


async def test_a_slot_that_a_task_of_another_queue_has_is_not_idle(one: Served, two: Served, ada: Raw) -> None:
    async with raw(two, WORKER) as worker, raw(one, WORKER) as own, raw(one, OPERATOR) as operator:
        await worker.attach("q", "r", credit=4)
        await own.attach("q", credit=2, name="own")
        await ada.enqueue("r", ["a", "b", "c"])
        await worker.pushed(3)
        await wait_until(lambda: one.app.queues.count_slots("q") == 6)
        for queue, idle in ("q", 3), ("r", 1):
            (row,) = (await operator.ask("queues", queue=queue))["queues"]
            assert (row["idle"], row["leased"]) == (idle, 3 * (queue == "r"))


async def test_a_server_that_is_not_heard_of_is_forgotten(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.app.worker_registry.on_announcement('{"server": "other", "slots": {"q": [5, 2.5]}}')
    assert served.app.queues.count_slots("q") == 5
    monkeypatch.setattr(server_slots, "_FORGET_S", 0.0)
    assert served.app.queues.count_slots("q") == 0
