"""What a handler or a server may do wrong, and the worker lives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
import trio

import fairq
from fairq.errors import BadRequest
from fairq.model.tasks import Settlement
from fairq.server.run import Served
from fairq.store.store import Store
from tests.server.harness import tenant, url_of

from .harness import wait_state, worker_of, working
from .runtimes import Service, on_both, wait_until


async def test_a_handler_that_raises_while_it_is_cancelled_ends_alone(served: Served) -> None:
    app, begun, ran = worker_of(served, 1), trio.Event(), []

    async def angry() -> None:
        try:
            begun.set()
            await trio.sleep_forever()
        finally:
            raise ValueError("not now")

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        ran.append(task.payload)
        if task.payload == "angry":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(angry)
                nursery.start_soon(trio.sleep_forever)

    async with fairq.open_client(url_of(served), token=tenant("ada")) as ada, working(app):
        await ada.enqueue("emails", "angry", id="angry")
        await begun.wait()
        assert await ada.cancel("emails", ["angry"]) == ["running"]
        await wait_state(await ada.enqueue("emails", "next"), "done")
    assert ran == ["angry", "next"]


async def test_a_settlement_that_is_refused_ends_alone(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    app, settle, all_run = worker_of(served), Store.settle, trio.Event()
    waiting = 0

    async def picky(self: Store, queue: str, settlements: Sequence[Settlement]) -> Any:
        if any(each.id == "ada/bad" for each in settlements):
            raise BadRequest("this one is not understood", field="settlements")
        return await settle(self, queue, settlements)

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 5:
            all_run.set()
        await all_run.wait()  # so that they are settled in one frame

    monkeypatch.setattr(Store, "settle", picky)
    async with fairq.open_client(url_of(served), token=tenant("ada")) as ada, working(app):
        tasks = [await ada.enqueue("emails", n, id=id) for n, id in enumerate(["a", "b", "bad", "c", "d"])]
        for task in tasks:
            if task.id != "bad":
                await wait_state(task, "done")
        assert (await tasks[2].state()).state == "leased"
        await wait_state(await ada.enqueue("emails", "more"), "done")


@on_both
async def test_a_worker_that_stops_ends_at_once_when_its_last_settlement_cannot_be_sent(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is dropped when the event loop has decided to sleep: what it wakes must not wait for the next heartbeat."""
    monkeypatch.setattr("fairq.wire.worker_session.encode_settlement", lambda _: object())
    app = service.worker()

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        app.stop()
        await wait_until(lambda: app._run.driver.session.is_quiet)

    async with service.client() as ada:
        await ada.enqueue("emails", 1)
        with anyio.fail_after(5):
            await app.run()
