"""Tasks over HTTP: the SDK's options, repeated calls, many in a body, waits, and who may see what."""

from __future__ import annotations

import gzip
import json
from typing import Any

import trio

from fairq.model.option_tables import TaskOptions
from fairq.model.tasks import OPTIONS
from fairq.server.run import Served
from fairq.server.web.http.fields import make_task
from tests.server.harness import OPERATOR, PRODUCER, WORKER, raw
from tests.test_task_options import GIVEN

from .harness import Client, api, check, check_problem
from .test_leases import TASKS, claim, settle

NDJSON = {"Content-Type": "application/x-ndjson"}


async def test_a_repeated_post_with_an_idempotency_key_makes_one_task(served: Served) -> None:
    key = {"Idempotency-Key": "order-7"}
    async with api(served) as ada:
        made = await ada.post(TASKS, json={"payload": 1}, headers=key)
        assert check(made, 201) == {"id": "order-7", "outcome": "ok"}
        assert check(await ada.get(made.headers["location"]))["state"] == "ready"
        again = check(await ada.post(TASKS, json={"payload": 1}, headers=key), 200)
        assert again == {"id": "order-7", "outcome": "duplicate", "duplicate_of_state": "ready"}
        assert len(check(await ada.get("/v1/queues/q/next"))["tasks"]) == 1


async def test_a_key_that_cannot_be_an_id_or_is_for_many_is_refused(ada: Client) -> None:
    for key, body in (
        ("a b", {"payload": 1}), ("k", {"tasks": [{"payload": 1}]}), ("k", {"payload": 1, "id": "other"}),
    ):  # fmt: skip
        answer = await ada.post(TASKS, json=body, headers={"Idempotency-Key": key})
        check_problem(answer, 400, "bad_request", "Idempotency-Key")


async def test_two_tenants_for_a_body_are_refused(product: Client) -> None:
    answer = await product.post(f"{TASKS}?tenant=ada&tenant=bob", json={"payload": 1})
    check_problem(answer, 400, "bad_request", "tenant")


async def test_every_option_of_the_sdk_is_one_of_a_task(served: Served) -> None:
    together = dict[str, Any]()
    for field, value in GIVEN.items():
        if field == "trace":  # a header
            continue
        name = field.removesuffix("_ms")
        body = {name: value if name == field else value / 1000}
        needs = {"dedupe_key": "k"} if name in ("dedupe_period", "replace") else {}
        assert getattr(make_task({"payload": 1, "id": "t", **needs, **body}, 1000)[0], field) == value
        together |= body
    task, _ = make_task({"payload": 1, "id": "t", "start_at": "2030-01-01T00:00:00Z"}, 1000)
    assert task.start_at_ms == 1_893_456_000_000
    assert make_task({"payload": {"a": 1, "b": 2}, "dedupe_payload": True}, 1000)[0].dedupe_key == (
        make_task({"payload": {"b": 2, "a": 1}, "dedupe_payload": True}, 1000)[0].dedupe_key
    )
    assert make_task({"payload": 1, "id": "t", **dict.fromkeys(TaskOptions.__annotations__)}, 1000)[0][2:] == tuple(
        OPTIONS.values()
    )
    for apart in ("start_at", "expires_at", "expires_after_start", "batch"):
        del together[apart]
    async with api(served) as ada:
        answer = await ada.post(TASKS, json={"payload": 1, **together, "expires_in": 60})
        assert check(answer, 201)["outcome"] == "ok"


WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"delay": 1e300}, "delay"), ({"delay_ms": 5}, "delay_ms"), ({"start_at": "tomorrow"}, "start_at"),
    ({"start_at": "2030-01-01T00:00:00"}, "start_at"), ({"dedupe_payload": 1}, "dedupe_payload"),
]  # fmt: skip


async def test_a_wrong_option_that_only_http_has_is_named(ada: Client) -> None:
    for change, field in WRONG_OPTIONS:
        answer = await ada.post(TASKS, json={"payload": 1, **change})
        check_problem(answer, 400, "bad_request", field)
    assert check(await ada.get("/v1/queues/q/next"))["tasks"] == []


async def test_many_tasks_in_one_body(served: Served) -> None:
    for kind in ("tasks", "ndjson", "gzip", "gzip ndjson"):
        tasks: list[dict[str, Any]] = [{"payload": n, "id": f"{kind.replace(' ', '-')}-{n}"} for n in range(150)]
        body, headers = json.dumps({"tasks": tasks}).encode(), {"Content-Type": "application/json; charset=utf-8"}
        if "ndjson" in kind:
            body, headers = b"\n".join(json.dumps(task).encode() for task in tasks), dict(NDJSON)
        if "gzip" in kind:
            body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
        async with api(served) as ada:
            answer = check(await ada.post(TASKS, content=body, headers=headers), 201)["tasks"]
            assert answer == [{"id": task["id"], "outcome": "ok"} for task in tasks]
            again = check(await ada.post(TASKS, content=body, headers=headers), 201)["tasks"]
            assert {row["outcome"] for row in again} == {"duplicate"}


async def test_long_payloads_come_back_as_they_were(served: Served) -> None:
    payload = {"text": "x" * 300_000, "list": list(range(1000))}
    async with api(served) as ada, api(served, WORKER) as worker:
        check(await ada.post(TASKS, json={"payload": payload, "id": "long", "max_attempts": 1}), 201)
        (leased,) = await claim(worker)
        assert leased["payload"] == payload
        assert await settle(worker, leased, "reject") == "ok"
        assert check(await ada.get("/v1/queues/q/dead/long"))["payload"] == payload
        assert check(await ada.get("/v1/queues/q/dead"))["dead"][0]["payload"] == payload


