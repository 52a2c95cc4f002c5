"""Any number of servers on one store: each task once, wake-ups across servers, and one may go."""

from __future__ import annotations

import pytest

from fairq.server.run import Served

from .harness import OPERATOR, WORKER, raw, tenant


@pytest.mark.usefixtures("no_polls")
async def test_a_worker_hears_of_a_task_that_came_right_after_it_attached(one: Served, two: Served) -> None:
    """Between the first claim and the subscription to the queue's channel lies a gap."""
    async with raw(one, tenant("ada")) as ada:
        for number in range(10):
            async with raw(two, WORKER) as worker:
                await worker.attach(f"q{number}", credit=1)
                await ada.enqueue(f"q{number}", ["a"])
                await worker.pushed()


@pytest.mark.usefixtures("no_polls")
@pytest.mark.parametrize("verb", ["resume", "replay"])
async def test_what_an_operator_sets_free_at_one_server_wakes_a_worker_at_the_other(
    verb: str, one: Served, two: Served
) -> None:
    async with raw(one, OPERATOR) as operator, raw(one, tenant("ada")) as ada, raw(two, WORKER) as worker:
        await ada.enqueue("q", ["a"])
        await worker.attach("q", credit=1)
        (task,) = await worker.pushed()
        if verb == "replay":
            await worker.settle("q", "reject", task)
            await worker.quiet()
            await operator.ask("replay", queue="q", ids=["ada/a"])
        else:
            await operator.ask("set_paused", paused=True, queue="q", tenant="ada")
            await worker.settle("q", "release", task)
            await worker.quiet()
            await operator.ask("set_paused", paused=False, queue="q", tenant="ada")
        await worker.pushed()
