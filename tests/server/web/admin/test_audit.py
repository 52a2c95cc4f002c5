"""The audit: each change by an operator leaves a trace, whatever becomes of its server, and no secret in it."""

from __future__ import annotations

import time
from typing import Any

import httpx
import orjson
import pytest
import structlog
import trio
import trio.testing
from attrs import fields

from fairq.errors import OutcomeUnknown, Unauthorized, Unavailable
from fairq.model.audit import cut
from fairq.model.rates import Rate
from fairq.server.engine.net.admission import Admission
from fairq.server.engine.net.origin import Origin
from fairq.server.engine.verbs import audit
from fairq.server.run import Served
from fairq.server.web.admin.operators import Operators
from fairq.store import keys
from fairq.store.audit import BEGUN_SHOWN, Audit
from fairq.tokens import TokenRecord, hash_token, make_token
from fairq.wire import messages as wire
from fairq.wire.terms import Role
from fairq.wire.verbs import CHANGES
from tests.server.harness import OPERATOR, Raw, Refused, raw, running, tenant
from tests.server.refusals import GOOD, REQUESTS, SECRET, Row, good
from tests.server.test_refusals import open_world

# Fields of changing frames that are not recorded, and why.
LEFT_OUT = {
    "ref": "the client's own number", "if_version": "the outcome tells",
    "queue": "noted apart", "tenant": "noted apart", "hash": "of a token",
    "payload": "a payload", "secrets": "secrets", "cursor": "says where to go on", "dry_run": "true changes nothing",
    "group": "a tenant's own text", "dedupe_key": "a tenant's own text", "task_name": "a tenant's own text",
}  # fmt: skip


async def changes(operator: Raw, **which: Any) -> list[dict[str, Any]]:
    """Read the audit, the newest first."""
    found: list[dict[str, Any]] = (await operator.ask("audit", **which))["changes"]
    return found


def test_every_field_of_a_change_is_noted_or_left_out_for_a_reason() -> None:
    named = {field.name for frame in CHANGES for field in fields(frame)}
    assert named - audit.RECORDED == set(audit.TARGETS) | set(LEFT_OUT)


async def test_every_change_is_noted_with_who_when_from_where_and_no_secret(served: Served, server_store: str) -> None:
    async with open_world(served, server_store) as world, raw(served, OPERATOR) as operator:
        for verb in (verb for verb in GOOD if REQUESTS[verb] in CHANGES):
            body = {name: value for name, value in good(verb, Role.OPERATOR).items() if name != "dry_run"}
            earlier = len(await changes(operator))
            assert (await world.answer(Row(verb, Role.OPERATOR, body, "", "")))["type"] == "reply"
            change, *others = await changes(operator)
            assert len(others) == earlier
            assert (change["verb"], change["outcome"]) == (verb, "ok")
            assert (change["label"], change["role"], change["via"]) == (OPERATOR, "operator", "websocket")
            assert change["address"].startswith("127.0.0.1:")
            assert abs(change["at_ms"] - time.time() * 1000) < 60_000
            assert change["queue"] == body.get("queue", "")
            text = orjson.dumps(change).decode()
            assert SECRET not in text
            assert "hash" not in text


async def test_a_change_tells_its_target_what_is_new_and_the_previous_value(operator: Raw) -> None:
    await operator.ask("set_weight", queue="q", tenant="ada", weight=2.5)
    await operator.ask("set_weight", queue="q", tenant="ada", weight=4)
    await operator.ask("set_limits", queue="q", tenant="ada", limits={"max_running": 3})
    url = "https://me:pass@hooks.example/T0/secret?key=hidden"
    await operator.ask("add_webhook", queue="q", url=url, secrets=[SECRET])
    hook, limits, second, first = await changes(operator)
    assert (first["new"], first["previous"]) == ({"weight": 2.5}, 1.0)
    assert (second["new"], second["previous"], second["tenant"]) == ({"weight": 4}, 2.5, "ada")
    assert limits["new"] == {"limits": {"max_running": 3}}
    assert limits["previous"] == {"max_running": None}
    assert hook["target"].endswith(" at hooks.example")
    assert not {"pass", "secret", "hidden"} & set(hook["target"].replace("/", " ").split())