async def test_a_wait_ends_when_the_task_does_or_the_time_is_over(ada: Client, worker: Client) -> None:
    check(await ada.post(TASKS, json={"payload": 1, "id": "t", "result_ttl": 60}), 201)
    assert check(await ada.get(f"{TASKS}/t", params={"wait": 0.05}))["state"] == "ready"
    answers = []

    async def wait() -> None:
        answers.append(await ada.get(f"{TASKS}/t", params={"wait": 30}))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        (leased,) = await claim(worker)
        assert await settle(worker, leased, "ack", result=[1, None]) == "ok"
    assert check(answers[0]) == {"id": "t", "state": "done", "result": [1, None]}
    for seconds in ("61", "1_0"):
        check_problem(await ada.get(f"{TASKS}/t", params={"wait": seconds}), 400, "bad_request", "wait")


async def test_cancelling_is_repeatable_and_unknown_tasks_are_not_found(served: Served, ada: Client) -> None:
    async with api(served, "dev-tenant:bob") as bob:
        check(await ada.post(TASKS, json={"payload": 1, "id": "t"}), 201)
        check_problem(await bob.get(f"{TASKS}/t"), 404, "not_found", "id")
        assert check(await bob.delete(f"{TASKS}/t"))["outcome"] == "gone"
        assert check(await ada.delete(f"{TASKS}/t")) == {"id": "t", "outcome": "ok"}
        assert check(await ada.delete(f"{TASKS}/t")) == {"id": "t", "outcome": "gone"}
        assert check(await ada.get(f"{TASKS}/t"))["state"] == "cancelled"
        check_problem(await ada.get(f"{TASKS}/never"), 404, "not_found", "id")
        rows = check(await ada.get(TASKS, params={"ids": ["t", "never"]}))["tasks"]
        assert [row["state"] for row in rows] == ["cancelled", "unknown"]


async def test_a_producer_names_tenants_and_one_refused_tenant_keeps_back_no_other(served: Served) -> None:
    async with raw(served, OPERATOR) as operator:
        await operator.ask("set_limits", queue="q", tenant="acme", limits={"queued": 1})
    async with api(served, PRODUCER) as product:
        assert check(await product.post(TASKS, json={"payload": 1, "id": "a", "tenant": "acme"}), 201)["id"] == "acme/a"
        check_problem(await product.post(TASKS, json={"payload": 1}), 400, "bad_request", "tenant")
        full = await product.post(TASKS, json={"payload": 1, "tenant": "acme"})
        check_problem(full, 429, "quota_exceeded", "queued")
        mixed = [{"payload": 1, "tenant": name, "id": "m"} for name in ("acme", "bert")]
        answer = check(await product.post(TASKS, json={"tasks": mixed}), 207)
        assert answer["tasks"] == [{"id": "acme/m", "outcome": "refused"}, {"id": "bert/m", "outcome": "ok"}]
        assert answer["refusals"]["acme"]["code"] == "quota_exceeded"
        for path, query in ((f"{TASKS}/bert/m", {}), (f"{TASKS}/m", {"tenant": "bert"}), (f"{TASKS}/bert%2Fm", {})):
            assert check(await product.get(path, params=query))["state"] == "ready", path
        assert check(await product.delete(f"{TASKS}/bert/m"))["outcome"] == "ok"
        batch = check(await product.post("/v1/queues/q/batches", json={"id": "b", "tenant": "bert"}), 201)
        assert batch["id"] == "bert/b"
        assert check(await product.post("/v1/queues/q/batches/bert/b/close")) == {"previous": "open"}
        assert check(await product.get("/v1/queues/q/batches/bert/b"))["state"] == "complete"
        check_problem(await product.get("/v1/queues/q/next", params={"tenant": "bert"}), 403, "forbidden", "type")


async def test_each_token_may_do_what_its_role_may(served: Served) -> None:
    async with api(served, WORKER) as worker:
        check_problem(await worker.post(TASKS, json={"payload": 1}), 403, "forbidden", "type")
    async with api(served, OPERATOR) as operator:
        answer = check_problem(await operator.get(f"{TASKS}/t"), 403, "forbidden")
        assert "operators get one of their own" in answer["detail"]
    for token in (None, "wrong", "dev-nonsense"):
        async with api(served, token) as stranger:
            refused = await stranger.get(f"{TASKS}/t")
            check_problem(refused, 401, "unauthorized")
            assert refused.headers["www-authenticate"].startswith("Bearer")


async def test_an_empty_body_says_nothing_whatever_its_type(ada: Client) -> None:
    check(await ada.post("/v1/queues/q/batches", json={"id": "b"}), 201)
    kind = {"Content-Type": "application/json"}
    assert check(await ada.post("/v1/queues/q/batches/b/close", headers=kind)) == {"previous": "open"}
    answer = await ada.post(TASKS, headers=kind)
    assert (answer.status_code, answer.json()["field"]) == (400, "body")


async def test_a_tenants_name_is_checked_also_where_it_is_not_needed(product: Client) -> None:
    answer = await product.get("/v1/queues/q/batches", params={"tenant": "\x05", "ids": "acme/b"})
    assert (answer.status_code, answer.json()["field"]) == (400, "tenant")
