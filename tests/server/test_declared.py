"""What a worker may declare: for the tenants of its token, in its queues, of its app; what is noted, and how often."""

from __future__ import annotations

from typing import Any

import pytest

from fairq.server.run import Served
from fairq.store import keys
from fairq.wire.terms import Role
from tests import stores

from .harness import WORKER, Raw, Refused, noted_calls, raw

NIGHTLY = {"queue": "q", "tenant": "ada", "name": "nightly", "payload": 1, "cron": "0 3 * * *"}
HOURLY = {"queue": "q", "tenant": "ada", "name": "hourly", "payload": 1, "every_ms": 3_600_000}


async def declare(worker: Raw, *schedules: dict[str, Any], app: str = "jobs") -> dict[str, Any]:
    return await worker.ask("declare", app=app, schedules=list(schedules))


async def names(operator: Raw) -> list[tuple[str, str]]:
    rows = (await operator.ask("schedules", queue="q"))["schedules"]
    return sorted((row["tenant"], row["name"]) for row in rows)


def forget_declarations(store: str) -> None:
    """Let no worker have declared anything lately."""
    with stores.connect(store) as client:
        key = f"{keys.queue_prefix('q')}:declared"
        for field in client.zrange(key, 0, -1):
            client.zadd(key, {field: 1})


async def test_a_token_bounds_the_tenants_for_which_a_worker_declares(
    served: Served, server_store: str, operator: Raw
) -> None:
    async with raw(served, WORKER) as all_:
        await all_.attach("q")
        await declare(all_, NIGHTLY, {**NIGHTLY, "tenant": "zoo"})
    _, none = await operator.create_token(Role.WORKER)
    _, some = await operator.create_token(Role.WORKER, tenant="ad*")
    async with raw(served, none) as worker:
        await worker.attach("q")
        with pytest.raises(Refused, match=r"forbidden tenant: .*may not schedule for tenant ada; create one"):
            await declare(worker, HOURLY)
        forget_declarations(server_store)
        assert (await declare(worker))["removed"] == []
    async with raw(served, some) as worker:
        await worker.attach("q")
        with pytest.raises(Refused, match="forbidden tenant"):
            await declare(worker, HOURLY, {**HOURLY, "tenant": "zoo"})
        assert await names(operator) == [("ada", "nightly"), ("zoo", "nightly")]
        done = await declare(worker, HOURLY)
    assert done == {
        "outcomes": ["created"], "removed": [{"queue": "q", "tenant": "ada", "name": "nightly"}], "is_over": False,
    }  # fmt: skip
    assert await names(operator) == [("ada", "hourly"), ("zoo", "nightly")]


async def test_workers_declare_in_their_queues_while_they_are_attached(served: Served, worker: Raw) -> None:
    with pytest.raises(Refused, match="bad_request"):
        await declare(worker, NIGHTLY)
    await worker.attach("other")
    with pytest.raises(Refused, match=r"bad_request queue: the worker is not attached"):
        await declare(worker, NIGHTLY)


async def test_of_many_workers_that_declare_the_same_few_are_heard_and_one_change_is_noted(
    served: Served, worker: Raw, operator: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = noted_calls(monkeypatch, "_call")
    await worker.attach("q")
    async with raw(served, WORKER) as second:
        await second.attach("q", name="second")
        found = [(await declare(each, NIGHTLY, HOURLY))["outcomes"] for each in (worker, second) * 3]
    assert found == [["created"] * 2, *[["same"] * 2] * 5]
    assert sum(args[0] == "schedule" for args in calls.args) == 4
    changes = (await operator.ask("audit", by_tenants=True))["changes"]
    assert sorted((c["verb"], c["tenant"], c["target"], c["role"]) for c in changes) == [
        ("schedule", "ada", "hourly", "worker"), ("schedule", "ada", "nightly", "worker"),
    ]  # fmt: skip


async def test_a_tenant_that_is_refused_keeps_no_other_from_its_schedules(served: Served, operator: Raw) -> None:
    await operator.ask("set_limits", queue="q", tenant="full", limits={"stored_bytes": 1})
    async with raw(served, WORKER) as worker:
        await worker.attach("q")
        done = await declare(worker, {**NIGHTLY, "tenant": "full"}, NIGHTLY)
    assert done["outcomes"] == ["quota_exceeded", "created"]


async def test_an_app_that_declares_nothing_any_more_is_over_when_the_last_is_gone(
    served: Served, server_store: str, worker: Raw, operator: Raw
) -> None:
    await operator.ask("schedule", **{**HOURLY, "name": "by-hand"})
    await worker.attach("q")
    await declare(worker, NIGHTLY)
    await declare(worker, HOURLY, app="billing")
    assert await declare(worker) == {"outcomes": [], "removed": [], "is_over": False}
    forget_declarations(server_store)
    done = await declare(worker)
    assert (done["is_over"], [row["name"] for row in done["removed"]]) == (True, ["nightly"])
    assert await names(operator) == [("ada", "by-hand"), ("ada", "hourly")]
