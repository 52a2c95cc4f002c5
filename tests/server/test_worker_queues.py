"""A worker of several queues, through a real server: they take turns, and no slot idles."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio

import fairq
from fairq.errors import Unavailable
from fairq.io.taskless import in_task
from fairq.server.engine.dispatch.claiming import Phase
from fairq.server.run import Served
from fairq.store.store import Store
from fairq.store.task_calls import Claim
from tests.store.cases import raises_for
from tests.store.waiting import wait_until

from .harness import Raw


@pytest.mark.usefixtures("no_polls")
async def test_queues_that_have_tasks_take_turns(served: Served, ada: Raw, worker: Raw) -> None:
    """One that had the slot for long, on a machine that stands still, has it again when the other has caught up."""
    for queue in ("a", "b"):
        await ada.enqueue(queue, [f"{queue}-{n}" for n in range(150)])
    await worker.attach("a", "b", credit=1)
    accounts, longest_s = [served.app.queues.accounts._queues[queue] for queue in ("a", "b")], 0.0
    for _ in range(100):
        before = [each.vtime for each in accounts]
        (task,) = await worker.pushed(1)
        assert await worker.settle(task["id"][0], "ack", task) == ["ok"]
        longest_s = max(longest_s, *(each.vtime - was for each, was in zip(accounts, before, strict=True)))
    assert min(each.vtime for each in accounts) > 0
    assert abs(accounts[0].vtime - accounts[1].vtime) <= 2 * longest_s


@pytest.mark.usefixtures("no_polls")
async def test_no_slot_idles_when_only_one_queue_has_work(ada: Raw, worker: Raw) -> None:
    await worker.attach("a", "b", credit=8)
    await worker.quiet()
    await ada.enqueue("b", [f"b-{n}" for n in range(20)])
    assert {task["id"][0] for task in await worker.pushed(8)} == {"b"}


@pytest.mark.usefixtures("no_polls")
async def test_a_queue_that_begins_to_wait_gets_the_next_slot_that_falls_free(
    served: Served, ada: Raw, worker: Raw
) -> None:
    await ada.enqueue("long", [f"long-{n}" for n in range(40)])
    await worker.attach("long", "quick", credit=2)
    first, second = await worker.pushed(2)
    for n in range(5):
        await ada.enqueue("quick", [f"quick-{n}"])
        await wait_until(lambda: served.app.queues.accounts.waiting(["quick"]) == ["quick"])  # it has heard of the task
        assert await worker.settle("long", "ack", first) == ["ok"]
        (quick,) = await worker.pushed()
        assert quick["id"] == f"quick-{n}"
        await worker.settle("quick", "ack", quick)
        first, second = second, *await worker.pushed()
        assert second["id"].startswith("long")


@pytest.mark.usefixtures("no_polls")
async def test_free_slots_are_divided_by_the_queues_weights_at_once(
    served: Served, ada: Raw, worker: Raw, operator: Raw
) -> None:
    for queue in ("a", "b"):
        await ada.enqueue(queue, [f"{queue}-{n}" for n in range(40)])
    await operator.ask("configure", queue="a", settings={"queue_weight": 4})
    await worker.attach("a", "b", credit=2)
    tasks = await worker.pushed(2)
    await trio.sleep(0.3)  # else they are too short for one to count
    await worker.ask("credit", credit=10)
    tasks += await worker.pushed(8)
    assert 7 <= Counter(task["id"][0] for task in tasks)["a"] <= 9, "four fifths, by what each has had until then"
    await operator.ask("configure", queue="a", settings={"queue_weight": 0.25})
    credit = 10
    while served.app.queues.accounts._queues["a"].weight != 0.25:  # by a claim
        credit += 1
        await worker.ask("credit", credit=credit)
        await worker.pushed()
    await worker.ask("credit", credit=credit + 8)
    assert Counter(task["id"][0] for task in await worker.pushed(8))["b"] >= 6


@pytest.mark.usefixtures("no_polls")
async def test_a_queue_whose_claim_hangs_keeps_no_slot_from_the_other(
    monkeypatch: pytest.MonkeyPatch, ada: Raw, worker: Raw, served: Served
) -> None:
    """What the claim brings in the end goes back, without an attempt."""
    claim, go_on = Store.claim, trio.Event()

    async def hang(self: Store, queue: str, *args: Any, **more: Any) -> Claim:
        if queue == "a":
            await in_task()
            await go_on.wait()
        return await claim(self, queue, *args, **more)

    for queue in ("a", "b"):
        await ada.enqueue(queue, [f"{queue}-{n}" for n in range(20)])
    monkeypatch.setattr(Store, "claim", hang)
    await worker.attach("a", "b", credit=4)
    tasks = await worker.pushed(4)
    for _ in range(4):
        assert await worker.settle("b", "ack", *tasks) == ["ok"] * 4
        tasks = await worker.pushed(4)
        assert {task["id"][0] for task in tasks} == {"b"}
    go_on.set()
    await wait_until(lambda: served.app.queues.dispatchers["a"].claiming.phase is Phase.WAITING)
    assert not worker.pushes
    await worker.settle("b", "ack", *tasks)
    tasks = await worker.pushed(4)
    assert {(task["id"][0], task["max_attempts"] - task["attempt"]) for task in tasks} == {("a", 24)}


@pytest.mark.usefixtures("no_polls")
async def test_a_queue_whose_claims_fail_leaves_its_slots_to_the_other(
    monkeypatch: pytest.MonkeyPatch, ada: Raw, worker: Raw
) -> None:
    """It goes on trying, and has its part again as soon as it succeeds."""
    claim, tries = Store.claim, 0

    async def fail(self: Store, queue: str, *args: Any, **more: Any) -> Claim:
        nonlocal tries
        if queue == "a":
            tries += 1
            raise Unavailable("the node is away")
        return await claim(self, queue, *args, **more)

    for queue in ("a", "b"):
        await ada.enqueue(queue, [f"{queue}-{n}" for n in range(8)])
    with monkeypatch.context() as patched:
        patched.setattr(Store, "claim", fail)
        await worker.attach("a", "b", credit=4)
        tasks = await worker.pushed(4)
        assert {task["id"][0] for task in tasks} == {"b"}
        assert await worker.settle("b", "ack", *tasks[:1]) == ["ok"]
        (task,) = await worker.pushed()
        assert task["id"][0] == "b"
        assert await worker.settle("b", "ack", *tasks[1:3]) == ["ok"] * 2
        await worker.pushed(2)
        await worker.ask("credit", credit=0)
        tried = tries
        await worker.ask("credit", credit=8)
        await wait_until(lambda: tries > tried)
    assert {task["id"][0] for task in await worker.pushed(4)} >= {"a"}


@pytest.mark.usefixtures("no_polls")
async def test_a_claim_that_fails_by_our_fault_gives_its_place_to_the_other_queue(
    monkeypatch: pytest.MonkeyPatch, ada: Raw, worker: Raw
) -> None:
    claim, is_claiming = Store.claim, trio.Event()

    async def fail(self: Store, queue: str, *args: Any, **more: Any) -> Claim:
        if queue != "a":
            return await claim(self, queue, *args, **more)
        await in_task()
        is_claiming.set()
        await trio.sleep(0.1)  # the other queue looks meanwhile
        raise ZeroDivisionError

    monkeypatch.setattr(Store, "claim", fail)
    await worker.attach("a", "b", credit=1)
    await is_claiming.wait()
    await ada.enqueue("b", ["b"])
    await worker.pushed()


async def test_queues_that_a_worker_cannot_serve_are_refused() -> None:
    app = fairq.Worker(token="x", queues=["nobody"])
    app.task("a")(print)
    with raises_for("queues"):
        await app.run()
