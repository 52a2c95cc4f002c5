"""What a task costs its worker, counted: calls of functions, their instructions, and steps of tasks."""

from __future__ import annotations

import trio
from attrs import astuple

import fairq
from tests.cost import Cost, counting
from tests.server.harness import WORKER, tenant

from .runtimes import LIMIT_S, Service

FRAME, FRAMES = 100, 12


async def test_a_task_of_a_full_frame_costs_few_calls_and_instructions(service: Service) -> None:
    """From its push to the answer to its settlement, of the second frame and on; without the handler's own."""
    cost, at_frames = Cost(), list[tuple[float, ...]]()
    app = fairq.Worker(service.url, token=WORKER, concurrency=FRAME)

    @app.task("q")
    async def handle(task: fairq.Task) -> None:
        if task.payload % FRAME == 0:
            at_frames.append(astuple(cost))
        if task.payload == FRAME * FRAMES - 1:
            app.stop()

    with trio.fail_after(LIMIT_S):
        async with fairq.open_client(service.url, token=tenant("ada")) as ada:
            await ada.enqueue_many("q", list(range(FRAME * FRAMES)))
        with counting(cost, instructions=True):
            await app.run()
    of_task = [(b - a) / FRAME / (FRAMES - 2) for a, b in zip(at_frames[1], at_frames[-1], strict=True)]
    assert all(each <= limit for each, limit in zip(of_task, (40, 0, 0.3, 1_150), strict=True)), f"of a task: {of_task}"
