"""What one worker or tenant does at once, and what becomes of the others."""

from __future__ import annotations

from typing import Any

import trio

from fairq.server.run import Served
from tests.server.harness import WORKER

from .harness import api, check, serving
from .test_leases import CLAIMS, TASKS, claim


async def test_first_requests_of_a_worker_that_come_at_once_are_all_answered(served: Served, server_store: str) -> None:
    async with (
        serving(server_store) as other,
        api(served) as ada,
        api(served, WORKER) as worker,
        api(other, WORKER) as elsewhere,
    ):
        check(await ada.post(TASKS, json={"tasks": [{"payload": n} for n in range(6)]}), 201)
        outcomes: list[Any] = []

        async def end(task: dict[str, Any]) -> None:
            ended = [{"action": "ack", "id": task["id"], "lease": task["lease"]}]
            answer = await elsewhere.post("/v1/leases", json={"queue": "q", "settlements": ended})
            outcomes.extend(check(answer)["outcomes"])

        async def look() -> None:
            check(await worker.post(CLAIMS, json={"worker": "new", "wait": 0}))

        tasks = await claim(worker, 6)
        async with trio.open_nursery() as nursery:
            for task in tasks:
                nursery.start_soon(end, task)
                nursery.start_soon(look)
        assert outcomes == ["ok"] * 6
