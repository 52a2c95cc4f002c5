"""Several servers have workers that wait: a task wakes one, and the others look where that was not enough."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from attrs import frozen

from fairq.model.tasks import NewTask
from fairq.server.engine.dispatch.claiming import MAX_PACE_S, Phase
from fairq.server.engine.net.server_slots import ServerSlots
from fairq.server.run import Served
from fairq.store.covered import Covered
from tests.store.waiting import wait_until

from .harness import OPERATOR, PRODUCER, WORKER, Raw, daily, noted_calls, raw, running, tenant

ADA = {"queue": "q", "tenant": "ada"}
CLOSED = daily(round(time.time() * 1000), 60, 120)

pytestmark = pytest.mark.usefixtures("no_polls")


@frozen
class Several:
    """A server without workers, to which tasks come, and two with a worker each."""

    near: Served
    servers: tuple[Served, Served]
    workers: tuple[Raw, Raw]
    ada: Raw

    async def pushed(self) -> tuple[int, dict[str, Any]]:
        """Wait until a task was pushed; returns to which worker, and the task."""
        found: list[tuple[int, dict[str, Any]]] = []
        async with trio.open_nursery() as nursery:

            async def listen(number: int) -> None:
                found.append((number, (await self.workers[number].pushed())[0]))
                nursery.cancel_scope.cancel()

            nursery.start_soon(listen, 0)
            nursery.start_soon(listen, 1)
        ((number, task),) = found
        return number, task

    async def all_asleep(self) -> None:
        """Wait until the servers have found that there is nothing more."""
        claims = [server.app.queues.dispatchers["q"].claiming for server in self.servers]
        await wait_until(lambda: all(each.is_empty and each.phase is Phase.WAITING for each in claims))


@asynccontextmanager
async def several(store: str) -> AsyncIterator[Several]:
    async with (
        running(store) as near,
        running(store) as one,
        running(store) as two,
        raw(one, WORKER) as here,
        raw(two, WORKER) as there,
        raw(near, tenant("ada")) as ada,
    ):
        await ada.enqueue("q", ["made"])
        await here.attach("q", credit=2, name="here")
        await here.settle("q", "ack", *await here.pushed(1))
        await there.attach("q", credit=2, name="there")
        await wait_until(lambda: near.app.worker_registry.elsewhere.whole("q") == 4)
        found = Several(near, (one, two), (here, there), ada)
        await found.all_asleep()
        yield found


def wakes(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have enqueues wake this server first."""
    monkeypatch.setattr(ServerSlots, "choose", lambda *_: server)


