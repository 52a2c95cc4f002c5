"""Progress that handlers report, as readers of the task's state see it."""

from __future__ import annotations

from typing import Any

import pytest
import trio

import fairq
from fairq.errors import BadRequest, TooLarge
from fairq.server.run import Served
from tests import stores
from tests.server.harness import WORKER, Raw, Refused, raw, tenant
from tests.store.cases import case
from tests.store.waiting import wait_until

from .harness import wait_state, worker_of, working


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_progress_is_seen_while_the_handler_runs(served: Served, ada: fairq.Client, kind: str) -> None:
    app, finish = worker_of(served), trio.Event()

    async def work(task: fairq.Task) -> None:
        await task.progress(0.4, "rows 400 of 1000")
        await finish.wait()

    def plain(task: fairq.Task) -> None:
        trio.from_thread.run(task.progress, 0.4, "rows 400 of 1000")
        trio.from_thread.run(finish.wait)

    app.task("emails")(work if kind == "async" else plain)
    with trio.fail_after(30):
        async with working(app):
            task = await ada.enqueue("emails", 1)

            async def is_told() -> bool:
                return (await task.state()).progress == 0.4

            await wait_until(is_told)
            assert (await task.state()).progress_text == "rows 400 of 1000"
            finish.set()
            state = await wait_state(task, "done")
    assert (state.progress, state.progress_text) == (0.0, "")


async def test_progress_goes_with_its_lease(served: Served, server_store: str) -> None:
    with trio.fail_after(30):
        async with raw(served, tenant("ada")) as ada, raw(served, WORKER) as worker, raw(served, WORKER) as late:
            await ada.enqueue("q", ["a"])
            await worker.attach("q")
            (task,) = await worker.pushed()
            report = {"id": "ada/a", "lease": task["lease"], "fraction": 0.5, "text": "half"}
            await worker.ask("progress", queue="q", reports=[report])
            assert await told(ada) == (0.5, "half")
            await worker.ask("credit", credit=0)
            await worker.settle("q", "nack", task, delay_ms=0)
            assert await told(ada) == (0, "")
            await late.attach("q")
            assert (await late.pushed())[0]["attempt"] == 2
            await worker.ask("progress", queue="q", reports=[report])
            assert await told(ada) == (0, "")
    client = stores.connect(server_store)
    assert client.keys("*progress*") == []
    client.close()


async def told(ada: Raw) -> tuple[float, str]:
    """Ask for the progress of task a."""
    (row,) = (await ada.ask("tasks", queue="q", ids=["a"]))["tasks"]
    return row.get("progress", 0), row.get("progress_text", "")


async def test_a_report_that_is_none_is_refused(served: Served) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"fraction": 1.1}, "fraction"),
        ({"fraction": -0.1}, "fraction"),
        ({"fraction": "0.5"}, "fraction"),
        ({"fraction": True}, "fraction"),
        ({"text": "x" * 201}, "text"),
        ({"text": 5}, "text"),
        ({"lease": 0}, "lease"),
        ({"id": "a b"}, "id"),
        ({"colour": 1}, "colour"),
    ]
    for changes, field in cases:
        with case(changes, field):
            async with raw(served, WORKER) as worker:
                await worker.attach("q")
                good = {"id": "ada/a", "lease": 1, "fraction": 0.5}
                with pytest.raises(Refused) as caught:
                    await worker.ask("progress", queue="q", reports=[good, {**good, **changes}])
                assert caught.value.code == ("too_large" if len(str(changes)) > 200 else "bad_request")
                assert caught.value.field == field


async def test_a_report_of_a_queue_that_is_not_served_is_refused(served: Served) -> None:
    async with raw(served, WORKER) as worker:
        await worker.attach("q")
        for queue, reports in (("r", [{"id": "ada/a", "lease": 1, "fraction": 0}]), ("q", [])):
            with pytest.raises(Refused) as caught:
                await worker.ask("progress", queue=queue, reports=reports)
            assert caught.value.field == ("queue" if reports else "reports")


async def test_a_mistake_is_told_to_the_handler() -> None:
    cases: list[tuple[Any, str]] = [(2, ""), (float("nan"), ""), ("x", ""), (0.5, "x" * 201)]
    for fraction, text in cases:
        with case(fraction, text):
            task = fairq.Task("a", "q", "ada", 1, 5, None, 1)
            with pytest.raises(TooLarge if text else BadRequest):
                await task.progress(fraction, text)
