"""Tasks before their time, through the SDK: priorities, dedupe keys, cancel, reschedule, peek."""

from __future__ import annotations

import pytest
import trio

import fairq
from fairq.errors import BadRequest
from fairq.server.run import Served
from tests.server.harness import WORKER, Raw, Refused, raw

from .harness import wait_state, worker_of, working


async def test_a_second_task_with_the_dedupe_key_is_the_first_one(served: Served, ada: fairq.Client) -> None:
    first = await ada.enqueue("emails", 1, dedupe_key="welcome-1")
    again = await ada.enqueue("emails", 2, dedupe_key="welcome-1")
    assert (again.id, again.is_duplicate, first.is_duplicate) == (first.id, True, False)
    assert [task.payload for task in await ada.peek("emails")] == [1]


async def test_equal_payloads_are_one_task_whatever_the_order_of_their_keys(served: Served, ada: fairq.Client) -> None:
    payloads = [{"a": 1, "b": [1]}, {"b": [1], "a": 1}, {"a": 1, "b": [2]}]
    first, second, third = await ada.enqueue_many("emails", payloads, dedupe_payload=True)
    assert (second.id, second.is_duplicate) == (first.id, True)
    assert not third.is_duplicate
    with pytest.raises(BadRequest, match="not both"):
        await ada.enqueue("emails", 1, dedupe_payload=True, dedupe_key="k")


async def test_enqueues_of_one_key_at_once_make_one_task(served: Served, ada: fairq.Client) -> None:
    ids = set()

    async def enqueue() -> None:
        ids.add((await ada.enqueue("emails", 1, dedupe_key="k")).id)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(enqueue)
    assert len(ids) == 1
    assert len(await ada.peek("emails")) == 1


async def test_cancelling_a_running_task_cancels_its_handler(served: Served, ada: fairq.Client) -> None:
    app, began, cancelled = worker_of(served, 1), trio.Event(), trio.Event()

    @app.task("emails")
    async def linger(task: fairq.Task) -> None:
        if task.payload == "next":
            return
        began.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    with trio.fail_after(30):
        task = await ada.enqueue("emails", 1)
        async with working(app):
            await began.wait()
            assert await task.cancel() == "running"
            await cancelled.wait()
            await wait_state(task, "cancelled")
            await wait_state(await ada.enqueue("emails", "next"), "done")  # the slot is free again
    assert await task.cancel() == "gone"


async def test_a_worker_that_missed_the_stop_hears_of_it_when_it_renews(
    served: Served, ada: fairq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairq.wire.worker_session._RENEWALS_PER_LEASE", 150)  # every 0.2 s, of a lease of 30 s
    app, began, cancelled = worker_of(served, 1), trio.Event(), trio.Event()

    @app.task("emails")
    async def linger(task: fairq.Task) -> None:
        began.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    with trio.fail_after(30):
        task = await ada.enqueue("emails", 1)
        async with working(app):
            await began.wait()
            (connection,) = (connection for connection in served.app.connections if connection.name == "worker-1")
            held, connection.account.held = connection.account.held, {}  # the server has forgotten who holds it
            assert await task.cancel() == "running"
            connection.account.held = held
            await cancelled.wait()
            await wait_state(task, "cancelled")


async def test_a_delayed_task_is_started_now_or_later(served: Served, ada: fairq.Client) -> None:
    task = await ada.enqueue("emails", 1, delay=3600)
    assert await task.reschedule(delay=7200) == "ok"
    state = await task.state()
    assert state.state == "delayed"
    assert state.at_ms > 0
    async with raw(served, WORKER) as worker:
        await worker.attach("emails")
        assert await task.reschedule() == "ok"
        (pushed,) = await worker.pushed()
        assert pushed["id"] == task.id
    assert await ada.reschedule("emails", ["nobody"]) == ["gone"]


async def test_an_operator_names_tenants_and_a_tenant_touches_only_its_own(
    served: Served, ada: fairq.Client, operator: Raw
) -> None:
    task = await ada.enqueue("emails", "mine", priority=3)
    waiting = await operator.ask("peek", queue="emails", tenant="ada")
    assert [row["id"] for row in waiting["tasks"]] == [f"ada/{task.id}"]
    async with raw(served, "dev-tenant:bob") as bob:
        assert await bob.ask("cancel", queue="emails", ids=[task.id]) == {"outcomes": ["gone"]}
        assert await bob.ask("peek", queue="emails") == {"tasks": []}
        with pytest.raises(Refused, match="forbidden tenant"):
            await bob.ask("peek", queue="emails", tenant="ada")
    assert await operator.ask("cancel", queue="emails", ids=[f"ada/{task.id}"]) == {"outcomes": ["ok"]}
