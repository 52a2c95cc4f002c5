"""What workers enqueue over HTTP: links that leave with a settlement, and tasks from a lease."""

from __future__ import annotations

from typing import Any

import httpx

from fairq.server.run import Served
from fairq.wire.terms import Role
from tests.server.harness import WORKER, Raw, raw

from .harness import Client, api, check, check_problem
from .test_leases import TASKS, claim, claimed, settle

DERIVED = "/v1/leases/tasks"

LINK = {"queue": "next", "id": "link", "payload": [1]}


async def test_links_leave_with_an_acknowledgement_and_only_once(served: Served) -> None:
    links = [LINK, {**LINK, "id": "large", "payload": "x" * 60_000, "delay": 0.01}, {"queue": "q", "payload": 3}]
    async with api(served) as ada, api(served, WORKER) as worker, raw(served, WORKER) as after:
        await after.attach("next", "q", credit=5, name="after")
        task = await claimed_by_http(ada, worker, after)
        assert await settle(worker, task, "ack", links=links) == "ok"
        pushed = await after.pushed(3)
        assert sorted((len(str(task["payload"])), task["full_id"][:4]) for task in pushed) == [
            (1, "ada/"), (3, "ada/"), (60_000, "ada/"),
        ]  # fmt: skip
        assert await settle(worker, task, "ack", links=links) == "gone"
        assert (await served.app.store.queue("next")).enqueued == 2


async def test_a_request_that_comes_again_gives_links_the_same_ids(served: Served, ada: Client, worker: Client) -> None:
    await served.app.store.set_limits("q", "ada", {"queued": 1})
    task = await claimed(ada, worker)
    links = [{"queue": "next", "payload": 1}, {"queue": "q", "payload": 2}]
    check(await ada.post(TASKS, json={"payload": 1}), 201)
    ended = {"queue": "q", "settlements": [{"action": "ack", "id": task["id"], "lease": task["lease"], "links": links}]}
    for _ in range(2):
        check_problem(await worker.post("/v1/leases", json=ended), 429, "quota_exceeded", "queued")
    await served.app.store.set_limits("q", "ada", {"queued": None})
    assert await settle(worker, task, "ack", links=links) == "ok"
    assert [(await served.app.store.queue(queue)).enqueued for queue in ("q", "next")] == [3, 1]


async def claimed_by_http(ada: httpx.AsyncClient, worker: httpx.AsyncClient, other: Any) -> dict[str, Any]:
    """Have a task claimed over HTTP while a websocket's worker offers no slot."""
    await other.ask("credit", credit=0)
    task = await claimed(ada, worker)
    await other.ask("credit", credit=5)
    return task


WRONG_LINKS: list[tuple[dict[str, Any], str, str]] = [
    ({"links": [{"payload": 1}]}, "bad_request", "queue"),
    ({"links": [{"queue": "next"}]}, "bad_request", "payload"),
    ({"links": [{**LINK, "delay_ms": 1}]}, "bad_request", "delay_ms"),
    ({"links": [{**LINK, "queue": "q", "id": "t"}]}, "bad_request", "links"),
    ({"links": [{**LINK, "payload": "x" * (1 << 20)}]}, "too_large", "payload"),
    ({"delay_ms": 1}, "bad_request", "delay_ms"),
]  # fmt: skip


async def test_a_wrong_link_is_refused_and_settles_nothing(ada: Client, worker: Client) -> None:
    task = await claimed(ada, worker)
    for change, code, field in WRONG_LINKS:
        ended = [{"action": "ack", "id": task["id"], "lease": task["lease"], **change}]
        answer = await worker.post("/v1/leases", json={"queue": "q", "settlements": ended})
        check_problem(answer, 413 if code == "too_large" else 400, code, field)
    assert await settle(worker, task, "ack", links=[]) == "ok"


def derive(task: dict[str, Any], *ids: str, **more: Any) -> dict[str, Any]:
    """Spell a request that enqueues tasks from a leased one."""
    lease = {"queue": "q", "id": task["id"], "lease": task["lease"]}
    return {"lease": lease, "queue": "next", "tasks": [{"id": id, "payload": 1} for id in ids], **more}


async def test_a_leased_task_enqueues_for_its_tenant_and_each_id_once(
    served: Served, ada: Client, worker: Client
) -> None:
    task = await claimed(ada, worker)
    answer = check(await worker.post(DERIVED, json=derive(task, "a", "b")), 201)["tasks"]
    assert answer == [{"id": "a", "outcome": "ok"}, {"id": "b", "outcome": "ok"}]
    answer = check(await worker.post(DERIVED, json=derive(task, "a", "c")), 201)["tasks"]
    assert [row["outcome"] for row in answer] == ["duplicate", "ok"]
    rows = await served.app.store.tasks("next", ["ada/a", "ada/b", "ada/c"])
    assert [row.tenant for row in rows] == ["ada"] * 3
    assert await settle(worker, task, "nack", delay=0) == "ok"
    (again,) = await claim(worker)
    answer = check(await worker.post(DERIVED, json=derive(again, "a")), 201)["tasks"]
    assert answer == [{"id": "a", "outcome": "duplicate", "duplicate_of_state": "ready"}], "by another attempt"
    keyed = [{"id": id, "payload": 1, "dedupe_key": "k"} for id in ("d", "e")]
    answer = check(await worker.post(DERIVED, json=derive(again, tasks=keyed)), 201)["tasks"]
    assert [(row["id"], row["outcome"]) for row in answer] == [("d", "ok"), ("d", "duplicate")]
    (row,) = check(await worker.post(DERIVED, json=derive(again, tasks=[{"payload": 1}])), 201)["tasks"]
    assert row["outcome"] == "ok"
    answer = check(await worker.post(DERIVED, json=derive(again, "f", "f")), 201)["tasks"]
    assert [row["outcome"] for row in answer] == ["ok", "duplicate"]


