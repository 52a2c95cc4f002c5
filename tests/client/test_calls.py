"""What a call costs a client, and a task a worker, counted: calls of functions, their instructions, and steps."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context

import anyio.to_thread
import pytest
import trio

import fairq
import fairq.sync
from tests.cost import Cost, Rounds, counting
from tests.server.harness import WORKER, tenant

from .runtimes import LIMIT_S, Service, on_both, working

ROUNDS, EACH = 40, 5
FRAME, FRAMES = 100, 30


def cheapest(cost: Cost, job: Callable[[], object]) -> Cost:
    """Count what a job costs that waits for its end."""
    job()
    found = Rounds(cost, EACH)
    for _ in range(ROUNDS):
        for _ in range(EACH):
            job()
        found.end_round()
    return found.cheapest()


@on_both
async def test_an_enqueue_costs_few_calls(service: Service, runtime: str) -> None:
    async with service.client() as client:
        await client.enqueue("emails", {"n": 1})
        with counting() as cost:
            found = Rounds(cost, EACH)
            for _ in range(ROUNDS):
                for _ in range(EACH):
                    await client.enqueue("emails", {"n": 1})
                found.end_round()
    assert found.cheapest().calls <= {"asyncio": 122, "trio": 181}[runtime]


def test_a_blocking_enqueue_costs_few_calls(service: Service) -> None:
    with fairq.sync.open_client(service.url, token=tenant("ada")) as client, counting() as cost:
        found = cheapest(cost, lambda: client.enqueue("emails", {"n": 1}))
    assert found.calls <= 119


@pytest.mark.parametrize("kind", ["async", "plain"])
@on_both
async def test_a_task_costs_a_worker_few_calls(service: Service, runtime: str, kind: str) -> None:
    app = service.worker()

    async def handle(_: fairq.Task) -> None: ...

    def handle_in_thread(_: fairq.Task) -> None: ...

    app.task("emails")(handle if kind == "async" else handle_in_thread)

    def enqueue(cost: Cost) -> Cost:
        with fairq.sync.open_client(service.url, token=tenant("ada")) as client:
            return cheapest(cost, lambda: client.enqueue("emails", {"n": 1}, result_ttl=60).result(timeout=20))

    async with working(app):
        with counting() as cost:
            found = await anyio.to_thread.run_sync(enqueue, cost)
    most = {("asyncio", "async"): 182, ("trio", "async"): 280, ("asyncio", "plain"): 256, ("trio", "plain"): 470}
    assert found.calls <= most[runtime, kind]


def test_a_task_of_a_full_frame_costs_a_worker_few_calls_and_instructions(service: Service) -> None:
    """In a context without decimal's, which pytest has: see `fairq.client.isolation`."""
    of_task = Context().run(trio.run, cost_of_a_task_of_a_full_frame, service)
    assert of_task.calls <= 23
    assert of_task.tasks == 0
    assert of_task.steps <= 0.05
    assert of_task.instructions <= 730


async def cost_of_a_task_of_a_full_frame(service: Service) -> Cost:
    """Count from its push to the answer to its settlement, of the second frame and on; without the handler's own."""
    frames = list[Rounds]()
    app = fairq.Worker(service.url, token=WORKER, concurrency=4 * FRAME)  # credit for full frames

    @app.task("q")
    async def handle(task: fairq.Task) -> None:
        if task.payload == FRAME:
            frames.append(Rounds(cost, FRAME))
        elif task.payload % FRAME == 0 and frames:
            frames[0].end_round()
        if task.payload == FRAME * FRAMES - 1:
            app.stop()

    with trio.fail_after(4 * LIMIT_S):  # counting instructions is slow
        async with fairq.open_client(service.url, token=tenant("ada")) as ada:
            await ada.enqueue_many("q", list(range(FRAME * FRAMES)))
        with counting(with_instructions=True) as cost:
            await app.run()
    return frames[0].cheapest()
