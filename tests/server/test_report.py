"""What a tenant's tasks waited for, as servers report it, and shares; tests/lua has each cause."""

from __future__ import annotations

import pytest

from fairq.server.run import Served
from tests.store.waiting import wait_until

from .clock import StoreClock
from .harness import OPERATOR, WORKER, Raw, raw, tenant

HOLD_MS = 160  # how long something holds tasks back, by the store's clock


async def run_one(worker: Raw) -> None:
    """Have a task pushed to the worker and done at once."""
    await worker.settle("q", "ack", *await worker.pushed())


async def check_report(ada: Raw, cause: str) -> None:
    """See that most of the time for which a task was held back went to what held it."""
    report = (await ada.ask("report", queue="q"))["report"]
    parts = {part["cause"]: part["part"] for part in report["parts"]}
    assert parts[cause] > 0.6, parts
    assert sum(parts.values()) == pytest.approx(1)
    assert report["p99_ms"] >= HOLD_MS


async def test_time_while_the_tenant_was_paused_is_reported(
    served: Served, store_clock: StoreClock, ada: Raw, operator: Raw, worker: Raw
) -> None:
    await worker.attach("q")
    await operator.ask("set_paused", paused=True, queue="q", tenant="ada")
    await ada.enqueue("q", ["a"])
    store_clock.move(store_clock.now_ms + HOLD_MS, served)
    await operator.ask("set_paused", paused=False, queue="q", tenant="ada")
    await run_one(worker)
    await check_report(ada, "paused")


async def test_time_without_a_worker_is_reported(
    served: Served, store_clock: StoreClock, ada: Raw, worker: Raw
) -> None:
    await ada.enqueue("q", ["a"])
    store_clock.move(store_clock.now_ms + HOLD_MS, served)
    await worker.attach("q")
    await run_one(worker)
    await check_report(ada, "no_worker")


async def test_time_for_which_another_tenant_had_the_slot_is_reported(
    served: Served, store_clock: StoreClock, ada: Raw, bob: Raw, worker: Raw
) -> None:
    await worker.attach("q")
    await bob.enqueue("q", ["b"])
    theirs = await worker.pushed()
    await ada.enqueue("q", ["a"])
    store_clock.move(store_clock.now_ms + HOLD_MS, served)
    await worker.settle("q", "ack", *theirs)
    await run_one(worker)
    await check_report(ada, "share")


async def test_the_share_is_shown_as_all_servers_have_added_it(served: Served) -> None:
    async with raw(served, tenant("ada")) as ada, raw(served, OPERATOR) as operator, raw(served, WORKER) as worker:
        await operator.ask("configure", queue="q", settings={"share": "count"})
        await worker.attach("q")
        await ada.enqueue("q", ["a", "b", "c"])
        await worker.settle("q", "ack", *await worker.pushed())
        await worker.pushed()
        assert (await ada.ask("report", queue="q"))["report"]["share_over_ms"] == 0
        await served.app.recorder.flush()
        report = (await ada.ask("report", queue="q"))["report"]
    assert (report["starts"], report["delivered"], report["entitled"], report["free"]) == (2, 2, 0, 2)
    assert 0 < report["share_over_ms"] <= 300_000


async def test_any_server_tells_what_tasks_waited_for_at_all(one: Served, two: Served) -> None:
    async with (
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