async def test_it_is_read_page_by_page_filtered_and_on_from_a_change(operator: Raw) -> None:
    for n in range(5):
        await operator.ask("set_weight", queue=f"q{n % 2}", tenant="ada", weight=n + 1)
    await operator.ask("set_paused", paused=True, queue="q0", tenant="bob")
    read: list[int] = []
    cursor = None
    while cursor is not None or not read:
        page = await operator.ask("audit", verb="set_weight", count=2, **({"cursor": cursor} if cursor else {}))
        read += [change["new"]["weight"] for change in page["changes"]]
        cursor = page["cursor"] or None
    assert read == [5, 4, 3, 2, 1]
    assert [c["verb"] for c in await changes(operator, queue="q0", tenant="bob")] == ["set_paused"]
    assert await changes(operator, since_ms=1 << 49) == []
    assert (await operator.ask("audit", cursor="0-0"))["changes"] == []
    newest = (await operator.ask("audit", count=1))["newest"]
    assert (await operator.ask("audit", after=newest))["changes"] == []
    await operator.ask("set_paused", paused=False, queue="q0", tenant="bob")
    await operator.ask("set_paused", paused=True, queue="q1")
    later = await operator.ask("audit", after=newest)
    assert [change["verb"] for change in later["changes"]] == ["set_paused", "set_paused"]


async def test_what_was_refused_is_noted_as_that(operator: Raw) -> None:
    with pytest.raises(Refused):
        await operator.ask("set_weight", queue="q", tenant="ada", weight=0)
    with pytest.raises(Refused):
        await operator.ask("revoke_token", id="x\x1b[2J" * 100_000)
    revoked, weight = await changes(operator)
    assert (weight["outcome"], weight["new"]) == ("bad_request", {"weight": 0})
    assert revoked["outcome"] == "bad_request"
    assert "\x1b" not in revoked["target"]
    assert len(revoked["target"]) <= 1_000


async def test_tenants_fill_only_the_audit_of_tenants(operator: Raw, ada: Raw) -> None:
    await ada.enqueue("q", ["a"])
    await ada.ask("schedule", queue="q", name="nightly", payload={"card": "4111"}, every_ms=60_000)
    await ada.ask("cancel", queue="q", ids=["a"])
    assert await changes(operator) == []
    (change,) = await changes(operator, by_tenants=True)
    assert (change["verb"], change["tenant"], change["target"]) == ("schedule", "ada", "nightly")
    assert "4111" not in str(change)
    with pytest.raises(Refused, match="tenant tokens may not send"):
        await ada.ask("audit")


async def test_a_change_that_cannot_be_noted_is_not_carried_out(monkeypatch: pytest.MonkeyPatch, operator: Raw) -> None:
    async def lost(*_: Any) -> None:
        raise OutcomeUnknown("the connection was lost")

    await operator.ask("set_weight", queue="q", tenant="ada", weight=2)
    with monkeypatch.context() as patch:
        patch.setattr(Audit, "begin", lost)
        with pytest.raises(Refused, match=r"^unavailable .*not carried out"):
            await operator.ask("set_weight", queue="q", tenant="ada", weight=9)
    assert (await operator.ask("tenants", queue="q"))["tenants"][0]["weight"] == 2


