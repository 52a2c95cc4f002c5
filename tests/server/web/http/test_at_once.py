"""What one worker or tenant does at once, and what becomes of the others."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from fairq.server.run import Served
from tests.server.harness import WORKER, tenant

from .harness import api, check, check_problem, plain, serving
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


async def test_bodies_of_one_tenant_leave_room_for_those_of_others(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairq.server.web.http.bodies.MAX_BODIES_BYTES", 1_000)
    monkeypatch.setattr("fairq.server.web.http.bodies.MAX_TENANT_BODIES_BYTES", 900, raising=False)
    head = "POST {} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n"
    slow = (head + "Content-Length: 1000\r\n\r\n").format(TASKS, tenant("ada")).encode()
    async with plain(served) as first, api(served, tenant("ada")) as ada, api(served, tenant("bob")) as bob:
        await first.send_all(slow + b" " * 890)
        with trio.fail_after(60):
            while (await ada.post(TASKS, json={"payload": "of ada"})).status_code != 429:
                pass
            check_problem(await ada.post(TASKS, json={"payload": "of ada"}), 429, "too_many")
            check(await bob.post(TASKS, json={"payload": "x" * 50}), 201)
