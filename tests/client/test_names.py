"""A task's name, what kind of task it is, through the SDK: its worker is told, and listings show it."""

from __future__ import annotations

import pytest

import fairq
from fairq.errors import BadRequest
from fairq.server.run import Served
from tests.store.waiting import wait_until

from .harness import worker_of, working


async def test_a_schedules_tasks_have_its_name(served: Served, ada: fairq.Client) -> None:
    app, seen = worker_of(served), list[str]()

    @app.task("emails")
    async def handle(task: fairq.Task) -> None:
        seen.append(task.name)

    await ada.schedule("emails", "nightly", 1, every=1)
    async with working(app):
        await wait_until(lambda: bool(seen))
    assert seen[0] == "nightly"
    with pytest.raises(BadRequest, match="name"):
        await ada.enqueue("emails", 1, name="n" * 129)
