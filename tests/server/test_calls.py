"""What a hot request costs the server, counted: calls of functions, their instructions, tasks, and steps of tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from statistics import median

import pytest
import redis
import trio

from fairq.server.run import Served
from tests.cost import Cost, Rounds, counting, counting_to_writes

from .harness import PRODUCER, WORKER, raw, tenant, url_of

FRAME, FRAMES = 100, 8


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
    """A worker that settles a frame of tasks, half of its credit, and gets another."""
    async with enqueueing(url, FRAME) as enqueue, raw(url, WORKER) as worker:
        for _ in range(FRAMES + 3):
            await enqueue()
        await worker.attach("q", credit=2 * FRAME)
        tasks = (await worker.pushed(2 * FRAME))[:FRAME]

        async def do_all() -> None:
            await worker.settle("q", "ack", *tasks)
            tasks[:] = await worker.pushed(FRAME)

        yield do_all


async def cost_of(
    served: Served,
    clients: Callable[[str], AbstractAsyncContextManager[Job]],
    rounds: int = 40,
    each: int = 5,
    *,
    with_instructions: bool = False,
) -> Cost:
    """Count what a job of clients, who run in a thread, costs the server."""
    url = url_of(served)

    async def measure() -> Cost:
        async with clients(url) as job:
            await job()
            found = Rounds(cost, each)
            for _ in range(rounds):
                for _ in range(each):
                    await job()
                found.end_round()
            return found.cheapest()

    with counting(with_instructions=with_instructions) as cost:
        return await trio.to_thread.run_sync(trio.run, measure)


@pytest.mark.parametrize(
    ("clients", "most"),
    [(enqueueing, (232, 0.1, 2.2)), (producing, (255, 0.1, 2.2)), (working, (577, 0.1, 4.4))],
    ids=["enqueue", "producer", "task"],
)
async def test_a_hot_request_costs_few_calls_and_no_task(
    clients: Callable[[str], AbstractAsyncContextManager[Job]], most: tuple[float, ...], served: Served
) -> None:
    cost = await cost_of(served, clients)
    assert cost.calls <= most[0]
    assert cost.tasks <= most[1]
    assert cost.steps <= most[2]


async def test_a_task_of_a_full_frame_costs_few_calls_and_instructions(served: Served) -> None:
    """From the settlement of a frame to the push of the next one."""
    cost = await cost_of(served, settling, FRAMES, 1, with_instructions=True)
    assert cost.calls / FRAME <= 9
    assert cost.tasks == 0
    assert cost.steps / FRAME <= 0.2
    assert cost.instructions / FRAME <= 670


async def test_few_calls_stand_before_an_idle_workers_task_is_stored_and_pushed(served: Served) -> None:
    """Each process sleeps until then, so that each call is one of code that no cache has."""

    async def measure() -> list[list[int]]:
        async with working(url_of(served)) as do_one:
            rounds = []
            for _ in range(40):
                found.clear()
                await do_one()
                rounds.append(found[:2])
            return rounds

    with counting_to_writes() as found:
        stored, pushed = map(min, zip(*await trio.to_thread.run_sync(trio.run, measure), strict=True))
    assert stored <= 184
    assert pushed <= 70


async def test_a_task_that_a_worker_waits_for_takes_two_calls_of_the_store(
    served: Served, redis_store: redis.Redis
) -> None:
    """One that enqueues and claims it, and its settlement."""

    def calls() -> int:
        return int(redis_store.info("commandstats")["cmdstat_fcall"]["calls"])

    async def measure() -> list[int]:
        counts = list[int]()
        async with working(url_of(served)) as do_one:
            await do_one()
            for _ in range(100):
                before = calls()
                await do_one()
                counts.append(calls() - before)
        return counts

    assert median(await trio.to_thread.run_sync(trio.run, measure)) == 2  # ticks come too, the more the slower it is
