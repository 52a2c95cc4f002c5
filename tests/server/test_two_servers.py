"""Any number of servers on one store: each task once, wake-ups across servers, and one may go."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from .harness import OPERATOR, WORKER, Raw, daily, raw, running, tenant

ADA = {"queue": "q", "tenant": "ada"}
CLOSED = daily(round(time.time() * 1000), 60, 120)


async def test_each_task_runs_once_whichever_server_has_it(server_store: str) -> None:
    ids = {f"id-{number}" for number in range(60)}
    done: list[str] = []

    async with running(server_store) as one, running(server_store) as two:
        async with raw(one, tenant("ada")) as ada, raw(two, tenant("bob")) as bob:

            async def work(served: object, task_status: trio.TaskStatus[None]) -> None:
                async with raw(served, WORKER) as worker:  # type: ignore[arg-type]
                    await worker.attach("q", credit=7)
                    task_status.started()
                    while True:
                        tasks = await worker.pushed()
                        assert {task["attempt"] for task in tasks} == {1}
                        assert set(await worker.settle("q", "ack", *tasks)) == {"ok"}
                        done.extend(task["id"] for task in tasks)
                        if len(done) >= len(ids):
                            nursery.cancel_scope.cancel()

            async with trio.open_nursery() as nursery:
                await nursery.start(work, one)
                await nursery.start(work, two)
                listed = sorted(ids)
                await ada.enqueue("q", listed[:30])
                await bob.enqueue("q", listed[30:])
        assert sorted(done) == sorted(ids)
        assert (await one.app.store.queue("q")).done == len(ids)


@pytest.mark.usefixtures("no_polls")
async def test_a_worker_hears_of_a_task_that_came_right_after_it_attached(server_store: str) -> None:
    """Between the first claim and the subscription to the queue's channel lies a gap."""
    async with running(server_store) as one, running(server_store) as two, raw(one, tenant("ada")) as ada:
        for number in range(10):
            async with raw(two, WORKER) as worker:
                await worker.attach(f"q{number}", credit=1)
                await ada.enqueue(f"q{number}", ["a"])
                await worker.pushed()


@asynccontextmanager
async def two_servers(store: str) -> AsyncIterator[tuple[Raw, Raw, Raw]]:
    """An operator and a tenant at one server, and a worker at the other."""
    async with (
        running(store) as one,
        running(store) as two,
        raw(one, OPERATOR) as operator,
        raw(one, tenant("ada")) as ada,
        raw(two, WORKER) as worker,
    ):
        yield operator, ada, worker


@pytest.mark.usefixtures("no_polls")
@pytest.mark.parametrize(
    ("verb", "before", "after", "started"),
    [
        ("set_paused", {**ADA, "paused": True}, {**ADA, "paused": False}, 0),
        ("set_paused", {"queue": "q", "paused": True}, {"queue": "q", "paused": False}, 0),
        ("set_limits", {**ADA, "limits": {"max_running": 1}}, {**ADA, "limits": {"max_running": 2}}, 1),
        ("configure", {"queue": "q", "settings": {"reserve": 50}}, {"queue": "q", "settings": {"reserve": 0}}, 1),
        ("set_opening_hours", {**ADA, "opening_hours": CLOSED}, {**ADA, "opening_hours": ""}, 0),
    ],
)
async def test_what_an_operator_lets_start_at_one_server_wakes_a_worker_at_the_other(
    server_store: str, verb: str, before: dict[str, Any], after: dict[str, Any], started: int
) -> None:
    async with two_servers(server_store) as (operator, ada, worker):
        await operator.ask(verb, **before)
        await ada.enqueue("q", ["a", "b"])
        await worker.attach("q", credit=2)
        assert len(await worker.pushed(started)) == started
        await worker.quiet()
        await operator.ask(verb, **after)
        await worker.pushed()


@pytest.mark.usefixtures("no_polls")
@pytest.mark.parametrize("verb", ["replay", "reschedule", "close_batch"])
async def test_a_task_that_a_verb_makes_ready_at_one_server_wakes_a_worker_at_the_other(
    server_store: str, verb: str
) -> None:
    async with two_servers(server_store) as (_, ada, worker):
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