async def test_a_change_whose_server_died_stays_as_begun_and_then_as_unknown(
    redis_store: Any, monkeypatch: pytest.MonkeyPatch, operator: Raw
) -> None:
    async def away(*_: Any) -> None:
        raise Unavailable("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(Audit, "end", away)
        await operator.ask("set_weight", queue="q", tenant="ada", weight=2)
    page = await operator.ask("audit")
    assert page["changes"] == []
    assert [(c["verb"], c["outcome"]) for c in page["begun"]] == [("set_weight", "begun")]
    assert (await operator.ask("audit", verb="set_paused"))["begun"] == []
    rest = {"label": "", "role": "operator", "address": "a", "via": "http", "target": "x"}
    named = {"token": "t", "verb": "purge", "queue": "q", "tenant": ""}
    redis_store.delete(f"{keys.AUDIT}:begun")
    redis_store.xadd(f"{keys.AUDIT}:begun", {**named, "change": orjson.dumps(rest)}, id="1-0")  # long ago
    await operator.ask("set_paused", paused=True, queue="q")
    page = await operator.ask("audit")
    assert [(c["verb"], c["outcome"]) for c in page["changes"]] == [("set_paused", "ok")]
    assert [(c["verb"], c["outcome"], c["at_ms"]) for c in page["begun"]] == [("purge", "unknown", 1)]
    assert (await operator.ask("audit", since_ms=2))["begun"] == []
    assert (await operator.ask("audit", after="0-1", since_ms=2))["changes"] == page["changes"]
    assert (await operator.ask("audit", after=page["newest"]))["begun"] == page["begun"]
    assert (await operator.ask("audit", after="0-1", since_ms=1 << 49))["changes"] == []


async def test_a_lost_change_is_found_behind_a_hundred_others(redis_store: Any, operator: Raw) -> None:
    rest = orjson.dumps({"label": "", "role": "operator", "address": "a", "via": "http", "target": "x"})
    for number in range(BEGUN_SHOWN + 2):
        named = {"token": "t", "verb": "set_paused" if number else "purge", "queue": "q", "tenant": ""}
        redis_store.xadd(f"{keys.AUDIT}:begun", {**named, "change": rest}, id=f"{number + 1}-0")
    page = await operator.ask("audit", verb="purge")
    assert [(c["verb"], c["outcome"], c["at_ms"]) for c in page["begun"]] == [("purge", "unknown", 1)]
    assert len((await operator.ask("audit", verb="set_paused"))["begun"]) == BEGUN_SHOWN


async def test_requests_over_http_are_noted_with_their_own_address(server_store: str) -> None:
    """All requests of a token share one connection: its first address is not everyone's."""
    async with running(server_store, http_port=0) as served, raw(served, OPERATOR) as operator:
        assert served.http is not None
        base = f"http://{served.http.host}:{served.http.port}"
        headers = {"Authorization": f"Bearer {tenant('ada')}"}
        async with httpx.AsyncClient(base_url=base, headers=headers, verify=False) as client:
            path = "/v1/queues/q/schedules/nightly"
            assert (await client.put(path, json={"payload": 1, "every": 60})).status_code == 201
        (change,) = await changes(operator, by_tenants=True)
        assert (change["address"], change["via"]) == ("127.0.0.1", "http")


async def test_a_page_carries_out_frames_until_its_token_is_revoked(served: Served, operator: Raw) -> None:
    id, text = make_token(Role.OPERATOR)
    app = served.app
    record = TokenRecord(id, "operator", hash_token(text), queues=["q"], label="Ann's dashboard")
    await app.auth.create(record)
    pages = Operators(app, Admission(app.settings), app.nursery)
    identity = await pages.identify(text, "10.0.0.7")
    origin = Origin("10.0.0.7", "dashboard")
    await pages.ask(identity, origin, wire.SetWeight(0, "q", "ada", 2.0))
    (change,) = (await pages.ask(identity, origin, wire.Audit(0)))["changes"]
    found = {name: change[name] for name in ("token", "label", "address", "via")}
    assert found == {"token": id, "label": "Ann's dashboard", "address": "10.0.0.7", "via": "dashboard"}
    await operator.ask("set_weight", queue="other", tenant="ada", weight=2)
    assert len((await pages.ask(identity, origin, wire.Audit(0)))["changes"]) == 1, "its own queues' only"
    await operator.ask("revoke_token", id=id)
    while app.revocations._connections.get(id):
        await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(Unauthorized, match="revoked"):
        await pages.ask(identity, origin, wire.Queues(0))
    with pytest.raises(Unauthorized):
        await pages.identify(text, "10.0.0.7")


def test_texts_are_cut_to_bytes_and_have_no_control_characters() -> None:
    assert cut("a\nb\x1b[1m") == "a?b?[1m"
    for text in ("x" * 999, "é" * 500, "😀" * 250, "x" * 1_000):
        assert cut(text) == text
    for text in ("x" * 1_001, "é" * 501, "😀" * 251, "\ud800" * 5_000):
        assert len(cut(text).encode()) <= 1_000
        assert cut(text).endswith("…")


def test_good_bodies_cover_the_changes() -> None:
    assert {frame.type for frame in CHANGES} <= set(GOOD)


async def test_of_a_tenants_changes_so_many_are_noted_and_logged_as_its_rate_allows(served: Served) -> None:
    with structlog.testing.capture_logs() as logs:
        async with raw(served, tenant("ada")) as ada, raw(served, OPERATOR) as operator:
            await ada.ask("schedule", queue="q", name="s", payload=1, every_ms=3_600_000)
            (usage,) = [each.usage for each in served.app.connections if each.usage]
            usage.changes = Rate(1e-6, 3)
            for _ in range(3):
                await ada.ask("set_schedule_paused", paused=True, queue="q", name="s")
                await ada.ask("set_schedule_paused", paused=False, queue="q", name="s")
            verbs = [change["verb"] for change in await changes(operator, by_tenants=True)]
            assert verbs == ["set_schedule_paused"] * 3 + ["schedule"]
            assert sum(line["event"] == "audit" for line in logs) == 4
