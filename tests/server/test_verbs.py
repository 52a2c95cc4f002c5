"""What each verb refuses: the code and the field, and that nothing was done."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from fairq.model import MAX_BATCH, MAX_ERROR_CHARS, MAX_PAYLOAD_BYTES, MAX_SEARCH_CHARS, MAX_SPAN_MS
from fairq.server.run import Served
from fairq.wire.messages import CLIENT_FRAMES, MAX_CREDIT, Role

from .harness import OPERATOR, WORKER, Refused, raw, tenant

TASK = {"id": "a", "payload": 1}
REPORT = {"id": "a", "attempt": 1, "fraction": 0.5}
LETTER = {"id": "abcd", "role": "worker", "hash": "0" * 64}
ATTACH = {"worker": "w", "queues": ["q"], "credit": 1}
SCHEDULING = {"schedule", "unschedule", "pause_schedule", "resume_schedule", "schedules"}  # see test_schedules.py
TOKENS = {Role.TENANT: tenant("ada"), Role.WORKER: WORKER, Role.OPERATOR: OPERATOR}


def task(**changes: Any) -> dict[str, Any]:
    """An enqueue of one task with something changed (or, None, left out)."""
    body = {name: value for name, value in {**TASK, **changes}.items() if value is not None}
    return {"queue": "q", "tasks": [body]}


ENQUEUE: list[tuple[dict[str, Any], str, str]] = [
    ({"tasks": [TASK]}, "bad_request", "queue"),
    ({"queue": 5, "tasks": [TASK]}, "bad_request", "queue"),
    ({"queue": "Q", "tasks": [TASK]}, "bad_request", "queue"),
    ({"queue": "q" * 64, "tasks": [TASK]}, "bad_request", "queue"),
    ({"queue": "q{x}", "tasks": [TASK]}, "bad_request", "queue"),
    ({"queue": "q\n", "tasks": [TASK]}, "bad_request", "queue"),
    ({"queue": "q", "tasks": [TASK], "colour": 1}, "bad_request", "colour"),
    ({"queue": "q"}, "bad_request", "tasks"),
    ({"queue": "q", "tasks": {}}, "bad_request", "tasks"),
    ({"queue": "q", "tasks": []}, "bad_request", "tasks"),
    ({"queue": "q", "tasks": [1]}, "bad_request", "tasks"),
    ({"queue": "q", "tasks": [{"id": f"id-{n}", "payload": 1} for n in range(MAX_BATCH + 1)]}, "too_large", "tasks"),
    (task(id=None), "bad_request", "id"),
    (task(id=""), "bad_request", "id"),
    (task(id="a b"), "bad_request", "id"),
    (task(id="a" * 65), "bad_request", "id"),
    ({"queue": "q", "tasks": [{"id": "a"}]}, "bad_request", "payload"),
    (task(payload="x" * MAX_PAYLOAD_BYTES), "too_large", "payload"),
    (task(tenant="bob"), "bad_request", "tenant"),
    (task(delay_ms=-1), "bad_request", "delay_ms"),
    (task(delay_ms=1.5), "bad_request", "delay_ms"),
    (task(delay_ms=True), "bad_request", "delay_ms"),
    (task(delay_ms="1"), "bad_request", "delay_ms"),
    (task(delay_ms=MAX_SPAN_MS + 1), "bad_request", "delay_ms"),
    (task(start_at_ms=1 << 60), "bad_request", "start_at_ms"),
    (task(delay_ms=1, start_at_ms=1), "bad_request", "start_at_ms"),
    (task(expires_in_ms=1, expires_at_ms=1), "bad_request", "expires_at_ms"),
    (task(start_at_ms=2, expires_at_ms=1), "bad_request", "expires_at_ms"),
    (task(delay_ms=2, expires_in_ms=2), "bad_request", "expires_in_ms"),
    (task(max_attempts=-1), "bad_request", "max_attempts"),
    (task(max_attempts=1001), "bad_request", "max_attempts"),
    (task(priority=-1), "bad_request", "priority"),
    (task(priority=100), "bad_request", "priority"),
    (task(priority="high"), "bad_request", "priority"),
    (task(dedupe_key=5), "bad_request", "dedupe_key"),
    (task(dedupe_key="x" * 256), "bad_request", "dedupe_key"),
    (task(dedupe_key="a\nb"), "bad_request", "dedupe_key"),
    (task(dedupe_key="k", dedupe_window_ms=-1), "bad_request", "dedupe_window_ms"),
    (task(dedupe_window_ms=5), "bad_request", "dedupe_window_ms"),
    (task(result_ttl_ms=-1), "bad_request", "result_ttl_ms"),
    (task(batch="a b"), "bad_request", "batch"),
]  # fmt: skip

OTHERS: list[tuple[str, dict[str, Any], str, str | None]] = [
    ("tasks", {"queue": "q", "ids": []}, "bad_request", "ids"),
    ("tasks", {"queue": "q", "ids": ["a b"]}, "bad_request", "ids"),
    ("tasks", {"queue": "q", "ids": ["a"] * (MAX_BATCH + 1)}, "too_large", "ids"),
    ("tasks", {"queue": "{", "ids": ["a"]}, "bad_request", "queue"),
    ("set_cap", {"queue": "q", "tenant": "ada", "cap": -1}, "bad_request", "cap"),
    ("set_cap", {"queue": "q", "tenant": "ada", "cap": 1_000_001}, "bad_request", "cap"),
    ("set_cap", {"queue": "q", "tenant": "A", "cap": 1}, "bad_request", "tenant"),
    ("cancel", {"queue": "q", "ids": []}, "bad_request", "ids"),
    ("cancel", {"queue": "q", "ids": ["a b"]}, "bad_request", "ids"),
    ("cancel", {"queue": "q", "ids": ["a", "a"]}, "bad_request", "ids"),
    ("cancel", {"queue": "{", "ids": ["a"]}, "bad_request", "queue"),
    ("reschedule", {"queue": "q", "ids": []}, "bad_request", "ids"),
    ("reschedule", {"queue": "q", "ids": ["a", "a"]}, "bad_request", "ids"),
    ("reschedule", {"queue": "q", "ids": ["a"], "delay_ms": -1}, "bad_request", "delay_ms"),
    ("reschedule", {"queue": "q", "ids": ["a"], "start_at_ms": 1 << 60}, "bad_request", "start_at_ms"),
    ("reschedule", {"queue": "q", "ids": ["a"], "delay_ms": 1, "start_at_ms": 1}, "bad_request", "start_at_ms"),
    ("peek", {"queue": "q", "count": 0}, "bad_request", "count"),
    ("peek", {"queue": "q", "count": 501}, "bad_request", "count"),
    ("peek", {"queue": "q"}, "bad_request", "tenant"),
    ("peek", {"queue": "q", "tenant": "B:b"}, "bad_request", "tenant"),
    ("ended", {"queue": "q", "ids": []}, "bad_request", "ids"),
    ("ended", {"queue": "q", "ids": ["a", "a"]}, "bad_request", "ids"),
    ("ended", {"queue": "q", "ids": ["a"], "timeout_ms": 60_001}, "bad_request", "timeout_ms"),
    ("open_batch", {"queue": "q", "id": "a b"}, "bad_request", "id"),
    ("open_batch", {"queue": "q", "id": "b" * 41}, "bad_request", "id"),
    ("open_batch", {"queue": "Q", "id": "b"}, "bad_request", "queue"),
    ("open_batch", {"queue": "q", "id": "b", "cap": -1}, "bad_request", "cap"),
    ("open_batch", {"queue": "q", "id": "b", "cap": 1_000_001}, "bad_request", "cap"),
    ("open_batch", {"queue": "q", "id": "b", "on_death": "x" * 65_535}, "too_large", "on_death"),
    ("close_batch", {"queue": "q", "id": "a b"}, "bad_request", "id"),
    ("close_batch", {"queue": "q", "id": "none"}, "not_found", "batch"),
    ("cancel_batch", {"queue": "q", "id": "none"}, "not_found", "batch"),
    ("batch", {"queue": "q", "id": "none"}, "not_found", "id"),
    ("batch", {"queue": "q", "id": "b", "timeout_ms": -1}, "bad_request", "timeout_ms"),
    ("attach", {**ATTACH, "worker": ""}, "bad_request", "worker"),
    ("attach", {**ATTACH, "worker": "a b"}, "bad_request", "worker"),
    ("attach", {**ATTACH, "queues": []}, "bad_request", "queues"),
    ("attach", {**ATTACH, "queues": ["Q"]}, "bad_request", "queue"),
    ("attach", {**ATTACH, "queues": [f"q{n}" for n in range(101)]}, "bad_request", "queues"),
    ("attach", {**ATTACH, "credit": -1}, "bad_request", "credit"),
    ("attach", {**ATTACH, "credit": MAX_CREDIT + 1}, "bad_request", "credit"),
    ("attach", {**ATTACH, "leases": [{"queue": "x", "id": "a", "attempt": 1}]}, "bad_request", "leases"),
    ("attach", {**ATTACH, "started_at_ms": -1}, "bad_request", "started_at_ms"),
    ("attach", {**ATTACH, "started_at_ms": 1 << 60}, "bad_request", "started_at_ms"),
    ("attach", {**ATTACH, "started_at_ms": "1"}, "bad_request", "started_at_ms"),
    ("attach", {**ATTACH, "weights": [1, 2]}, "bad_request", "weights"),
    ("attach", {**ATTACH, "weights": [0]}, "bad_request", "weights"),
    ("attach", {**ATTACH, "weights": [-1]}, "bad_request", "weights"),
    ("attach", {**ATTACH, "weights": [1e9]}, "bad_request", "weights"),
    ("attach", {**ATTACH, "weights": ["1"]}, "bad_request", "weights"),
    ("attach", {**ATTACH, "weights": {"q": 1}}, "bad_request", "weights"),
    ("idle", {}, "bad_request", "type"),  # attach first
    ("progress", {"queue": "q"}, "bad_request", "reports"),
    ("progress", {"queue": "q", "reports": [1]}, "bad_request", "reports"),
    ("settle", {"queue": "q", "settlements": []}, "bad_request", "settlements"),
    ("queues", {"queue": "q"}, "bad_request", "queue"),
    ("configure", {"queue": "q", "settings": {}}, "bad_request", "settings"),
    ("configure", {"queue": "q", "settings": {"share": "luck"}}, "bad_request", "share"),
    ("configure", {"queue": "q", "settings": {"lease_ms": 1}}, "bad_request", "lease_ms"),
    ("configure", {"queue": "q", "settings": {"lease_ms": 1e4}}, "bad_request", "lease_ms"),
    ("configure", {"queue": "q", "settings": {"colour": 1}}, "bad_request", "colour"),
    ("configure", {"queue": "q", "settings": {"max_attempts": 3, "dead_keep": -1}}, "bad_request", "dead_keep"),
    ("tenants", {"queue": "nowhere"}, "not_found", "queue"),
    ("set_weight", {"queue": "q", "tenant": "Ada", "weight": 1}, "bad_request", "tenant"),
    ("set_weight", {"queue": "q", "tenant": "ada"}, "bad_request", "weight"),
    ("set_weight", {"queue": "q", "tenant": "ada", "weight": 0}, "bad_request", "weight"),
    ("set_weight", {"queue": "q", "tenant": "ada", "weight": -1}, "bad_request", "weight"),
    ("set_weight", {"queue": "q", "tenant": "ada", "weight": 1e9}, "bad_request", "weight"),
    ("set_weight", {"queue": "q", "tenant": "ada", "weight": 1e-9}, "bad_request", "weight"),
    ("set_weight", {"queue": "q", "tenant": "ada", "weight": "1"}, "bad_request", "weight"),
    ("set_weight", {"queue": "q", "tenant": "ada", "weight": True}, "bad_request", "weight"),
    ("workers", {"queue": "q"}, "bad_request", "queue"),
    ("drain_worker", {}, "bad_request", "worker"),
    ("drain_worker", {"worker": ""}, "bad_request", "worker"),
    ("drain_worker", {"worker": "a b"}, "bad_request", "worker"),
    ("drain_worker", {"worker": 5}, "bad_request", "worker"),
    ("pause", {"queue": "q", "tenant": ""}, "bad_request", "tenant"),
    ("resume", {"queue": ""}, "bad_request", "queue"),
    ("set_windows", {"queue": "q"}, "bad_request", "windows"),
    ("set_windows", {"queue": "Q", "windows": ""}, "bad_request", "queue"),
    ("set_windows", {"queue": "q", "windows": "12:00-15:00", "tenant": "Ada"}, "bad_request", "tenant"),
    ("set_windows", {"queue": "q", "windows": "12:00-15:00", "tenant": ""}, "bad_request", "tenant"),
    ("set_windows", {"queue": "q", "windows": None}, "bad_request", "windows"),
    ("set_windows", {"queue": "q", "windows": ["12:00-15:00"]}, "bad_request", "windows"),
    ("set_windows", {"queue": "q", "windows": " "}, "bad_request", "windows"),
    ("set_windows", {"queue": "q", "windows": "at noon"}, "bad_request", "windows"),
    ("set_windows", {"queue": "q", "windows": "12:00-12:60"}, "bad_request", "windows"),
    ("set_windows", {"queue": "q", "windows": "12:00-12:00"}, "bad_request", "windows"),
    ("set_windows", {"queue": "q", "windows": "24:00-01:00"}, "bad_request", "windows"),
    ("set_windows", {"queue": "q", "windows": "00:00-24:00"}, "bad_request", "windows"),
    ("set_windows", {"queue": "q", "windows": "12:00-15:00,"}, "bad_request", "windows"),
    ("set_windows", {"queue": "q", "windows": "day 12:00-15:00"}, "bad_request", "windows"),
    ("set_windows", {"queue": "q", "windows": "mon 12:00-15:00, 16:00-17:00"}, "bad_request", "windows"),
    ("set_windows", {"queue": "q", "windows": "12:00-15:00 Europe/Atlantis"}, "bad_request", "windows"),
    ("set_windows", {"queue": "q", "windows": "12:00-15:00 ../../etc/passwd"}, "bad_request", "windows"),
    ("set_windows", {"queue": "q", "windows": ", ".join(["12:00-13:00"] * 33)}, "bad_request", "windows"),
    ("set_windows", {"queue": "q", "windows": "12:00-15:00" + " " * 1000}, "bad_request", "windows"),
    ("dead", {"queue": "Q"}, "bad_request", "queue"),
    ("dead", {"queue": "q", "offset": 1}, "bad_request", "offset"),
    ("dead", {"queue": "q", "count": 0}, "bad_request", "count"),
    ("dead", {"queue": "q", "count": 501}, "bad_request", "count"),
    ("dead", {"queue": "q", "tenant": ""}, "bad_request", "tenant"),
    ("dead", {"queue": "q", "tenant": "Ada"}, "bad_request", "tenant"),
    ("dead", {"queue": "q", "reason": ""}, "bad_request", "reason"),
    ("dead", {"queue": "q", "reason": "boredom"}, "bad_request", "reason"),
    ("dead", {"queue": "q", "error": ""}, "bad_request", "error"),
    ("dead", {"queue": "q", "error": "x" * (MAX_SEARCH_CHARS + 1)}, "bad_request", "error"),
    ("dead", {"queue": "q", "error": 503}, "bad_request", "error"),
    ("dead", {"queue": "q", "older_than_ms": -1}, "bad_request", "older_than_ms"),
    ("dead", {"queue": "q", "older_than_ms": 1.5}, "bad_request", "older_than_ms"),
    ("dead", {"queue": "q", "older_than_ms": MAX_SPAN_MS + 1}, "bad_request", "older_than_ms"),
    ("dead", {"queue": "q", "younger_than_ms": -1}, "bad_request", "younger_than_ms"),
    ("dead", {"queue": "q", "older_than_ms": 5, "younger_than_ms": 5}, "bad_request", "younger_than_ms"),
    ("dead", {"queue": "q", "cursor": ""}, "bad_request", "cursor"),
    ("dead", {"queue": "q", "cursor": "yesterday"}, "bad_request", "cursor"),
    ("dead", {"queue": "q", "cursor": f"1:1:{'a' * 200}"}, "bad_request", "cursor"),
    ("dead", {"queue": "q", "brief": 1}, "bad_request", "brief"),
    ("letter", {"queue": "q", "id": "a b"}, "bad_request", "id"),
    ("letter", {"queue": "q", "id": ""}, "bad_request", "id"),
    ("letter", {"queue": "q"}, "bad_request", "id"),
    ("letter", {"queue": "Q", "id": "a"}, "bad_request", "queue"),
    ("letter", {"queue": "q", "id": "ada/a"}, "not_found", "id"),
    ("replay", {"queue": "q", "ids": []}, "bad_request", "ids"),
    ("replay", {"queue": "q", "ids": ["a b"]}, "bad_request", "ids"),
    ("replay", {"queue": "q", "ids": ["a"] * (MAX_BATCH + 1)}, "too_large", "ids"),
    ("purge", {"queue": "q", "ids": ["a/b/c"]}, "bad_request", "ids"),
    ("purge", {"queue": "q", "ids": []}, "bad_request", "ids"),
    ("create_token", {**LETTER, "id": "ab"}, "bad_request", "id"),
    ("create_token", {**LETTER, "role": "king"}, "bad_request", "role"),
    ("create_token", {**LETTER, "hash": "secret"}, "bad_request", "hash"),
    ("create_token", {**LETTER, "role": "tenant"}, "bad_request", "tenant"),
    ("create_token", {**LETTER, "role": "tenant", "tenant": "A"}, "bad_request", "tenant"),
    ("create_token", {**LETTER, "tenant": "ada"}, "bad_request", "tenant"),
    ("create_token", {**LETTER, "queues": ["Q"]}, "bad_request", "queues"),
    ("revoke_token", {"id": "abcd"}, "not_found", "id"),
    ("fly", {}, "unknown_verb", "type"),
]

SETTLEMENTS: list[tuple[dict[str, Any], str]] = [
    ({"action": "reap"}, "action"),
    ({"action": None}, "action"),
    ({"id": "a b"}, "id"),
    ({"attempt": 0}, "attempt"),
    ({"attempt": "1"}, "attempt"),
    ({"delay_ms": -1}, "delay_ms"),
    ({"delay_ms": MAX_SPAN_MS + 1}, "delay_ms"),
    ({"error": 5}, "error"),
    ({"error": "x" * (MAX_ERROR_CHARS + 1)}, "error"),
    ({"colour": 1}, "colour"),
]  # fmt: skip


def role_for(verb: str) -> Role:
    """A role that may say this verb."""
    for frame, (roles, _) in CLIENT_FRAMES.items():
        if frame.type == verb:
            return min(roles, key=lambda role: role.value)
    return Role.OPERATOR


def test_each_verb_is_in_the_tables() -> None:
    requests = {frame.type for frame in CLIENT_FRAMES} - {"ping", "drain"} - SCHEDULING
    without_a_refusal_of_their_own = {"list_tokens", "credit", "extend"}
    assert {verb for verb, *_ in OTHERS} | {"enqueue"} | without_a_refusal_of_their_own == requests | {"fly"}


async def test_a_bad_enqueue_names_the_field_and_nothing_is_stored(served: Served) -> None:
    async with raw(served, tenant("ada")) as ada:
        for body, code, field in ENQUEUE:
            with pytest.raises(Refused) as caught:
                await ada.ask("enqueue", **body)
            assert (caught.value.code, caught.value.field) == (code, field), orjson.dumps(body)[:200]
        assert await served.app.store.queues() == []
        assert await ada.enqueue("q", ["a"]) == ["ok"]  # the connection lives


async def test_a_batch_with_one_bad_task_is_refused_as_a_whole(served: Served) -> None:
    async with raw(served, tenant("ada")) as ada:
        with pytest.raises(Refused):
            await ada.ask("enqueue", queue="q", tasks=[TASK, {"id": "b", "payload": 1, "delay_ms": -1}])
        assert await served.app.store.queues() == []


@pytest.mark.parametrize("role", list(Role))
async def test_a_bad_request_names_the_field_and_the_connection_lives(served: Served, role: Role) -> None:
    async with raw(served, TOKENS[role]) as client:
        for verb, body, code, field in OTHERS:
            if role_for(verb) is role:
                with pytest.raises(Refused) as caught:
                    await client.ask(verb, **body)
                assert (caught.value.code, caught.value.field) == (code, field), (verb, body)
                assert caught.value.frame["message"]
    assert await served.app.store.queues() == []
    assert await served.app.store.read_tokens() == {}


async def test_a_bad_settlement_names_the_field_and_settles_nothing(served: Served) -> None:
    async with raw(served, tenant("ada")) as ada, raw(served, WORKER) as worker:
        await ada.enqueue("q", ["a"])
        await worker.attach("q", credit=1)
        (pushed,) = await worker.pushed()
        good = {"action": "ack", "id": pushed["id"], "attempt": 1}
        for changes, field in SETTLEMENTS:
            with pytest.raises(Refused) as caught:
                await worker.ask("settle", queue="q", settlements=[good, {**good, **changes}])
            assert (caught.value.code, caught.value.field) == ("bad_request", field), changes
        for leases in ([{"id": "a"}], [{"id": "a", "attempt": 0}], [{"id": "a b", "attempt": 1}]):
            with pytest.raises(Refused) as caught:
                await worker.ask("extend", queue="q", leases=leases)
            assert caught.value.code == "bad_request"
        with pytest.raises(Refused) as caught:
            await worker.ask("credit", credit=MAX_CREDIT + 1)
        assert caught.value.field == "credit"
        assert await worker.settle("q", "ack", pushed) == ["ok"]


@pytest.mark.parametrize("role", list(Role))
async def test_a_verb_of_another_role_is_forbidden(served: Served, role: Role) -> None:
    async with raw(served, TOKENS[role]) as client:
        for frame, (roles, _) in CLIENT_FRAMES.items():
            if role in roles or frame.type in ("ping", "drain"):
                continue
            body = next((body for verb, body, *_ in OTHERS if verb == frame.type), {})
            valid: dict[str, Any] = {
                "enqueue": {"queue": "q", "tasks": [TASK]}, "tasks": {"queue": "q", "ids": ["a"]}, "attach": ATTACH,
                "cancel": {"queue": "q", "ids": ["a"]}, "peek": {"queue": "q"},
                "reschedule": {"queue": "q", "ids": ["a"]}, "ended": {"queue": "q", "ids": ["a"]},
                "open_batch": {"queue": "q", "id": "b"}, "close_batch": {"queue": "q", "id": "b"},
                "cancel_batch": {"queue": "q", "id": "b"}, "batch": {"queue": "q", "id": "b"},
                "credit": {"credit": 1}, "queues": {}, "revoke_token": {"id": "abcd"}, "tenants": {"queue": "q"},
                "settle": {"queue": "q", "settlements": [{"action": "ack", "id": "a", "attempt": 1}]},
                "extend": {"queue": "q", "leases": [{"id": "a", "attempt": 1}]},
                "configure": {"queue": "q", "settings": {"lease_ms": 1000}},
                "set_cap": {"queue": "q", "tenant": "ada"},
                "set_weight": {"queue": "q", "tenant": "ada", "weight": 2}, "pause": {"queue": "q"},
                "resume": {"queue": "q"}, "set_windows": {"queue": "q", "windows": ""}, "dead": {"queue": "q"},
                "letter": {"queue": "q", "id": "a"}, "replay": {"queue": "q", "ids": ["a"]},
                "purge": {"queue": "q", "ids": ["a"]}, "create_token": LETTER, "list_tokens": {},
                "idle": {}, "progress": {"queue": "q", "reports": [REPORT]},
                "workers": {}, "drain_worker": {"worker": "w"},
                **{verb: {"queue": "q", "name": "n"} for verb in SCHEDULING},
                "schedule": {"queue": "q", "name": "n", "payload": 1},
            }  # fmt: skip
            with pytest.raises(Refused) as caught:
                await client.ask(frame.type, **valid.get(frame.type, body))
            assert (caught.value.code, caught.value.field) == ("forbidden", "type"), frame.type
    assert await served.app.store.queues() == []


async def test_another_tenants_tasks_look_unknown(served: Served) -> None:
    async with raw(served, tenant("ada")) as ada, raw(served, tenant("bob")) as bob, raw(served, OPERATOR) as operator:
        await ada.enqueue("q", ["a"])
        await bob.enqueue("q", ["b"], delay_ms=60_000)
        seen = {row["id"]: row for row in (await bob.ask("tasks", queue="q", ids=["a", "b", "c"]))["tasks"]}
        assert seen["a"] == {"id": "a", "state": "unknown"}
        assert seen["c"] == {"id": "c", "state": "unknown"}
        assert (seen["b"]["state"], seen["b"]["tenant"]) == ("delayed", "bob")
        both = (await operator.ask("tasks", queue="q", ids=["ada/a", "bob/b"]))["tasks"]
        assert [row["state"] for row in both] == ["ready", "delayed"]


async def test_two_tenants_may_choose_the_same_id(served: Served) -> None:
    async with raw(served, tenant("ada")) as ada, raw(served, tenant("bob")) as bob:
        assert await ada.enqueue("q", ["order-1"]) == ["ok"]
        assert await bob.enqueue("q", ["order-1"]) == ["ok"]


async def test_each_tenants_tasks_are_its_tokens_tenants(served: Served) -> None:
    async with raw(served, tenant("ada")) as ada, raw(served, OPERATOR) as operator:
        await ada.enqueue("q", ["a"])
        (row,) = (await operator.ask("tenants", queue="q"))["tenants"]
        assert (row["tenant"], row["ready"], row["weight"]) == ("ada", 1, 1.0)


async def test_operators_see_and_change_what_there_is(served: Served) -> None:
    async with raw(served, tenant("ada")) as ada, raw(served, OPERATOR) as operator, raw(served, WORKER) as worker:
        assert (await operator.ask("queues"))["queues"] == []
        await ada.enqueue("q", ["a"])
        assert (await operator.ask("set_weight", queue="q", tenant="ada", weight=3))["before"] == 1
        assert (await operator.ask("set_weight", queue="q", tenant="ada", weight=0.5))["before"] == 3
        assert (await operator.ask("pause", queue="q"))["before"] is False
        assert (await operator.ask("resume", queue="q"))["before"] is True
        await operator.ask("configure", queue="q", settings={"share": "count", "lease_ms": 5000})
        await worker.attach("q", credit=1)
        await worker.pushed()
        (row,) = (await operator.ask("queues"))["queues"]
        assert (row["queue"], row["leased"], row["workers"]) == ("q", 1, 1)
        assert (row["settings"]["share"], row["settings"]["lease_ms"]) == ("count", 5000)


@pytest.mark.parametrize("text", ["", "[]", "1", "{", '{"type":"queues"}', '{"ref":1}', '{"a":1,"a":2}', "[" * 5000])
async def test_what_is_no_frame_is_told_so_and_the_connection_lives(served: Served, text: str) -> None:
    async with raw(served, OPERATOR) as operator:
        await operator.transport.send(text)
        assert (await operator.receive())["type"] == "error"
        assert (await operator.ask("queues"))["queues"] == []


async def test_numbers_that_are_none_are_refused(served: Served) -> None:
    async with raw(served, OPERATOR) as operator:
        for value in ("NaN", "Infinity", "-Infinity", "1e999"):
            await operator.transport.send(
                f'{{"type":"set_weight","ref":1,"queue":"q","tenant":"ada","weight":{value}}}'
            )
            answer = await operator.receive()
            assert (answer["type"], answer["code"]) in (("error", "bad_frame"), ("error", "bad_request"))
    assert await served.app.store.queues() == []
