"""What a single call costs a client, and a single task a worker, counted: calls of Python functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio.to_thread
import pytest
from attrs import define

import fairq
import fairq.sync
from tests.server.harness import tenant

from .runtimes import Service, on_both, working

ROUNDS, EACH = 5, 10


@define(eq=False)
class Cost:
    """What this thread has done, since `counting` began."""

    calls: int = 0  # each step of a coroutine counts as one of each function in it

    def note(self, _frame: object, event: str, _arg: object) -> None:
        """Count a call, as a profiler."""
        self.calls += event == "call"


@contextmanager
def counting() -> Iterator[Cost]:
    """Count this thread's calls until the block is left."""
    cost = Cost()
    sys.setprofile(cost.note)
    try:
        yield cost
    finally:
        sys.setprofile(None)


def cheapest(cost: Cost, job: Callable[[], object]) -> float:
    """Return the calls of one job in the cheapest of several rounds: heartbeats and renewals come, too."""
    rounds = []
    for _ in range(ROUNDS):
        before = cost.calls
        for _ in range(EACH):
            job()
        rounds.append((cost.calls - before) / EACH)
    return min(rounds)


@on_both
async def test_an_enqueue_costs_few_calls(service: Service, runtime: str) -> None:
    rounds = []
    async with service.client() as client:
        with counting() as cost:
            for _ in range(ROUNDS):
                before = cost.calls
                for _ in range(EACH):
                    await client.enqueue("emails", {"n": 1})
                rounds.append((cost.calls - before) / EACH)
    assert min(rounds) <= {"asyncio": 145, "trio": 208}[runtime], rounds


def test_a_blocking_enqueue_costs_few_calls(service: Service) -> None:
    with fairq.sync.open_client(service.url, token=tenant("ada")) as client, counting() as cost:
        assert cheapest(cost, lambda: client.enqueue("emails", {"n": 1})) <= 142


@pytest.mark.parametrize("kind", ["async", "plain"])
@on_both
async def test_a_task_costs_a_worker_few_calls(service: Service, runtime: str, kind: str) -> None:
    app = service.worker()

    async def handle(_: fairq.Task) -> None: ...

    def handle_in_thread(_: fairq.Task) -> None: ...

    app.task("emails")(handle if kind == "async" else handle_in_thread)

    def enqueue(cost: Cost) -> float:
        with fairq.sync.open_client(service.url, token=tenant("ada")) as client:
            return cheapest(cost, lambda: client.enqueue("emails", {"n": 1}, result_ttl=60).result(timeout=20))

    async with working(app):
        with counting() as cost:
            calls = await anyio.to_thread.run_sync(enqueue, cost)
    most = {("asyncio", "async"): 195, ("trio", "async"): 310, ("asyncio", "plain"): 265, ("trio", "plain"): 490}
    assert calls <= most[runtime, kind], calls
