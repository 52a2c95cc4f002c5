"""Webhooks through the SDK: who may do what, and the copies that a tenant's tasks get."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

import fairq
from fairq.client import operator_verbs
from fairq.errors import BadRequest, Forbidden, NotFound, QuotaExceeded, TooLarge
from fairq.model.webhooks import MAX_FAN_OUTS, webhook_id
from fairq.server.run import Served
from fairq.webhook.signature import write_secret
from tests.server.harness import OPERATOR, WORKER, url_of

from .harness import worker_of, working

A, B = "https://a.example/in", "https://b.example/in"
FIRST, SECOND = sorted(webhook_id(url, "") for url in (A, B))  # the first is that of the task itself
SECRET = write_secret(b"s" * 32)


@pytest.fixture
async def boss(served: Served) -> AsyncIterator[fairq.OperatorClient]:
    """An operator."""
    with trio.fail_after(60):
        async with fairq.open_operator(url_of(served), token=OPERATOR) as client:
            yield client


@pytest.fixture
async def two(boss: fairq.OperatorClient) -> fairq.OperatorClient:
    """An operator that has registered two webhooks with fan-out."""
    for url in (A, B):
        assert await boss.add_webhook("emails", url, fan_out=True) == "created"
    return boss


async def test_registrations_are_told_to_operators_and_with_their_secrets_to_workers(
    served: Served, boss: fairq.OperatorClient
) -> None:
    assert await boss.add_webhook("emails", A, secrets=[SECRET]) == "created"
    assert [await boss.add_webhook("emails", A, secrets=[SECRET]) for _ in range(2)] == ["same", "same"]
    assert await boss.add_webhook("emails", A, name="bill") == "created"
    assert [await boss.pause_webhook("emails", A), await boss.pause_webhook("emails", A)] == [False, True]
    (told, other) = await boss.webhooks("emails")
    assert (told.id, told.url, told.is_paused, told.secret_count, told.secrets) == (webhook_id(A, ""), A, True, 1, ())
    assert (other.name, other.is_paused) == ("bill", False)
    async with fairq.open_client(url_of(served), token=WORKER) as client:
        assert [hook.secrets for hook in await client.ask(operator_verbs.webhooks("emails"))] == [(SECRET,), ()]
        with pytest.raises(Forbidden):
            await client.ask(operator_verbs.add_webhook("emails", B, "", False, []))
    assert [await boss.resume_webhook("emails", A), await boss.resume_webhook("emails", A)] == [True, False]
    assert [await boss.remove_webhook("emails", A), await boss.remove_webhook("emails", A)] == [True, False]
    with pytest.raises(NotFound, match="has no webhook"):
        await boss.pause_webhook("emails", A)


async def test_tenants_may_neither_read_nor_register(ada: fairq.Client) -> None:
    with pytest.raises(Forbidden):
        await ada.ask(operator_verbs.webhooks("emails"))
    with pytest.raises(Forbidden):
        await ada.ask(operator_verbs.remove_webhook("emails", A, ""))


async def test_a_copy_is_a_task_of_its_own(served: Served, ada: fairq.Client, two: fairq.OperatorClient) -> None:
    app, seen = worker_of(served), dict[str, str]()

    @app.task("emails")
    async def handle(task: fairq.Task) -> str:
        seen[task.id] = task.webhook
        if task.webhook == SECOND:
            raise fairq.Reject("no such address")
        return "sent"

    own = await ada.enqueue("emails", {"to": 1}, id="t1", result_ttl=60)
    copy = f"t1+{SECOND}"
    assert [(row.id, row.webhook) for row in await ada.peek("emails", 5)] == [("t1", FIRST), (copy, SECOND)]
    assert (await ada.enqueue("emails", {"to": 1}, id="t1")).is_duplicate
    with trio.fail_after(30):
        async with working(app):
            assert await own.result() == "sent"
            while (await ada.tasks("emails", [copy]))[0].state != "dead":
                await trio.lowlevel.checkpoint()
    assert seen == {"t1": FIRST, copy: SECOND}
    (letter,) = (await ada.dead_letters("emails").page()).letters
    assert (letter.id, letter.webhook, letter.payload) == (copy, SECOND, {"to": 1})
    assert await ada.dead_letters("emails").replay([copy]) == ["ok"]
    assert await ada.cancel("emails", [copy]) == ["ok"]
    with pytest.raises(BadRequest, match="id must be"):
        await ada.enqueue("emails", 1, id=copy)


async def test_a_batch_is_complete_when_all_have_got_all_of_it(
    served: Served, ada: fairq.Client, two: fairq.OperatorClient
) -> None:
    app = worker_of(served)

    @app.task("emails")
    async def handle(task: fairq.Task) -> None:
        if task.webhook == SECOND:
            raise fairq.Reject("no")

    batch = await ada.open_batch("emails", id="b")
    await ada.enqueue_many("emails", ["x", "y"], batch=batch.id)
    await batch.close()
    with trio.fail_after(30):
        async with working(app):
            state = await batch.wait()
    assert (state.total, state.done, state.dead) == (4, 2, 2)


async def test_many_tasks_are_stored_in_parts_and_each_is_copied(ada: fairq.Client, boss: fairq.OperatorClient) -> None:
    for n in range(MAX_FAN_OUTS):
        await boss.add_webhook("emails", f"https://a.example/{n}", fan_out=True)
    ids = [f"t{n}" for n in range(100)]
    assert not any(task.is_duplicate for task in await ada.enqueue_many("emails", range(100), ids=ids))
    (row,) = await boss.tenants("emails")
    assert row.ready == 100 * MAX_FAN_OUTS
    assert all(task.is_duplicate for task in await ada.enqueue_many("emails", range(100), ids=ids))
    assert (await boss.tenants("emails"))[0].ready == 100 * MAX_FAN_OUTS
    with pytest.raises(TooLarge, match=f"at most {MAX_FAN_OUTS} webhooks with fan-out"):
        await boss.add_webhook("emails", B, fan_out=True)


async def test_what_cannot_be_copied_is_refused_by_name(ada: fairq.Client, two: fairq.OperatorClient) -> None:
    with pytest.raises(BadRequest, match="replace is not possible where tasks are copied"):
        await ada.enqueue("emails", 1, dedupe_key="k", replace=True)
    await two.set_limits("emails", "ada", queued=3)
    await ada.enqueue("emails", 1)
    with pytest.raises(QuotaExceeded):
        await ada.enqueue("emails", 2)
    (row,) = await two.tenants("emails")
    assert row.ready == 2
