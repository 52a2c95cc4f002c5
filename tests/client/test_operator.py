"""The SDK for operators, against a real server."""

from __future__ import annotations

import inspect
import re

import pytest

import fairq
from fairq.client import batch, client, dead_letters, events, operator, requests, schedules
from fairq.model.cancelling import CancelProgress
from fairq.model.history import History
from fairq.server.run import Served
from fairq.wire.terms import Role
from fairq.wire.verbs import VERBS
from tests.server.harness import WORKER, raw, tenant, url_of
from tests.store.cases import raises_for


async def test_an_operator_tunes_a_queue_and_sees_it(
    boss: fairq.OperatorClient, ada: fairq.Client, served: Served
) -> None:
    await ada.enqueue_many("emails", range(3))
    await boss.configure("emails", reserve=20, max_attempts=7)
    async with raw(served, WORKER) as worker:
        await worker.attach("emails", credit=0, name="mill")
        (queue,) = await boss.queues()
        assert (queue.queue, queue.ready, queue.workers, queue.made_by) == ("emails", 3, 1, "ada")
        assert (queue.settings.reserve, queue.settings.max_attempts, queue.settings.share) == (20, 7, "time")
        assert [(each.worker, each.queues, each.credit) for each in await boss.workers()] == [("mill", ["emails"], 0)]
        assert queue.takers == "some"
        assert await boss.drain_worker("mill") == 1
    assert [await boss.set_weight("emails", "ada", weight) for weight in (3, 2.5)] == [1, 3]
    assert [(each.tenant, each.weight, each.ready) for each in await boss.tenants("emails")] == [("ada", 2.5, 3)]
    assert (await boss.peek("emails", tenant="ada"))[0].payload == 0
    with pytest.raises(fairq.NotFound):
        await boss.tenants("letters")
    with raises_for("no_such_setting"):
        await boss.configure("emails", no_such_setting=1)  # type: ignore[call-arg]


async def test_a_task_names_its_worker_and_a_worker_its_tasks(
    boss: fairq.OperatorClient, ada: fairq.Client, served: Served
) -> None:
    task = await ada.enqueue("emails", 1)
    assert (await boss.queues())[0].takers == "none"
    async with raw(served, WORKER) as worker:
        await worker.attach("emails", name="mill")
        await worker.pushed()
        assert (await task.state()).worker == "mill"
        assert [state.worker for state in await ada.tasks("emails", [task.id])] == ["mill"]
        found = await boss.worker_tasks("mill")
        assert [(each.worker, each.held) for each in found.workers] == [("mill", 1)]
        assert [(each.id, each.queue, each.tenant, each.attempt) for each in found.tasks] == [
            (f"ada/{task.id}", "emails", "ada", 1)
        ]
        assert found.unanswered == []
    with pytest.raises(fairq.NotFound):
        await boss.worker_tasks("nobody")


async def test_attempts_are_found_by_what_they_have(
    boss: fairq.OperatorClient, ada: fairq.Client, served: Served
) -> None:
    async with raw(served, WORKER) as worker:
        await worker.attach("emails", name="mill", credit=2)
        runs = await ada.enqueue("emails", 1, name="resize")
        await worker.pushed()
        fails = await ada.enqueue("emails", 2, name="post")
        await worker.settle("emails", "nack", *await worker.pushed(), error="no route", delay_ms=60_000)
        found = await boss.attempts("emails")
        (row,) = found.running
        assert (row.id, row.state, row.worker, row.name) == (f"ada/{runs.id}", "running", "mill", "resize")
        (row,) = found.ended
        assert (row.id, row.state, row.error, row.attempt) == (f"ada/{fails.id}", "failed", "no route", 1)
        for which in {"state": "lost"}, {"tenant": "bob"}, {"name": "none"}, {"error": "none"}:
            found = await boss.attempts("emails", **which)  # type: ignore[arg-type]
            assert (found.running, found.ended) == ([], [])
    with raises_for("count"):
        await boss.attempts("emails", count=501)


async def test_limits_and_opening_hours_are_set_and_read(boss: fairq.OperatorClient, ada: fairq.Client) -> None:
    await ada.enqueue("emails", 1)
    assert (await boss.set_limits("emails", "ada", max_running=3, rate=0.5)).max_running is None
    await boss.set_limits("emails", dead=9)
    held = await boss.limits("emails", "ada")
    assert (held.limits.max_running, held.limits.rate, held.limits.dead) == (3, 0.5, None)
    assert (held.holds.max_running, held.holds.rate, held.holds.dead) == (3, 0.5, 9)
    assert held.opening_hours == []
    assert await boss.set_opening_hours("emails", "mon-fri 8:00-17:00 Europe/Copenhagen", "ada") == ""
    (hours,) = (await boss.limits("emails", "ada")).opening_hours
    assert (hours.of, hours.text) == ("tenant", "mon-fri 08:00-17:00 Europe/Copenhagen")
    assert await boss.set_opening_hours("emails", "", "ada") == hours.text
    assert not await boss.pause("emails", "ada")
    assert await boss.pause("emails", "ada")
    assert (await boss.tenants("emails"))[0].is_paused
    assert await boss.resume("emails", "ada")
    assert not await boss.pause("emails")
    assert (await boss.queues())[0].is_paused
    assert (await boss.report("emails", "ada")).starts == 0


async def test_history_comes_in_columns_with_types(
    boss: fairq.OperatorClient, ada: fairq.Client, served: Served
) -> None:
    await ada.enqueue_many("emails", range(3))
    assert (await boss.history("emails")).times_ms == []
    await served.app.recorder.flush()
    found = await boss.history("emails", "14d", tenants=["ada", "bob"])
    assert isinstance(found, History)
    assert (found.step_ms, found.queue.enqueued, found.totals.enqueued) == (900_000, [3], 3)
    assert [(row.tenant, row.enqueued, row.delivered) for row in found.tenants] == [
        ("ada", [3], [None]),
        ("bob", [0], [None]),
    ]
    assert [row.totals.p99_ms for row in found.tenants] == [None, None]


MODULES = (batch, client, dead_letters, events, operator, requests, schedules)  # where the SDK's requests are made


def test_every_request_of_tenants_and_operators_has_its_call() -> None:
    """Enqueues and waits for results have ways of their own, for they share frames."""
    ours = {kind.type for kind, verb in VERBS.items() if verb.roles & {Role.TENANT, Role.OPERATOR}}
    text = "".join(inspect.getsource(each) for each in MODULES)
    asked = set(re.findall(r'(?:request|request_until|ask_of_each|_change|_sweep)\(\s*"(\w+)"', text))
    elsewhere = {"enqueue", "wait_tasks", "ping"}
    assert ours - asked - elsewhere == set()


async def test_a_purge_of_a_queue_tells_after_each_step_how_far_it_is_in_all(
    boss: fairq.OperatorClient, ada: fairq.Client, served: Served
) -> None:
    await ada.enqueue_many("emails", range(3))
    async with fairq.open_client(url_of(served), token=tenant("bob")) as bob:
        await bob.enqueue_many("emails", range(2), delay=60)
    counted = [step async for step in boss.purging_queue("emails", dry_run=True)]
    assert counted[-1] == CancelProgress(found=5, looked=5, waiting=2), "the last of the tenants' still wait"
    done = [step async for step in boss.purging_queue("emails")]
    assert done[-1] == CancelProgress(found=5, cancelled=5, looked=5)
    for steps in (counted, done):
        assert [step.looked for step in steps] == sorted(step.looked for step in steps)
        assert not any(step.cursor for step in steps)
