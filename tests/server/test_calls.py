"""What a hot request costs the server, counted: function calls, tasks of the scheduler, and their steps."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count

import pytest
import trio
import trio.lowlevel
from attrs import astuple, define

from fairq.server.run import Served

from .harness import PRODUCER, WORKER, raw, tenant, url_of

ROUNDS, EACH = 8, 25


@define(eq=False)
class Cost(trio.abc.Instrument):
    """What this thread has done."""

    calls: int = 0  # of Python functions; each step of a coroutine counts as one of each function in it
    tasks: int = 0
    steps: int = 0

    def task_spawned(self, _: trio.lowlevel.Task) -> None:
        """Count a task."""
        self.tasks += 1

    def before_task_step(self, _: trio.lowlevel.Task) -> None:
        """Count a step."""
        self.steps += 1

    def note(self, _frame: object, event: str, _arg: object) -> None:
        """Count a call, as a profiler."""
        self.calls += event == "call"


Job = Callable[[], Awaitable[object]]


@asynccontextmanager
async def enqueueing(url: str) -> AsyncIterator[Job]:
    """A tenant that enqueues a task, and waits for the answer."""
    async with raw(url, tenant("ada")) as ada:
        numbers = count()
        yield lambda: ada.enqueue("q", [f"t{next(numbers)}"])


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


async def cost_of(served: Served, clients: Callable[[str], AbstractAsyncContextManager[Job]]) -> tuple[float, ...]:
    """Count what one job of clients, who run in a thread of their own, costs the server: calls, tasks and steps.

    Of several rounds the cheapest counts: the server does other things, too.
    """
    cost, url = Cost(), url_of(served)

    async def measure() -> tuple[float, ...]:
        async with clients(url) as job:
            rounds = []
            for _ in range(ROUNDS):
                before = astuple(cost)
                for _ in range(EACH):
                    await job()
                rounds.append([(now - then) / EACH for then, now in zip(before, astuple(cost), strict=True)])
            return tuple(map(min, zip(*rounds, strict=True)))

    trio.lowlevel.add_instrument(cost)
    sys.setprofile(cost.note)
    try:
        return await trio.to_thread.run_sync(trio.run, measure)
    finally:
        sys.setprofile(None)
        trio.lowlevel.remove_instrument(cost)


@pytest.mark.parametrize(
    ("clients", "most"),
    [(enqueueing, (262, 0.1, 2.2)), (producing, (277, 0.1, 2.2)), (working, (765, 0.1, 6.6))],
    ids=["enqueue", "producer", "task"],
)
async def test_a_hot_request_costs_few_calls_and_no_task(
    clients: Callable[[str], AbstractAsyncContextManager[Job]], most: tuple[float, ...], served: Served
) -> None:
    cost = await cost_of(served, clients)
    assert all(each <= limit for each, limit in zip(cost, most, strict=True)), f"calls, tasks, steps: {cost}"
