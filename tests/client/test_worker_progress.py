"""Progress that handlers report, as readers of the task's state see it."""

from __future__ import annotations

from typing import Any

import pytest
import trio

import fairq
from fairq.errors import BadRequest, TooLarge
from fairq.server.run import Served
from tests import stores
from tests.server.harness import WORKER, Raw, raw, tenant
from tests.store.cases import case
from tests.store.waiting import wait_until

from .harness import wait_state, worker_of, working


async def test_progress_is_seen_while_the_handler_runs(served: Served, ada: fairq.Client) -> None:
    app, finish = worker_of(served), trio.Event()

    @app.task("emails")
    def work(task: fairq.Task) -> None:
        trio.from_thread.run(task.progress, 0.4, "rows 400 of 1000")
        trio.from_thread.run(finish.wait)

    async with working(app):
        task = await ada.enqueue("emails", 1)

        async def is_reported() -> bool:
            return (await task.state()).progress == 0.4

        await wait_until(is_reported)
        assert (await task.state()).progress_text == "rows 400 of 1000"
        finish.set()
        state = await wait_state(task, "done")
    assert (state.progress, state.progress_text) == (0.0, "")


async def test_progress_goes_with_its_lease(served: Served, server_store: str) -> None:
    async with raw(served, tenant("ada")) as ada, raw(served, WORKER) as worker, raw(served, WORKER) as late:
        await ada.enqueue("q", ["a"])
        await worker.attach("q")
        (task,) = await worker.pushed()
        report = {"id": "ada/a", "lease": task["lease"], "fraction": 0.5, "text": "half"}
        await worker.ask("progress", queue="q", reports=[report])
        assert await progress_of_a(ada) == (0.5, "half")
        await worker.ask("credit", credit=0)
        await worker.settle("q", "nack", task, delay_ms=0)
        assert await progress_of_a(ada) == (0, "")
        await late.attach("q")
        assert (await late.pushed())[0]["attempt"] == 2
        await worker.ask("progress", queue="q", reports=[report])
        assert await progress_of_a(ada) == (0, "")
    client = stores.connect(server_store)
    assert client.keys("*progress*") == []
    client.close()


async def progress_of_a(ada: Raw) -> tuple[float, str]:
    """Ask for the progress of task a."""
    (row,) = (await ada.ask("tasks", queue="q", ids=["a"]))["tasks"]
    return row.get("progress", 0), row.get("progress_text", "")


async def test_a_mistake_is_reported_to_the_handler() -> None:
    cases: list[tuple[Any, str]] = [(2, ""), (float("nan"), ""), ("x", ""), (0.5, "x" * 201)]
    for fraction, text in cases:
        with case(fraction, text):
            task = fairq.Task("a", "q", "ada", 1, 5, None, 1)
            with pytest.raises(TooLarge if text else BadRequest):
                await task.progress(fraction, text)
