"""What a tenant's tasks waited for, as servers report it: each reason, in a run made to have it; and shares."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from attrs import define

from fairq.server.run import Served
from tests.store.waiting import wait_until

from .clock import StoreClock
from .harness import OPERATOR, WORKER, Raw, raw, running, tenant
from .test_why import closed

HOLD_MS = 160  # how long something holds tasks back, by the store's clock


@define
class World:
    """A connection of each role, and the store's clock."""

    served: Served
    clock: StoreClock
    ada: Raw
    bob: Raw
    operator: Raw
    worker: Raw

    def hold(self, ms: int = HOLD_MS) -> None:
        """Let time pass."""
        self.clock.move(self.clock.now_ms + ms, self.served)

    async def run(self, *ids: str) -> None:
        """Have a task, or these, pushed to the worker and done at once."""
        tasks = await self.worker.pushed(len(ids) or 1)
        await self.worker.settle("q", "ack", *tasks)

    async def say(self, verb: str, **body: Any) -> None:
        """Have the operator say something."""
        await self.operator.ask(verb, queue="q", **body)


async def paused(world: World, **whom: Any) -> None:
    """Enqueue while something is paused."""
    await world.worker.attach("q")
    await world.say("set_paused", paused=True, **whom)
    await world.ada.enqueue("q", ["a"])
    world.hold()
    await world.say("set_paused", paused=False, **whom)
    await world.run()


async def closed_for_a_while(world: World, **whom: Any) -> None:
    """Enqueue while something is closed."""
    await world.worker.attach("q")
    await world.say("set_opening_hours", opening_hours=closed(), **whom)
    await world.ada.enqueue("q", ["a"])
    world.hold()
    await world.say("set_opening_hours", opening_hours="", **whom)
    await world.run()


async def no_worker(world: World) -> None:
    """Enqueue, and let a worker come later."""
    await world.ada.enqueue("q", ["a"])
    world.hold()
    await world.worker.attach("q")
    await world.run()


async def rate(world: World) -> None:
    """Start ten a second."""
    await world.worker.attach("q", credit=5)
    await world.say("set_limits", tenant="ada", limits={"rate": 10, "burst": 1})
    await world.ada.enqueue("q", ["a", "b", "c"])
    await world.run()
    for _ in range(2):
        world.hold(100)
        await world.run()


async def max_running(world: World) -> None:
    """Run one at a time, where there are slots for more."""
    await world.worker.attach("q", credit=5)
    await world.say("set_limits", tenant="ada", limits={"max_running": 1})
    await world.ada.enqueue("q", ["a", "b"])
    first = await world.worker.pushed()
    world.hold()
    await world.worker.settle("q", "ack", *first)
    await world.run()


async def backlog(world: World) -> None:
    """Let many of the tenant's own stand before each other."""
    await world.worker.attach("q")
    await world.ada.enqueue("q", [f"a{n}" for n in range(8)])
    for _ in range(8):
        first = await world.worker.pushed()
        world.hold(HOLD_MS // 8)
        await world.worker.settle("q", "ack", *first)


async def share(world: World) -> None:
    """Let another tenant have the slot."""
    await world.worker.attach("q")
    await world.bob.enqueue("q", ["b"])
    theirs = await world.worker.pushed()
    await world.ada.enqueue("q", ["a"])
    world.hold()
    await world.worker.settle("q", "ack", *theirs)
    await world.run()


RUNS: dict[str, tuple[str, Callable[[World], Awaitable[None]]]] = {
    "the tenant is paused": ("paused", lambda world: paused(world, tenant="ada")),
    "the queue is paused": ("paused", paused),
    "the tenant is closed": ("closed", lambda world: closed_for_a_while(world, tenant="ada")),
    "the queue is closed": ("closed", closed_for_a_while),
    "no worker": ("no_worker", no_worker),
    "its rate": ("rate", rate),
    "its limit": ("max_running", max_running),
    "its backlog": ("backlog", backlog),
    "others": ("share", share),
}


@pytest.mark.parametrize("name", RUNS)
async def test_most_of_the_dwell_goes_to_what_held_the_tasks(
    served: Served, store_clock: StoreClock, name: str
) -> None:
    reason, run = RUNS[name]
    async with (
        raw(served, tenant("ada")) as ada,
        raw(served, tenant("bob")) as bob,
        raw(served, OPERATOR) as operator,
        raw(served, WORKER) as worker,
    ):
        await run(World(served, store_clock, ada, bob, operator, worker))
        report = (await ada.ask("report", queue="q"))["report"]
    parts = {part["cause"]: part["part"] for part in report["parts"]}
    assert max(parts, key=lambda each: parts[each]) == reason, parts
    assert parts[reason] > 0.6, parts
    assert sum(parts.values()) == pytest.approx(1)
    assert report["p99_ms"] >= 90


async def test_the_share_is_told_as_all_servers_have_added_it(served: Served) -> None:
    async with (
        raw(served, tenant("ada")) as ada,
        raw(served, OPERATOR) as operator,
        raw(served, WORKER) as worker,
    ):
        await operator.ask("configure", queue="q", settings={"share": "count"})
        await worker.attach("q")
        await ada.enqueue("q", ["a", "b", "c"])
        await worker.settle("q", "ack", *await worker.pushed())
        await worker.pushed()
        assert (await ada.ask("report", queue="q"))["report"]["share_over_ms"] == 0
        await served.app.recorder.flush()
        report = (await ada.ask("report", queue="q"))["report"]
    assert (report["starts"], report["delivered"], report["entitled"]) == (2, 2, 2)
    assert 0 < report["share_over_ms"] <= 300_000


async def test_any_server_tells_what_tasks_waited_for_at_all(server_store: str) -> None:
    async with (
        running(server_store) as one,
        running(server_store) as two,
        raw(one, tenant("ada")) as ada,
        raw(two, tenant("ada")) as other_ada,
        raw(one, WORKER) as worker,
        raw(two, WORKER) as other_worker,
    ):
        for n, each in enumerate((worker, other_worker)):
            await each.attach("q", credit=1, name=f"w-{n}")
        await ada.enqueue("q", ["a", "b"])
        for each in (worker, other_worker):
            await each.pushed()

        async def are_listed() -> bool:
            return len(await one.app.store.workers.servers()) == 2

        await wait_until(are_listed)
        for each in (ada, other_ada):
            report = (await each.ask("report", queue="q"))["report"]
            assert (report["starts"], report["unanswered"]) == (2, 0)
