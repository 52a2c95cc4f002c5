"""Webhooks through the SDK: who may do what, and the copies of tasks for several of them."""

from __future__ import annotations

import pytest
import trio

import fairq
from fairq.errors import BadRequest, Forbidden, NotFound, TooLarge
from fairq.model.tasks import NewTask
from fairq.model.webhooks import MAX_FAN_OUTS, copy_id, webhook_id
from fairq.server.run import Served
from fairq.webhook.signature import write_secret
from tests.server.harness import WORKER, url_of

from .harness import worker_of, working

A, B = "https://a.example/in", "https://b.example/in"
ID = webhook_id(B, "")
SECRET = write_secret(b"s" * 32)


async def test_registrations_are_reported_to_operators_and_with_their_secrets_to_workers(
    served: Served, boss: fairq.OperatorClient
) -> None:
    assert await boss.add_webhook("emails", A, secrets=[SECRET]) == "created"
    assert [await boss.add_webhook("emails", A, secrets=[SECRET]) for _ in range(2)] == ["same", "same"]
    assert await boss.add_webhook("emails", A, name="bill") == "created"
    assert [await boss.pause_webhook("emails", A), await boss.pause_webhook("emails", A)] == [False, True]
    (found, other) = await boss.webhooks("emails")
    assert (found.id, found.url, found.is_paused, found.secret_count, found.secrets) == (
        webhook_id(A, ""),
        A,
        True,
        1,
        (),
    )
    assert (other.name, other.is_paused) == ("bill", False)
    async with fairq.open_client(url_of(served), token=WORKER) as client:
        found = (await client.request("webhooks", {"queue": "emails"}))["webhooks"]
        assert [hook.get("secrets") for hook in found] == [[SECRET], []]
        with pytest.raises(Forbidden):
            await client.request("add_webhook", {"queue": "emails", "url": B})
    assert [await boss.resume_webhook("emails", A), await boss.resume_webhook("emails", A)] == [True, False]
    assert [await boss.remove_webhook("emails", A), await boss.remove_webhook("emails", A)] == [True, False]
    with pytest.raises(NotFound, match="has no webhook"):
        await boss.pause_webhook("emails", A)


async def test_a_copy_is_a_task_of_its_own(served: Served, ada: fairq.Client) -> None:
    """A worker makes it, with the id of one; its tenant may choose no such id."""
    app, seen = worker_of(served), dict[str, str]()

    @app.task("emails")
    async def handle(task: fairq.Task) -> str:
        seen[task.id] = task.webhook
        if task.webhook:
            raise fairq.Reject("no such address")
        assert await task.enqueue("emails", task.payload, id=copy_id(task.id, ID, task.enqueued_at_ms)) in copies
        return "sent"

    copies = list[str]()
    own = await ada.enqueue("emails", {"to": 1}, id="t1", result_ttl=60)
    (row,) = await ada.peek("emails", 5)
    copies.append(copy_id("t1", ID, row.enqueued_at_ms))
    async with working(app):
        assert await own.result() == "sent"
        while (await ada.tasks("emails", copies))[0].state != "dead":
            await trio.lowlevel.checkpoint()
    assert seen == {"t1": "", copies[0]: ID}
    (letter,) = (await ada.dead_letters("emails").page()).letters
    assert (letter.id, letter.webhook, letter.payload) == (copies[0], ID, {"to": 1})
    assert await ada.dead_letters("emails").replay(copies) == ["ok"]
    assert [(row.id, row.webhook) for row in await ada.peek("emails", 5)] == [(copies[0], ID)]
    assert await ada.cancel("emails", copies) == ["ok"]
    with pytest.raises(BadRequest, match="id must be"):
        await ada.enqueue("emails", 1, id=copies[0])
    with pytest.raises(BadRequest, match="id must not be 'from'"):
        await ada.enqueue_tasks("emails", [NewTask(copies[0], b"1")])


async def test_a_queue_has_so_many_webhooks_with_fan_out(boss: fairq.OperatorClient) -> None:
    for n in range(MAX_FAN_OUTS):
        await boss.add_webhook("emails", f"https://a.example/{n}", fan_out=True)
    with pytest.raises(TooLarge, match=f"at most {MAX_FAN_OUTS} webhooks with fan-out"):
        await boss.add_webhook("emails", B, fan_out=True)
    assert await boss.add_webhook("emails", B) == "created"
