"""Payloads of more than 64 KiB, from the client to the worker and to readers."""

from __future__ import annotations

import orjson

import fairq
from fairq.server.run import Served
from fairq.store.keys import queue_prefix
from tests.sending import send_message
from tests.server.harness import OPERATOR, raw, tenant

from .harness import wait_state, worker_of, working

ROWS = [{"id": n, "email": f"user{n}@example.com", "tags": ["a", "b"], "price": n * 1.5} for n in range(13_600)]


async def test_what_is_no_json_is_rejected_by_the_worker_and_spoils_nothing(served: Served, ada: fairq.Client) -> None:
    app = worker_of(served)

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        assert task.payload == "fine"

    rubbish = b"{" * 70_000
    async with raw(served, tenant("ada")) as enemy, raw(served, OPERATOR) as operator:
        tasks = [{"id": "bad", "payload_bytes": len(rubbish)}]
        frame = {"type": "enqueue", "ref": 1, "queue": "emails", "tasks": tasks}
        await send_message(enemy.transport, orjson.dumps(frame) + b"\n" + rubbish)
        assert (await enemy.receive())["body"]["outcomes"] == ["ok"]
        fine = await ada.enqueue("emails", "fine")
        assert [each.payload for each in await ada.peek("emails")] == [rubbish.decode(), "fine"]
        async with working(app):
            await wait_state(fine, "done")
            state = await wait_state(fairq.EnqueuedTask("bad", "emails", client=ada), "dead")
        assert (state.reason, state.error.partition(": ")[0]) == ("rejected", "the payload is not JSON")
        counts = (await operator.ask("queues"))["queues"]
        assert [row["dead"] for row in counts if row["queue"] == "emails"] == [1]


async def test_what_the_store_has_lost_spoils_nothing_else(served: Served, ada: fairq.Client) -> None:
    app, call, prefix = worker_of(served), served.app.store.connection.call, queue_prefix("emails")

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        raise fairq.Reject("unwanted")

    tasks = await ada.enqueue_many("emails", [ROWS, "record", "fine"], ids=["payload", "record", "fine"])
    assert await call("HDEL", f"{prefix}:payloads", "ada/payload") == 1
    assert [each.payload for each in await ada.peek("emails")] == ["", "record", "fine"]
    async with working(app):
        for task in tasks:
            await wait_state(task, "dead")
    assert (await tasks[0].state()).error.startswith("the payload is not JSON")
    assert await call("HDEL", f"{prefix}:tasks", "ada/record") == 1
    letters = ada.dead_letters("emails")
    assert {each.id: each.payload async for each in letters.walk()} == {"payload": "", "record": "", "fine": "fine"}
