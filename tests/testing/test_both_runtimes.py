"""The service in memory under asyncio and under trio, with the real clock."""

from __future__ import annotations

import time

import anyio
import pytest

import fairq
import fairq.testing
from tests.client.runtimes import on_both

app = fairq.Worker()


@app.task("emails", name="async")
async def send(task: fairq.Task) -> str:
    """Send in the event loop, at the second attempt."""
    await anyio.lowlevel.checkpoint()
    if task.attempt == 1:
        raise fairq.Retry("busy", delay=3600)
    task.then("emails", {"after": task.id}, name="plain")
    return "sent"


@app.task("emails", name="plain")
def write(task: fairq.Task) -> str:
    """Write in a thread."""
    if task.payload is None:
        raise fairq.Reject("nothing to write")
    return "written"


@on_both
async def test_a_day_passes_at_once() -> None:
    began = time.monotonic()
    async with fairq.testing.run(app) as service:
        start = service.now
        task = await service.enqueue("emails", {"to": "ada"}, name="async", delay=86_400, result_ttl=3600, events=True)
        empty = await service.enqueue("emails", None, name="plain")
        await service.drain()
        assert (service.now - start).total_seconds() >= 86_400 + 3600
        assert (task.outcome, task.attempts, await task.result()) == ("done", 2, "sent")
        assert (empty.outcome, empty.reason) == ("dead", "rejected")
        assert [event.event for event in (await service.read_events("emails", after=0)).events] == ["failed", "done"]
        assert len(service._memory.queue("emails").records) == 3
    assert time.monotonic() - began < 3600


@on_both
async def test_a_result_is_awaited_while_the_service_runs() -> None:
    async with fairq.testing.run(app) as service, anyio.create_task_group() as group:
        task = await service.enqueue("emails", {"to": 1}, name="plain", result_ttl=60)
        seen: list[object] = []

        async def wait() -> None:
            seen.append(await task.result(timeout=None))

        group.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        assert seen == []
        await service.drain()
        with anyio.fail_after(30):
            while not seen:
                await anyio.lowlevel.checkpoint()
    assert seen == ["written"]


@on_both
async def test_a_result_that_does_not_come_is_not_awaited_for_ever() -> None:
    async with fairq.testing.run(app) as service:
        task = await service.enqueue("emails", {"to": 1}, name="plain", result_ttl=60)
        with pytest.raises(fairq.NotYet):
            await task.result(timeout=0.01)