async def test_nothing_is_enqueued_from_a_lease_that_is_not_ones_own(
    served: Served, ada: Client, worker: Client
) -> None:
    async with raw(served, WORKER) as other:
        task = await claimed(ada, worker)

        async def wall(**change: Any) -> None:
            body = derive(task, "a")
            body["lease"] = {**body["lease"], **change}
            check_problem(await worker.post(DERIVED, json=body), 403, "forbidden", "lease")

        await wall(lease=task["lease"] + 1)
        await wall(id="bob/t")
        await wall(id="ada/none")
        await wall(queue="next")
        assert await settle(worker, task, "nack", delay=0) == "ok"
        await wall()
        await other.attach("q", credit=1, name="other")
        (task,) = await other.pushed()
        task["id"] = task["full_id"]
        await wall()
        assert await other.settle("q", "ack", task) == ["ok"]
        assert "next" not in await served.app.store.queues()
        check_problem(await ada.post(DERIVED, json=derive(task, "a")), 403, "forbidden", "type")


WRONGLY_DERIVED: list[tuple[dict[str, Any], str]] = [
    ({"lease": None}, "lease"), ({"lease": 7}, "lease"), ({"tenant": "ada"}, "tenant"), ({"ref": 1}, "ref"),
]  # fmt: skip


async def test_what_cannot_be_enqueued_from_a_lease_is_refused(ada: Client, worker: Client) -> None:
    whole = derive(await claimed(ada, worker), "a")
    for change, field in WRONGLY_DERIVED:
        check_problem(await worker.post(DERIVED, json={**whole, **change}), 400, "bad_request", field)


async def test_a_worker_of_some_queues_claims_links_and_enqueues_there_only(
    served: Served, operator: Raw, ada: Client
) -> None:
    _, text = await operator.create_token(Role.WORKER, queues=["q"])
    async with api(served, text) as worker:
        task = await claimed(ada, worker)
        check_problem(await worker.post(DERIVED, json=derive(task, "a")), 403, "forbidden", "queue")
        ended = [{"action": "ack", "id": task["id"], "lease": task["lease"], "links": [LINK]}]
        answer = await worker.post("/v1/leases", json={"queue": "q", "settlements": ended})
        check_problem(answer, 400, "bad_request", "links")
        assert await settle(worker, task, "ack", links=[{**LINK, "queue": "q"}]) == "ok"
        check_problem(await worker.post("/v1/queues/other/claims", json={}), 403, "forbidden", "queue")
        leases = {"queue": "other", "settlements": [{"action": "ack", "id": "ada/t", "lease": 1}]}
        check_problem(await worker.post("/v1/leases", json=leases), 403, "forbidden", "queue")


async def test_the_holder_of_a_callbacks_lease_reads_the_results_of_its_batch(served: Served) -> None:
    async with api(served) as ada, api(served, WORKER) as worker, raw(served, WORKER) as other:
        check(await ada.post("/v1/queues/q/batches", json={"id": "b", "on_complete": "sum"}), 201)
        check(await ada.post(TASKS, json={"payload": 1, "id": "t", "batch": "b", "result_ttl": 60}), 201)
        (task,) = await claim(worker)
        assert await settle(worker, task, "ack", result=[1]) == "ok"
        check(await ada.post("/v1/queues/q/batches/b/close"))
        (callback,) = await claim(worker)

        async def read(held: dict[str, Any], status: int = 403, **more: Any) -> Any:
            asked = {"queue": "q", "id": held["id"], "lease": held["lease"]} | more
            answer = await worker.post("/v1/leases/results", json=asked)
            return check(answer) if status == 200 else check_problem(answer, status, "forbidden", "lease")

        assert await read(callback, 200) == {"results": [{"id": "ada/t", "result": [1]}], "cursor": None}
        await read(callback, lease=callback["lease"] + 1)
        await read(task)
        await other.attach("q", credit=0, leases=[{"queue": "q", "id": callback["id"], "lease": callback["lease"]}])
        await read(callback)
        (body,) = (await other.ask("batch_results", queue="q", id=callback["id"], lease=callback["lease"]))["results"]
        assert body == {"id": "ada/t", "result": [1]}
