"""Structured concurrency helpers that trio leaves to its users."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import trio

from fairq.io.exception_groups import ungrouped
from fairq.io.taskless import Taskless, in_task


@asynccontextmanager
async def open_plain_nursery() -> AsyncIterator[trio.Nursery]:
    """Open a nursery that raises a single exception unchanged, not in a group."""
    with ungrouped():
        async with trio.open_nursery() as nursery:
            yield nursery


@asynccontextmanager
async def background(*services: Callable[[], Awaitable[object]]) -> AsyncIterator[trio.Nursery]:
    """Run services until the block is left."""
    async with open_plain_nursery() as nursery:
        for service in services:
            nursery.start_soon(service)
        try:
            yield nursery
        finally:
            nursery.cancel_scope.cancel()


async def end_process(process: trio.Process, seconds: float) -> None:
    """Stop a process, also while this task is cancelled; kill it if it takes longer."""
    with trio.CancelScope(shield=True):
        with suppress(ProcessLookupError):
            process.terminate()
        with trio.move_on_after(seconds):
            await process.wait()
            return
        process.kill()
        await process.wait()


async def run_all(*jobs: Callable[[], Awaitable[object]], stops_at_failure: bool = False) -> None:
    """Run jobs side by side; a failure keeps none of the others from its end, or stops all. Raises: the first one."""
    await in_task()
    failed: list[Exception] = []

    async def run(job: Callable[[], Awaitable[object]]) -> None:
        try:
            await job()
        except Exception as error:
            failed.append(error)
            if stops_at_failure:
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for job in jobs:
            nursery.start_soon(run, job)
    if failed:
        raise failed[0]


async def begin_all(*jobs: Callable[[], Awaitable[object]]) -> None:
    """Run jobs side by side as `run_all` does, but begin each in this turn: their calls leave together.

    They wait only for replies of the store (taskless.py).
    """
    await in_task()
    failed: list[Exception] = []
    left, ended = len(jobs), trio.Event()

    async def run(job: Callable[[], Awaitable[object]]) -> None:
        nonlocal left
        try:
            await job()
        except Exception as error:
            failed.append(error)
        finally:
            left -= 1
            if not left:
                ended.set()

    async with trio.open_nursery() as nursery:
        taskless = Taskless(nursery)
        try:
            for job in jobs:
                if rest := taskless.begin(run(job)):
                    nursery.start_soon(rest.finish)
            await ended.wait()
        finally:
            taskless.close()
    if failed:
        raise failed[0]
