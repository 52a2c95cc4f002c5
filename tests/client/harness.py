"""Workers and tasks, as the client's tests need them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

import fairq
from fairq.model.tasks import TaskState
from fairq.server.run import Served
from tests.server.harness import WORKER, url_of
from tests.store.waiting import wait_until


@asynccontextmanager
async def working(app: fairq.Worker) -> AsyncIterator[trio.Nursery]:
    """A worker that runs until the block is left."""
    async with trio.open_nursery() as nursery:
        await nursery.start(app.run)
        yield nursery
        nursery.cancel_scope.cancel()


def worker_of(served: Served, concurrency: int = 5) -> fairq.Worker:
    """A worker without handlers yet."""
    return fairq.Worker(url_of(served), WORKER, concurrency, name="worker-1")


async def wait_state(task: fairq.EnqueuedTask, wanted: str, seconds: float = 30.0) -> TaskState:
    """Wait until a task is in a state."""

    async def is_there() -> bool:
        return (await task.state()).state == wanted

    await wait_until(is_there, seconds)
    return await task.state()
