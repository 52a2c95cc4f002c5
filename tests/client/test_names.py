"""A task's name, what kind of task it is, through the SDK: its worker is told, and listings show it."""

from __future__ import annotations

import pytest
import trio

import fairq
from fairq.errors import BadRequest
from fairq.server.run import Served
from tests.store.waiting import wait_until

from .harness import worker_of, working


async def test_a_worker_is_told_the_name_of_a_task(served: Served, ada: fairq.Client) -> None:
    app, seen = worker_of(served), dict[str, str]()

    @app.task("emails")
    async def handle(task: fairq.Task) -> None:
        seen[task.payload] = task.name
        if task.payload == "bad":
            raise fairq.Reject("no")

    long = "n" * 128
    await ada.enqueue("emails", "plain")
    await ada.enqueue_many("emails", ["one", "two"], name="wélcome", delay=0.01)
    await ada.enqueue("emails", "x" * 70_000, name=long)
    bad = await ada.enqueue("emails", "bad", name="kind", dedupe_key="k")
    assert [task.name for task in await ada.peek("emails", 10) if task.payload in ("plain", "bad")] == ["", "kind"]
    with trio.fail_after(30):
        async with working(app):
            await wait_until(lambda: len(seen) == 5)
        await wait_until_dead(bad)
    assert seen == {"plain": "", "one": "wélcome", "two": "wélcome", "x" * 70_000: long, "bad": "kind"}
    letters = (await ada.dead_letters("emails").page()).letters
    assert [(letter.payload, letter.name) for letter in letters] == [("bad", "kind")]


async def wait_until_dead(task: fairq.EnqueuedTask) -> None:
    """Wait until it is a dead letter."""
    while (await task.state()).state != "dead":
        await trio.lowlevel.checkpoint()


async def test_a_schedules_tasks_have_its_name(served: Served, ada: fairq.Client) -> None:
    app, seen = worker_of(served), list[str]()

    @app.task("emails")
    async def handle(task: fairq.Task) -> None:
        seen.append(task.name)

    await ada.schedule("emails", "nightly", 1, every=1)
    with trio.fail_after(30):
        async with working(app):
            await wait_until(lambda: bool(seen))
    assert seen[0] == "nightly"
    with pytest.raises(BadRequest, match="name"):
        await ada.enqueue("emails", 1, name="n" * 129)
