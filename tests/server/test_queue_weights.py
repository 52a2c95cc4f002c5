"""Weights between a worker's queues, through a real server: in worker time, and no slot idles."""

from __future__ import annotations

import heapq
from typing import Any

import pytest
import trio

import fairq
from fairq.errors import BadRequest, Unavailable
from fairq.server.dispatch.slots import Slots
from fairq.server.run import Served
from fairq.server.verbs import workers as work_verbs
from fairq.store.store import Store
from fairq.store.task_calls import Claim
from tests.client.harness import worker_of, working
from tests.store.waiting import wait_until

from .harness import WORKER, Raw, raw, tenant, url_of


async def test_a_workers_time_goes_to_its_queues_by_weight(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue with the smaller weight has the longer tasks. Time is ours: it goes on when all slots are taken."""
    concurrency = 2
    app = worker_of(served, concurrency)
    worked = {"a": 0.0, "b": 0.0}
    now = 0.0
    running: list[tuple[float, str, trio.Event]] = []
    taken = trio.Event()
    monkeypatch.setattr(work_verbs, "Slots", lambda weights, has_work, _: Slots(weights, has_work, lambda: now))

    async def work(task: fairq.Task) -> None:
        nonlocal taken
        over = trio.Event()
        heapq.heappush(running, (now + task.payload, task.id, over))
        if len(running) == concurrency:
            taken.set()
        await over.wait()
        worked[task.queue] += task.payload

    app.task("a", weight=3)(work)
    app.task("b")(work)
    async with fairq.open_client(url_of(served), token=tenant("ada")) as client:
        await client.enqueue_many("a", [0.02] * 500)
        await client.enqueue_many("b", [0.06] * 500)
        async with working(app):
            while now < 1:
                await taken.wait()
                taken = trio.Event()
                now, _, over = heapq.heappop(running)
                over.set()
    assert worked["a"] / worked["b"] == pytest.approx(3, rel=0.25)


@pytest.mark.usefixtures("no_polls")
async def test_no_slot_idles_when_only_one_queue_has_work(ada: Raw, worker: Raw) -> None:
    await worker.attach("a", "b", credit=8, weights=[1000, 1])
    await worker.quiet()
    await ada.enqueue("b", [f"b-{n}" for n in range(20)])
    tasks = await worker.pushed(8)
    await ada.enqueue("a", [f"a-{n}" for n in range(20)])
    await worker.settle("b", "ack", *tasks)
    assert {task["id"][0] for task in await worker.pushed(8)} == {"a"}


@pytest.mark.usefixtures("no_polls")
async def test_a_queue_that_runs_dry_leaves_its_slots_to_the_other(served: Served, ada: Raw, worker: Raw) -> None:
    for queue in ("a", "b"):
        await ada.enqueue(queue, [f"{queue}-{n}" for n in range(40)])
    await worker.attach("a", "b", credit=4, weights=[3, 1])
    done, held = 0, 0
    while done < 80:
        while not worker.pushes:
            await worker.receive()
        for push in worker.pushes[:]:
            worker.pushes.remove(push)
            held += len(push["tasks"])
            assert held <= 4
            tasks = [{**task, "full_id": task["id"]} for task in push["tasks"]]
            await worker.settle(push["queue"], "ack", *tasks)
            held, done = held - len(tasks), done + len(tasks)
    assert (await served.app.store.queue("a")).done == (await served.app.store.queue("b")).done == 40


@pytest.mark.usefixtures("no_polls")
async def test_a_queue_whose_claims_fail_leaves_its_slots_to_the_other(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on trying, and has its part again as soon as it succeeds."""
    claim, tries = Store.claim, 0

    async def fail(self: Store, queue: str, *args: Any, **more: Any) -> Claim:
        nonlocal tries
        if queue == "a":
            tries += 1
            raise Unavailable("the node is away")
        return await claim(self, queue, *args, **more)

    async with raw(served, tenant("ada")) as ada, raw(served, WORKER) as worker:
        for queue in ("a", "b"):
            await ada.enqueue(queue, [f"{queue}-{n}" for n in range(8)])
        with monkeypatch.context() as patched:
            patched.setattr(Store, "claim", fail)
            await worker.attach("a", "b", credit=4, weights=[1000, 1])
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


async def test_two_workers_with_other_weights_take_all_there_is(served: Served) -> None:
    one, two = worker_of(served, 3), worker_of(served, 3)
    one.name, two.name = "one", "two"
    done = 0

    async def work(task: fairq.Task) -> None:
        nonlocal done
        done += 1

    for app, weight in ((one, 5.0), (two, 0.2)):
        app.task("a", weight=weight)(work)
        app.task("b")(work)
    async with fairq.open_client(url_of(served), token=tenant("ada")) as client, working(one), working(two):
        for queue in ("a", "b"):
            await client.enqueue_many(queue, range(100))
        await wait_until(lambda: done == 200)
    state = await served.app.store.queue("a")
    assert (state.done, state.dead) == (100, 0)


@pytest.mark.parametrize(
    ("queues", "field"), [({"nobody": 1.0}, "queues"), ({"a": 0}, "weight"), ({"a": float("nan")}, "weight")]
)
async def test_queues_that_a_worker_cannot_serve_are_refused(queues: dict[str, float], field: str) -> None:
    app = fairq.Worker(token="x", queues=queues)
    app.task("a")(print)
    with pytest.raises(BadRequest) as caught:
        await app.run()
    assert caught.value.field == field


async def test_a_worker_may_serve_some_of_its_apps_queues(served: Served) -> None:
    app, seen = worker_of(served), []
    app.queues = {"b": 1.0}

    async def work(task: fairq.Task) -> None:
        seen.append(task.queue)

    app.task("a")(work)
    app.task("b")(work)
    async with fairq.open_client(url_of(served), token=tenant("ada")) as client, working(app):
        await client.enqueue("a", 1)
        await client.enqueue("b", 1)
        await wait_until(lambda: bool(seen))
        assert (served.app.queues.count_workers("a"), served.app.queues.count_workers("b")) == (0, 1)
    assert seen == ["b"]
