"""Workers over HTTP: what they claim is theirs until they settle it or its lease is over, and is never lost."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import trio

from fairq.server.engine.net import drained_names
from fairq.server.run import Served
from fairq.server.web.http import workers
from fairq.server.web.http.stream import BoundedStream
from fairq.wire.terms import Role
from tests.server.harness import OPERATOR, WORKER, Raw, raw, tenant
from tests.store.waiting import wait_until

from .harness import Client, api, check, check_problem, head, plain, read_all, serving

CLAIMS, TASKS = "/v1/queues/q/claims", "/v1/queues/q/tasks"


async def claim(worker: httpx.AsyncClient, /, count: int = 1, wait: float = 20, **more: Any) -> list[dict[str, Any]]:
    """Claim tasks of queue q."""
    answer = check(await worker.post(CLAIMS, json={"count": count, "wait": wait, **more}))
    tasks: list[dict[str, Any]] = answer["tasks"]
    return tasks


async def settle(worker: httpx.AsyncClient, task: dict[str, Any], action: str, **more: Any) -> str:
    """End or extend a lease."""
    ended = [{"action": action, "id": task["id"], "lease": task["lease"], **more}]
    outcome: str = check(await worker.post("/v1/leases", json={"queue": "q", "settlements": ended}))["outcomes"][0]
    return outcome


async def test_a_claim_waits_for_tasks_and_is_empty_without(served: Served, ada: Client, worker: Client) -> None:
    assert await claim(worker, wait=0) == []
    assert await claim(worker, wait=0.05) == []
    check(await ada.post(TASKS, json={"tasks": [{"payload": n, "id": f"t{n}"} for n in range(5)]}), 201)
    assert [task["payload"] for task in await claim(worker, 3, wait=0)] == [0, 1, 2]
    assert [task["payload"] for task in await claim(worker, 3)] == [3, 4]
    got: list[dict[str, Any]] = []

    async def wait() -> None:
        got.extend(await claim(worker, 10))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_until(lambda: served.app.queues.count_slots("q") == 5 + 10)
        check(await ada.post(TASKS, json={"payload": "late"}), 201)
    assert [task["payload"] for task in got] == ["late"]


async def test_all_that_a_worker_may_say_of_a_lease(ada: Client, worker: Client) -> None:
    check(await ada.post(TASKS, json={"payload": 1, "id": "t", "max_attempts": 4}), 201)
    (task,) = await claim(worker)
    assert (task["attempt"], task["max_attempts"], task["tenant"], task["id"]) == (1, 4, "ada", "ada/t")
    assert await settle(worker, task, "extend") == "ok"
    assert await settle(worker, task, "nack", delay=0, error="busy") == "ok"
    assert await settle(worker, task, "nack", delay=0) == "gone"  # repeated
    (again,) = await claim(worker)
    assert again["attempt"] == 2
    assert await settle(worker, task, "ack") == "stale"
    assert await settle(worker, task, "extend") == "stale"
    assert await settle(worker, again, "release", delay=0, error="not now") == "ok"
    (third,) = await claim(worker)
    assert await settle(worker, third, "release") == "ok"
    (fourth,) = await claim(worker)
    assert await settle(worker, fourth, "ack", result={"a": 1}) == "ok"
    assert await settle(worker, fourth, "ack", result={"a": 1}) == "gone"
    assert check(await ada.get(f"{TASKS}/t"))["state"] == "done"


async def claimed(ada: httpx.AsyncClient, worker: httpx.AsyncClient, id: str = "t", **more: Any) -> dict[str, Any]:
    """Enqueue a task and claim it."""
    check(await ada.post(TASKS, json={"payload": 1, "id": id}), 201)
    (task,) = await claim(worker, **more)
    return task


async def test_a_claim_is_refused_beyond_its_bounds(worker: Client) -> None:
    for body in ({"count": 0}, {"count": 101}, {"wait": 61}, {"ref": 1}, {"queue": "other"}):
        check_problem(await worker.post(CLAIMS, json=body), 400, "bad_request", *body)


async def test_a_claim_tells_how_long_handlers_may_run(ada: Client, operator: Raw, worker: Client) -> None:
    check(await ada.post(TASKS, json={"payload": 1}), 201)
    await operator.ask("configure", queue="q", settings={"run_timeout_ms": 60_000})
    answer = check(await worker.post(CLAIMS, json={"count": 1, "wait": 20}))
    assert (answer["run_timeout_ms"], len(answer["tasks"])) == (60_000, 1)


async def test_a_claim_whose_client_has_gone_takes_nothing(served: Served) -> None:
    body = b'{"count": 5, "wait": 60}'
    async with api(served) as ada, api(served, WORKER) as worker:
        async with plain(served) as stream:
            kind = {"Content_Type": "application/json", "Content_Length": str(len(body))}
            await stream.send_all(head("POST", CLAIMS, WORKER, **kind) + body)
            await wait_until(lambda: served.app.queues.count_slots("q") == 5)
        await wait_until(lambda: served.app.queues.count_slots("q") == 0)
        check(await ada.post(TASKS, json={"payload": 1}), 201)
        (task,) = await claim(worker)
        assert task["attempt"] == 1


async def test_tasks_whose_answer_cannot_be_sent_are_given_back_at_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def break_off(self: BoundedStream, data: bytes) -> None:
        self.is_broken = True
        self.ended()
        raise trio.BrokenResourceError

    body = b'{"count": 5}'
    kind = {"Content_Type": "application/json", "Content_Length": str(len(body))}
    async with raw(served, tenant("ada")) as ada, raw(served, WORKER) as worker:
        assert await ada.enqueue("q", ["t"], max_attempts=3) == ["ok"]
        with monkeypatch.context() as patch:
            patch.setattr(BoundedStream, "send_all", break_off)
            async with plain(served) as stream:
                await stream.send_all(head("POST", CLAIMS, WORKER, **kind) + body)
                assert await read_all(stream) == b""
        await worker.attach("q")
        (task,) = await worker.pushed()
        assert (task["attempt"], task["max_attempts"]) == (2, 4)  # the first does not count


async def test_http_and_websocket_workers_share_a_queue_and_keep_their_leases_apart(
    served: Served, ada: Client, worker: Client
) -> None:
    async with raw(served, WORKER) as other:
        await other.attach("q")
        check(await ada.post(TASKS, json={"payload": 1, "id": "a"}), 201)
        (pushed,) = await other.pushed()
        assert await settle(worker, {**pushed, "id": "ada/a"}, "ack") == "stale"
        check(await ada.post(TASKS, json={"payload": 2, "id": "b"}), 201)
        (claimed,) = await claim(worker)
        assert claimed["id"] == "ada/b"
        assert await other.settle("q", "ack", pushed) == ["ok"]


async def test_a_worker_is_listed_and_a_drained_one_is_reported(served: Served, operator: Raw, worker: Client) -> None:
    answers = []

    async def wait() -> None:
        answers.append(await worker.post(CLAIMS, json={"wait": 60, "worker": "mill"}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_until(lambda: served.app.queues.count_slots("q") == 1)
        (row,) = (await operator.ask("workers"))["workers"]
        assert (row["worker"], row["queues"], row["credit"]) == ("mill", ["q"], 1)
        assert await operator.ask("drain_worker", worker="mill")
    check_problem(answers[0], 503, "draining")
    assert answers[0].headers["retry-after"] == "1"


async def test_a_drained_worker_claims_no_more_and_may_settle(served: Served, server_store: str) -> None:
    async def end(client: httpx.AsyncClient, task: dict[str, Any], action: str) -> None:
        ended = [{"action": action, "id": task["id"], "lease": task["lease"]}]
        body = {"queue": "q", "settlements": ended, "worker": "mill"}
        assert check(await client.post("/v1/leases", json=body))["outcomes"] == ["ok"]

    async with (
        serving(server_store) as other, raw(served, OPERATOR) as operator,
        api(served) as ada, api(served, WORKER) as here, api(other, WORKER) as there,
    ):  # fmt: skip
        check(await ada.post(TASKS, json={"tasks": [{"payload": n} for n in range(2)]}), 201)
        (task,) = await claim(here, worker="mill")
        (second,) = await claim(there, worker="mill")
        await end(there, second, "release")
        await operator.ask("drain_worker", worker="mill")
        await wait_until(lambda: not any(each.name for each in other.app.connections))
        await end(here, task, "extend")
        for worker in (here, there):
            for _ in range(2):
                refused = await worker.post(CLAIMS, json={"worker": "mill"})
                assert "drained" in check_problem(refused, 503, "draining")["detail"]
        await end(here, task, "ack")
        check_problem(await here.post(CLAIMS, json={"worker": "mill"}), 503, "draining")
        assert [each["id"] for each in await claim(here, worker="other")] == [second["id"]]


async def test_a_drained_name_is_forgotten_after_a_while(
    operator: Raw, worker: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await operator.ask("drain_worker", worker="mill")
    check_problem(await worker.post(CLAIMS, json={"worker": "mill"}), 503, "draining")
    with monkeypatch.context() as patch:
        patch.setattr(drained_names, "DRAINED_S", 0)
        await operator.ask("drain_worker", worker="saw")
        assert await claim(worker, wait=0, worker="saw") == []
    monkeypatch.setattr(drained_names, "MAX_DRAINED", 2)  # the one that asked longest ago makes room
    for name in "ab":
        await operator.ask("drain_worker", worker=name)
    for name in "ab":
        check_problem(await worker.post(CLAIMS, json={"worker": name}), 503, "draining")
    assert await claim(worker, wait=0, worker="mill") == []


async def test_a_token_of_many_workers_leaves_room_for_those_of_others(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "MAX_WORKERS", 3)
    monkeypatch.setattr(workers, "MAX_TOKEN_WORKERS", 2, raising=False)
    async with raw(served, OPERATOR) as operator, api(served) as ada, api(served, WORKER) as crowd:
        _, token = await operator.create_token(Role.WORKER)
        for name in "ab":
            assert await claim(crowd, wait=0, worker=name) == []
        assert await claim(crowd, wait=0, worker="a") == []  # one that is known needs no more room
        full = check_problem(await crowd.post(CLAIMS, json={"worker": "c"}), 429, "too_many")
        assert "at most 2 workers of one token" in full["detail"]
        check(await ada.post(TASKS, json={"payload": 1, "id": "t"}), 201)
        async with api(served, token) as other:
            (task,) = await claim(other, wait=0)
            assert await settle(other, task, "ack") == "ok"
            full = check_problem(await other.post(CLAIMS, json={"worker": "d"}), 429, "too_many")
            assert "at most 3 workers may" in full["detail"]


async def test_cancelling_a_running_task_shows_at_its_next_extension(ada: Client, worker: Client) -> None:
    check(await ada.post(TASKS, json={"payload": 1, "id": "t"}), 201)
    (task,) = await claim(worker)
    assert check(await ada.delete(f"{TASKS}/t"))["outcome"] == "running"
    assert await settle(worker, task, "extend") == "cancelled"


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
            outcomes.append(await settle(elsewhere, task, "ack"))

        async def look() -> None:
            check(await worker.post(CLAIMS, json={"worker": "new", "wait": 0}))

        tasks = await claim(worker, 6)
        async with trio.open_nursery() as nursery:
            for task in tasks:
                nursery.start_soon(end, task)
                nursery.start_soon(look)
        assert outcomes == ["ok"] * 6
