"""Schedules through the SDK: what they fire, how they are listed, paused and removed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import trio
from attrs import asdict

import fairq
from fairq.errors import NotFound
from fairq.model.tasks import OPTIONS, SCHEDULED
from fairq.server.run import Served
from tests.server.harness import OPERATOR, url_of

COPENHAGEN = ZoneInfo("Europe/Copenhagen")
USUAL = {name: OPTIONS[name] for name in SCHEDULED}


async def test_cron_is_read_in_its_time_zone(ada: fairq.Client) -> None:
    fires = await ada.schedule("reports", "nightly", 1, cron="0 3 * * *", zone="Europe/Copenhagen")
    assert {(at.hour, at.minute) for at in (fire.astimezone(COPENHAGEN) for fire in fires)} == {(3, 0)}
    assert datetime.now(UTC) < fires[0] <= datetime.now(UTC) + timedelta(days=1, hours=1)


async def test_schedules_are_read_listed_paused_resumed_and_removed(served: Served, ada: fairq.Client) -> None:
    for name in ("a", "b"):
        of_tasks = "Tick" if name == "b" else None
        await ada.schedule("reports", name, [name], every=3600, misfire="once", name=of_tasks)
    assert await ada.pause_schedule("reports", "a") is False
    assert await ada.pause_schedule("reports", "a") is True
    assert [(s.name, s.is_paused) for s in await ada.schedules("reports")] == [("b", False), ("a", True)]
    one = await ada.read_schedule("reports", "b")
    assert (one.tenant, one.every_ms, one.misfire, one.payload) == ("ada", 3_600_000, "once", ["b"])
    assert [(await ada.read_schedule("reports", name)).task_name for name in "ab"] == ["", "Tick"]
    assert await ada.resume_schedule("reports", "a") is True
    async with fairq.open_client(url_of(served), token=OPERATOR) as operator:
        assert [s.name for s in await operator.schedules("reports", tenant="ada")] == ["a", "b"]
        assert await operator.unschedule("reports", "a", tenant="ada") is True
        await operator.schedule("reports", "c", 1, every=60, tenant="bob")
        assert [(s.tenant, s.name) for s in await operator.schedules("reports")] == [("bob", "c"), ("ada", "b")]
    assert await ada.unschedule("reports", "a") is False
    for call in (ada.pause_schedule, ada.resume_schedule, ada.read_schedule):
        with pytest.raises(NotFound):
            await call("reports", "a")


async def test_every_option_of_its_tasks_is_kept(ada: fairq.Client) -> None:
    for name in SCHEDULED:
        value: Any = {str: "k", bool: True}.get(type(OPTIONS[name]), 7)
        asked: dict[str, Any] = {"dedupe_key": "k", name.removesuffix("_ms"): value / 1000 if "_ms" in name else value}
        await ada.schedule("reports", "nightly", 1, every=3600, **asked)
        found = asdict(await ada.read_schedule("reports", "nightly"))
        assert {each: found[each] for each in SCHEDULED} == {**USUAL, "dedupe_key": "k", name: value}


async def test_the_payload_may_be_the_key(ada: fairq.Client) -> None:
    for name, payload in (("a", {"x": 1, "y": 2}), ("b", {"y": 2, "x": 1}), ("c", {"x": 1})):
        await ada.schedule("reports", name, payload, every=3600, dedupe_payload=True, dedupe_period=5)
    one, two, three = [(await ada.read_schedule("reports", name)).dedupe_key for name in "abc"]
    assert one == two != three
    assert one.startswith("sha256:")


async def test_more_schedules_than_a_page_are_listed(served: Served, ada: fairq.Client) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(501):
            nursery.start_soon(lambda n: ada.schedule("reports", f"s{n}", n, every=3600), number)
    assert len({state.name for state in await ada.schedules("reports")}) == 501
