"""Changes from pages: each is announced, carried out once, and refused in words when it cannot be."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest

from fairq.server.engine.verbs import cancel_all
from fairq.server.web.dashboard import actions as module
from fairq.server.web.dashboard.actions import ACTIONS
from tests.server.harness import WORKER, raw, tenant

from .harness import FORM, Raw, Site, busy, fields_of, text_of, visited

ADA: Any = {"queue": "q", "tenant": "ada"}


async def test_a_weight_is_set(site: Site, worker: Raw) -> None:
    assert (await site.open("weight", **ADA))["weight"] == "1"
    assert await site.do("weight", {"weight": "2.5"}, **ADA) == "Weight of ada: 1 → 2.5"
    assert (await site.store.tenants("q", ["ada"]))[0].weight == 2.5
    for wrong, said in (("0", "must not be 0"), ("x", "must be a number"), ("", "missing"), ("1e9", "10000")):
        assert said in await site.do("weight", {"weight": wrong}, **ADA), wrong
    assert (await site.store.tenants("q", ["ada"]))[0].weight == 2.5


async def test_no_more_dead_letters_are_deleted_than_were_counted(site: Site, worker: Raw) -> None:
    await worker.settle("q", "reject", *await worker.pushed(), error="timeout")
    spaces = {"queue": "q", "error": " "}
    dialog = text_of((await site.browser.get("/do/purge-dead", params=spaces)).text)
    assert "Delete 1 dead letters of queue q: error ' '." in dialog
    assert await site.do("purge-dead", **spaces) == "1 dead letters deleted"
    assert "timeout" in text_of(await site.read("/dead"))


async def test_dead_letters_that_match_are_found_and_counted_behind_many_others(site: Site) -> None:
    async with raw(site.served, tenant("ada")) as ada:
        async with raw(site.served, WORKER) as worker:
            await worker.attach("q", credit=500)
            for error, many in (("smtp", 500), ("smtp", 20), ("timeout", 2)):
                await ada.enqueue("q", [f"{error}{many}-{n}" for n in range(many)])
                assert "ok" in await worker.settle("q", "reject", *await worker.pushed(many), error=error)
        text = text_of(await site.read("/dead?queue=q&error=time"))
        assert "Replay all 2 that match" in text
        assert "ada/timeout2-1" in text
        assert "ada/timeout2-1" in text_of(await site.read("/search?text=timeo"))
        assert "Replay all 522 that match" in text_of(await site.read("/dead?queue=q"))
        dialog = await site.browser.get("/do/replay", params={"queue": "q", "error": "time"})
        assert "Replay 2 dead letters of queue q" in text_of(dialog.text)
        for wanted, said in (("time", "2 dead letters deleted"), ("smtp", "520 dead letters deleted")):
            assert await site.do("purge-dead", queue="q", error=wanted) == said


async def test_a_change_is_in_the_audit_and_on_the_chart(site: Site, worker: Raw) -> None:
    await site.served.app.recorder.flush()  # the chart begins with the first slot of the history
    await site.do("weight", {"weight": "4"}, **ADA)
    text = text_of(await site.read("/audit?tenant=ada"))
    assert "dev-operator 127.0.0.1 dashboard set weight q ada 1 weight 4 ok" in text
    await site.served.app.recorder.flush()
    chart = re.search(r'data-chart="([^"]*)"', await site.read("/?period=1h"))
    assert chart
    assert [mark["text"] for mark in json.loads(unescape(chart[1]))["marks"]] == ["ada 1 → 4"]
    stale = await site.open("weight", **ADA)
    await site.do("weight", {"weight": "5"}, **ADA)
    again = await site.browser.post("/do/weight", data=stale | {"weight": "6"}, headers=FORM)
    assert again.status_code == 412
    assert (await site.store.tenants("q", ["ada"]))[0].weight == 5


DIALOGS: list[tuple[str, Any, str]] = [
    *((action, ADA, "tenant ada in queue q") for action in ("weight", "pause", "resume", "limits", "hours", "purge")),
    *((action, {"queue": "q"}, "queue q") for action in ("pause", "resume", "limits", "hours", "settings", "purge")),
]


async def test_a_dialog_says_what_it_is_about(site: Site, worker: Raw) -> None:
    for action, target, said in DIALOGS:
        assert said in text_of((await site.browser.get(f"/do/{action}", params=target)).text)


TARGETS: list[Any] = [ADA, {"queue": "q"}]


async def test_a_queue_and_a_tenant_are_paused_and_resumed(server_store: str) -> None:
    async def is_paused() -> bool:
        state: Any = (await site.store.tenants("q", ["ada"]))[0] if "tenant" in target else await site.store.queue("q")
        return bool(state.is_paused)

    async with busy(server_store) as (site, _):
        for target in TARGETS:
            assert (await site.do("pause", **target)).endswith("is paused")
            assert await is_paused()
            assert (await site.do("resume", **target)).endswith("is resumed")
            assert not await is_paused()


async def test_limits_and_hours_and_settings_are_set(site: Site, worker: Raw) -> None:
    await site.do("limits", {"max_running": "3", "rate": "1.5"}, **ADA)
    now = await site.open("limits", **ADA)
    assert (now["max_running"], now["rate"], now["queued"]) == ("3", "1.5", "")
    await site.do("limits", {"max_running": ""}, **ADA)
    assert (await site.open("limits", **ADA))["max_running"] == ""
    assert "max_running" in await site.do("limits", {"max_running": "-1"}, **ADA)
    for rate in (1 / 3600, 0.0125, 12_345.678):
        await site.do("limits", {"rate": repr(rate)}, **ADA)
        await site.do("limits", await site.open("limits", **ADA), **ADA)
        assert (await site.store.limits("q", "ada")).rate == rate, "a dialog that is not edited changes nothing"
    await site.do("weight", {"weight": "1500.5"}, **ADA)
    assert (await site.open("weight", **ADA))["weight"] == "1500.5"
    await site.do("limits", {"queued": "7"}, queue="q")
    assert (await site.open("limits", queue="q"))["queued"] == "7"
    assert "mon-fri 08:00-18:00 UTC" in await site.do("hours", {"opening_hours": "mon-fri 08:00-18:00 UTC"}, **ADA)
    assert "always open" in await site.do("hours", {"opening_hours": ""}, **ADA)
    assert "opening" in await site.do("hours", {"opening_hours": "whenever"}, queue="q")
    note = await site.do("settings", {"lease_ms": "5000", "share": "count"}, queue="q")
    assert note == "Queue q: lease_ms 30000 → 5000, share time → count"
    assert await site.do("settings", queue="q") == "Nothing was changed"
    assert "lease_ms" in await site.do("settings", {"lease_ms": "1"}, queue="q")


async def test_a_task_is_cancelled_a_dead_letter_replayed_or_deleted(site: Site, worker: Raw) -> None:
    t1: Any = {"queue": "q", "id": "ada/t1"}
    dies: Any = {"queue": "q", "id": "ada/dies"}
    assert await site.do("cancel", **t1) == "ada/t1 is cancelled"
    assert "gone" in await site.do("cancel", **t1)
    assert await site.do("replay-one", **dies) == "ada/dies is replayed"
    assert "gone" in await site.do("purge-one", **dies)
    assert [each.state for each in await site.store.tasks("q", ["ada/t1", "ada/dies"])] == ["cancelled", "ready"]


async def test_a_dead_task_whose_letter_is_deleted_is_reported_without_it(site: Site, worker: Raw) -> None:
    path = "/queues/q/tasks/ada/dies"
    assert "Replay" in await site.read(path)
    assert "deleted" in await site.do("purge-one", queue="q", id="ada/dies")
    text = text_of(await site.read(path))
    assert "dead" in text
    assert "Replay" not in text


async def test_dead_letters_are_replayed_by_choice_and_by_filter(site: Site, worker: Raw) -> None:
    async with raw(site.served, tenant("bob")) as bob:
        await bob.enqueue("q", [f"b{n}" for n in range(6)], max_attempts=1)
        later = {"error": "other", "delay_ms": 3_600_000}  # ada's t0 goes again then
        await worker.settle("q", "nack", *await worker.pushed(), **later)
        await site.do("cancel", queue="q", id="ada/t1")
        await site.do("cancel", queue="q", id="ada/t2")
        for _ in range(6):
            await worker.settle("q", "nack", *await worker.pushed(), error="no such mailbox")
        assert "6 dead letters" in text_of(
            (await site.browser.get("/do/replay", params={"queue": "q", "tenant": "bob"})).text
        )
        chosen = {"queue": "q", "ids": "\n".join(["bob/b0", "bob/b1", *(f"bob/no-{n:050}" for n in range(498))])}
        asked = await site.browser.post("/ask/replay", data=chosen, headers=FORM)
        assert "500 chosen dead letters" in text_of(asked.text)
        sent = await site.browser.post("/do/replay", data=fields_of(asked.text), headers=FORM)
        assert text_of(sent.text) == "2 of 500 dead letters replayed"
        assert await site.do("purge-dead", queue="q", error="no such mailbox") == "4 dead letters deleted"
        assert [each.id for each in (await site.store.dead("q", count=9)).letters] == ["ada/dies"]
        assert await site.do("replay", queue="q") == "1 dead letters replayed"


async def test_much_work_goes_on_at_the_next_press(server_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORK_S", -1.0)
    monkeypatch.setattr(cancel_all, "_WORK_S", -1.0)
    async with visited(server_store) as site, raw(site.served, tenant("ada")) as ada:
        for part in range(6):
            await ada.enqueue("q", [f"{part}-{n}" for n in range(200)])
        note = await site.do("purge", **ADA)
        assert "do it again to go on" in note
        while "do it again" in (note := await site.do("purge", **ADA)):
            pass
        assert (await site.store.queue("q")).ready == 0


async def test_workers_schedules_and_batches_are_changed(site: Site, worker: Raw) -> None:
    async with raw(site.served, tenant("ada")) as ada:
        assert await site.do("drain", worker="w1") == "1 worker named w1 are draining".replace("are", "is")
        assert "draining" in await site.read("/workers")
        await ada.ask("schedule", queue="q", name="nightly", payload=1, cron="0 3 * * *")
        nightly: Any = {**ADA, "name": "nightly"}
        await site.do("pause-schedule", **nightly)
        assert "Resume" in await site.read("/schedules")
        await site.do("resume-schedule", **nightly)
        await site.do("unschedule", **nightly)
        assert "There are no schedules" in await site.read("/schedules")
        await ada.ask("open_batch", queue="q", id="rows")
        assert "ada/rows" in await site.read("/batches")
        await site.do("cancel-batch", queue="q", id="ada/rows")


async def test_a_token_is_shown_once_and_revoked(site: Site) -> None:
    note = await site.do("create-token", {"role": "tenant", "tenant": "ada", "queues": "q, mail"})
    token = note.rpartition(" ")[2]
    identity = await site.served.app.auth.identify(token)
    assert (identity.tenant, identity.queues) == ("ada", frozenset({"q", "mail"}))
    page = await site.read("/tokens")
    assert identity.token_id in page
    assert token not in page
    assert "revoked" in await site.do("revoke-token", id=identity.token_id)
    assert "no token" in await site.do("revoke-token", id=identity.token_id)
    assert "role must be" in await site.do("create-token", {"role": "king"})
    assert "tenant" in await site.do("create-token", {"role": "tenant"})


async def test_nonsense_is_refused_in_words(site: Site, worker: Raw) -> None:
    csrf = (await site.open("create-token"))["csrf"]
    for action in [each.name for each in ACTIONS]:
        for given in ({}, {"queue": "NO SUCH"}, {"queue": "q", "tenant": "\0"}, {"queue": "q", "ids": "x" * 900}):
            asked = await site.browser.get(f"/do/{action}", params=given)
            assert asked.status_code < 500, asked.text
            sent = await site.browser.post(f"/do/{action}", data={"csrf": csrf, **given}, headers=FORM)
            assert sent.status_code < 500, sent.text
        body = b"csrf=" + csrf.encode() + b"&x=" + b"y" * 270_000
        assert (await site.browser.post(f"/do/{action}", content=body, headers=FORM)).status_code == 413
        assert (await site.browser.post(f"/do/{action}", content=b"\xff" * 9, headers=FORM)).status_code == 400