async def test_a_task_wakes_one_of_the_servers_that_have_workers(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairq.server.engine.queues.LATER_MS", 3_600_000)
    async with several(server_store) as each:
        claims = noted_calls(monkeypatch, "claim").args
        for n in range(8):
            claims.clear()
            await each.ada.enqueue("q", [f"task-{n}"])
            number, task = await each.pushed()
            await each.workers[number].settle("q", "ack", task)
            await each.all_asleep()
            assert {name.partition("/")[0] for _, name, *_ in claims} == {each.servers[number].app.name}


async def test_a_server_without_room_passes_the_word_on(server_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairq.server.engine.queues.LATER_MS", 3_600_000)
    async with several(server_store) as each:
        await each.ada.enqueue("q", ["fills", "up"])
        full, _ = await each.pushed()
        wakes(each.servers[full].app.name, monkeypatch)
        await each.ada.enqueue("q", ["next"])
        number, task = await each.pushed()
        assert (number, task["id"]) == (1 - full, "next")


async def test_a_server_whose_claim_was_full_passes_the_word_on(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairq.server.engine.queues.LATER_MS", 3_600_000)
    async with several(server_store) as each:
        wakes(each.servers[0].app.name, monkeypatch)
        await each.ada.enqueue("q", ["a", "b", "c"])
        assert len(await each.workers[0].pushed(2)) == 2
        assert len(await each.workers[1].pushed()) == 1


async def test_what_a_server_was_woken_for_in_vain_others_find(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with several(server_store) as each:
        wakes("gone", monkeypatch)
        await each.ada.enqueue("q", ["a"])
        _, task = await each.pushed()
        assert task["id"] == "a"


async def test_more_tasks_than_a_server_has_slots_for_wake_all(server_store: str) -> None:
    async with several(server_store) as each:
        assert each.near.app.worker_registry.elsewhere.choose("q", 1) in {server.app.name for server in each.servers}
        assert str(each.near.app.queues.promise_claim("q", "ada", 1)).startswith("wake ")
        assert each.near.app.queues.promise_claim("q", "ada", 3) == "all"
        assert each.near.app.queues.promise_claim("another", "ada", 1) == "all"


@pytest.mark.parametrize("goes", ["to another queue", "with its worker"])
async def test_tasks_whose_room_has_gone_are_announced_to_the_others(goes: str, one: Served, two: Served) -> None:
    """The one worker of the server at which they come has a place for either of two queues."""
    async with raw(one, tenant("ada")) as ada, raw(one, WORKER) as near, raw(two, WORKER) as far:
        queues = {"made-a": "a", "made-b": "b"}
        for id, queue in queues.items():
            await ada.enqueue(queue, [id])
        await near.attach("a", "b", credit=1)
        for _ in range(2):
            tasks = await near.pushed()
            await near.settle(queues[tasks[0]["id"]], "ack", *tasks)
        await near.quiet()
        await far.attach("a", "b", credit=1)
        await far.quiet()
        await trio.sleep(MAX_PACE_S)

        (worker,) = one.app.queues.dispatchers["b"].capacity.workers
        covered: list[str | Covered] = []

        async def put(queue: str) -> None:
            covered.append(one.app.queues.promise_claim(queue, "ada", 1))
            if goes == "with its worker":
                worker.account.credit = 0  # as of one that drains, or has gone
            await one.app.store.enqueue(queue, "ada", [NewTask("ada/new", b"1")], notify=covered[-1])

        async with trio.open_nursery() as nursery:  # in the same turn
            for queue in ("a", "b") if goes == "to another queue" else ("b",):
                nursery.start_soon(put, queue)
        assert [type(each) for each in covered].count(Covered) == 1, "two queues get no promise of one place"
        assert [task["id"] for task in await far.pushed()] == ["new"]


async def test_the_claim_that_a_producers_task_is_promised_leaves_behind_it(one: Served) -> None:
    """No other server is notified: a claim that left first would find nothing, and the task would wait for a tick."""
    async with raw(one, PRODUCER) as shop, raw(one, WORKER) as near:
        tasks = [{"id": f"t{n}", "tenant": "ada", "payload": 1} for n in range(16)]
        await shop.ask("enqueue", queue="q", tasks=tasks[:1])
        await near.attach("q", credit=1)
        for task in tasks[1:]:
            await near.settle("q", "ack", *await near.pushed())
            await near.quiet()
            await trio.sleep(MAX_PACE_S)  # then a task is promised a claim
            await shop.ask("enqueue", queue="q", tasks=[task])


async def test_a_worker_hears_of_a_task_that_came_right_after_it_attached(one: Served, two: Served) -> None:
    """Between the first claim and the subscription to the queue's channel lies a gap."""
    async with raw(one, tenant("ada")) as ada:
        for number in range(10):
            async with raw(two, WORKER) as worker:
                await worker.attach(f"q{number}", credit=1)
                await ada.enqueue(f"q{number}", ["a"])
                await worker.pushed()


@pytest.mark.parametrize(
    ("verb", "before", "after", "started"),
    [
        ("set_paused", {**ADA, "paused": True}, {**ADA, "paused": False}, 0),
        ("set_paused", {"queue": "q", "paused": True}, {"queue": "q", "paused": False}, 0),
        ("set_limits", {**ADA, "limits": {"max_running": 1}}, {**ADA, "limits": {"max_running": 2}}, 1),
        ("set_limits", {"queue": "q", "limits": {"max_running": 1}}, {"queue": "q", "limits": {"max_running": 2}}, 1),
        ("configure", {"queue": "q", "settings": {"reserve": 50}}, {"queue": "q", "settings": {"reserve": 0}}, 1),
        ("set_opening_hours", {**ADA, "opening_hours": CLOSED}, {**ADA, "opening_hours": ""}, 0),
    ],
)
async def test_what_an_operator_lets_start_at_one_server_wakes_a_worker_at_the_other(
    one: Served, two: Served, verb: str, before: dict[str, Any], after: dict[str, Any], started: int
) -> None:
    async with raw(one, OPERATOR) as operator, raw(one, tenant("ada")) as ada, raw(two, WORKER) as worker:
        await operator.ask(verb, **before)
        await ada.enqueue("q", ["a", "b"])
        await worker.attach("q", credit=2)
        assert len(await worker.pushed(started)) == started
        await worker.quiet()
        await operator.ask(verb, **after)
        await worker.pushed()


@pytest.mark.parametrize("verb", ["replay", "reschedule", "close_batch"])
async def test_a_task_that_a_verb_makes_ready_at_one_server_wakes_a_worker_at_the_other(
    one: Served, two: Served, verb: str
) -> None:
    async with raw(one, tenant("ada")) as ada, raw(two, WORKER) as worker:
        await worker.attach("q")
        if verb == "replay":
            await ada.enqueue("q", ["a"])
            await worker.settle("q", "reject", *await worker.pushed())
        elif verb == "reschedule":
            await ada.enqueue("q", ["a"], delay_ms=7_200_000)
        else:
            await ada.ask("open_batch", queue="q", id="a", on_complete=1)
        await worker.quiet()
        named: dict[str, Any] = {"id": "a"} if verb == "close_batch" else {"ids": ["a"]}
        await ada.ask(verb, queue="q", **named)
        await worker.pushed()
