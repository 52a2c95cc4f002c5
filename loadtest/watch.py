"""Waiting for what a queue does, by asking the server as an operator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any

import trio

import fairq
from loadtest.processes import RunFailed

ATTACH_S = 60.0


async def queue_state(operator: fairq.Client, queue: str) -> dict[str, Any]:
    """Read a queue's counts, as an operator."""
    rows = (await operator.request("queues"))["queues"]
    return next((row for row in rows if row["queue"] == queue), {"done": 0, "leased": 0, "workers": 0})


async def wait_until(what: str, seconds: float, is_so: Callable[[], Awaitable[float]]) -> None:
    """Ask again and again until `is_so` returns 1 or more (it returns how much of the way is gone).

    Asks seldom far from the end and often close to it. Raises: RunFailed when it takes too long.
    """
    began = trio.current_time()
    while (part := await is_so()) < 1:
        spent = trio.current_time() - began
        if spent > seconds:
            raise RunFailed(f"{what}: not done in {seconds:g} s ({part:.1%})")
        await trio.sleep(min(0.25, max(0.005, spent * (1 - part) / part / 3)) if part > 0 else 0.01)


async def wait_attached(operator: fairq.Client, queue: str) -> None:
    """Wait until a worker serves the queue."""

    async def is_attached() -> float:
        return float((await queue_state(operator, queue))["workers"])

    await wait_until("the worker's start", ATTACH_S, is_attached)


async def wait_workers(operator: fairq.Client, names: Collection[str]) -> None:
    """Wait until workers of these names are attached, to whichever server on the store."""

    async def are_attached() -> float:
        rows = (await operator.request("workers"))["workers"]
        return len({row["worker"] for row in rows}.intersection(names)) / len(names)

    await wait_until("the workers' start", ATTACH_S, are_attached)


async def wait_done(operator: fairq.Client, queue: str, count: int, what: str, seconds: float) -> None:
    """Wait until so many tasks of the queue are done."""

    async def all_done() -> float:
        return float((await queue_state(operator, queue))["done"]) / count

    await wait_until(what, seconds, all_done)


async def stop_handing_out(operator: fairq.Client, queue: str, seconds: float) -> int:
    """Pause a queue and wait until nothing is under way; returns how many tasks are left in it."""
    await operator.request("set_paused", {"paused": True, "queue": queue})

    async def all_back() -> float:
        return float((await queue_state(operator, queue))["leased"] == 0)

    await wait_until("the last tasks", seconds, all_back)
    return int((await queue_state(operator, queue))["ready"])
