"""What a hot request costs the server, counted: calls of functions, their instructions, tasks, and steps of tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count

import pytest
import trio
from attrs import astuple

from fairq.server.run import Served
from tests.cost import Cost, counting

from .harness import PRODUCER, WORKER, raw, tenant, url_of

ROUNDS, EACH = 8, 25
FRAME = 100  # tasks


Job = Callable[[], Awaitable[object]]


@asynccontextmanager
async def enqueueing(url: str, tasks: int = 1) -> AsyncIterator[Job]:
    """A tenant that enqueues tasks, and waits for the answer."""
    async with raw(url, tenant("ada")) as ada:
        numbers = count()
        yield lambda: ada.enqueue("q", [f"t{next(numbers)}" for _ in range(tasks)])


@asynccontextmanager
async def producing(url: str) -> AsyncIterator[Job]:
    """A producer that does the same for a tenant."""
    async with raw(url, PRODUCER) as producer:
        numbers = count()
        yield lambda: producer.enqueue("q", [f"t{next(numbers)}"], tenant="ada")


@asynccontextmanager
async def working(url: str) -> AsyncIterator[Job]:
    """A tenant that enqueues a task, and a worker that does it, each one at a time."""
    async with enqueueing(url) as enqueue, raw(url, WORKER) as worker:
        await worker.attach("q", credit=10)

        async def do_one() -> None:
            await enqueue()
            await worker.settle("q", "ack", *await worker.pushed())

        yield do_one


@asynccontextmanager
async def settling(url: str) -> AsyncIterator[Job]:
    """A worker that settles a frame of tasks, and gets another."""
    async with enqueueing(url, FRAME) as enqueue, raw(url, WORKER) as worker:
        for _ in range(ROUNDS + 1):
            await enqueue()
        await worker.attach("q", credit=FRAME)
        tasks = await worker.pushed(FRAME)

        async def do_all() -> None:
            await worker.settle("q", "ack", *tasks)
            tasks[:] = await worker.pushed(FRAME)

        yield do_all


async def cost_of(
    served: Served, clients: Callable[[str], AbstractAsyncContextManager[Job]], *, instructions: bool = False
) -> tuple[float, ...]:
    """Count what a job of clients, who run in a thread, costs the server: calls, tasks, steps, and instructions.

    Of several rounds the cheapest counts: the server does other things, too.
    """
    cost, url, each = Cost(), url_of(served), 1 if instructions else EACH

    async def measure() -> tuple[float, ...]:
        async with clients(url) as job:
            rounds = []
            for _ in range(ROUNDS):
                before = astuple(cost)
                for _ in range(each):
                    await job()
                rounds.append([(now - then) / each for then, now in zip(before, astuple(cost), strict=True)])
            return tuple(map(min, zip(*rounds, strict=True)))

    with counting(cost, instructions=instructions):
        return await trio.to_thread.run_sync(trio.run, measure)


@pytest.mark.parametrize(
    ("clients", "most"),
    [(enqueueing, (290, 0.1, 2.2)), (producing, (300, 0.1, 2.2)), (working, (820, 0.1, 6.6))],
    ids=["enqueue", "producer", "task"],
)
async def test_a_hot_request_costs_few_calls_and_no_task(
    clients: Callable[[str], AbstractAsyncContextManager[Job]], most: tuple[float, ...], served: Served
) -> None:
    *cost, _ = await cost_of(served, clients)
    assert all(each <= limit for each, limit in zip(cost, most, strict=True)), f"calls, tasks, steps: {cost}"


async def test_a_task_of_a_full_frame_costs_few_calls_and_instructions(served: Served) -> None:
    """From the settlement of a frame to the push of the next one."""
    cost = [each / FRAME for each in await cost_of(served, settling, instructions=True)]
    assert all(each <= limit for each, limit in zip(cost, (18, 0, 0.2, 900), strict=True)), f"of a task: {cost}"
