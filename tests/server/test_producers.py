"""Frames of producers: for which tenants, and how a tenant's refusal is reported."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import trio

from fairq.errors import FairqError, OutcomeUnknown, Repairing, StoreFull, Unavailable
from fairq.model.tasks import NewTask
from fairq.server.engine.net.tenant_load import MAX_TENANT_REQUESTS_HERE
from fairq.server.engine.verbs.producers import store_for_tenants
from fairq.server.run import Served
from fairq.wire.terms import MAX_TENANT_WAITING
from tests.store.waiting import wait_until

from .harness import PRODUCER, Raw, Refused, raw, tenant


def task(id: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "payload": 1, **more}


async def test_a_frame_or_each_task_names_the_tenant(served: Served) -> None:
    async with raw(served, PRODUCER) as shop:
        tasks = [task("a"), task("b", tenant="zoo"), task("c", tenant="zoo", priority=1), task("a")]
        reply = await shop.ask("enqueue", queue="q", tenant="acme", tasks=tasks)
        assert reply == {"outcomes": ["ok"] * 3 + ["duplicate"], "duplicate_of_states": ["", "", "", "ready"]}
        leases = (await served.app.store.claim("q", "w", 10)).leases
        assert {lease.id for lease in leases} == {"acme/a", "zoo/b", "zoo/c"}
        keyed = [task("d", tenant="zoo", dedupe_key="k"), task("e", tenant="zoo", dedupe_key="k")]
        assert await shop.ask("enqueue", queue="q", tasks=keyed) == {
            "outcomes": ["ok", "duplicate zoo/d"], "duplicate_of_states": ["", "ready"],
        }  # fmt: skip
        with pytest.raises(Refused, match=r"^bad_request tenant:"):
            await shop.ask("enqueue", queue="q", tasks=[task("a", tenant="zoo"), task("b")])


async def test_a_refused_tenant_is_shown_beside_the_outcomes(served: Served, operator: Raw) -> None:
    async with raw(served, PRODUCER) as shop:
        await operator.ask("set_limits", queue="q", tenant="full", limits={"queued": 1})
        tasks = [
            task("a", tenant="full"),
            task("b", tenant="acme"),
            task("c", tenant="full"),
            task("d", tenant="lost", batch="none"),
        ]
        reply = await shop.ask("enqueue", queue="q", tasks=tasks)
        assert reply["outcomes"] == ["refused", "ok", "refused", "refused"]
        why = {name: (row["code"], row["field"], "retry_in_ms" in row) for name, row in reply["refusals"].items()}
        assert why == {"full": ("quota_exceeded", "queued", True), "lost": ("not_found", "batch", False)}
        again = await shop.ask("enqueue", queue="q", tasks=tasks[:2])
        assert again == {"outcomes": ["ok", "duplicate"], "duplicate_of_states": ["", "ready"]}


async def test_a_tenants_slow_requests_leave_the_others_their_places(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant has as many requests under way as it may have; only its own further ones are refused."""
    read, answer = served.app.store.tasks_and_leases, trio.Event()

    async def slow(queue: str, ids: Sequence[str]) -> Any:
        if ids[0].startswith("slow/"):
            await answer.wait()
        return await read(queue, ids)

    monkeypatch.setattr(type(served.app.store), "tasks_and_leases", staticmethod(slow))
    async with raw(served, PRODUCER) as shop:
        for ref in range(MAX_TENANT_REQUESTS_HERE):
            await shop.send("tasks", ref=1000 + ref, queue="q", ids=["slow/a"])
        with pytest.raises(Refused, match=r"^too_many .*tenant slow"):
            await shop.ask("tasks", queue="q", ids=["slow/a"])
        assert (await shop.ask("tasks", queue="q", ids=["quick/a"]))["tasks"][0]["state"] == "unknown"
        reply = await shop.ask("enqueue", queue="q", tasks=[task("a", tenant="slow"), task("a", tenant="quick")])
        assert reply["outcomes"] == ["refused", "ok"]
        assert reply["refusals"]["slow"]["code"] == "too_many"
        answer.set()
        for _ in range(MAX_TENANT_REQUESTS_HERE):
            assert (await shop.receive())["type"] == "reply"
        assert await shop.ask("enqueue", queue="q", tasks=[task("a", tenant="slow")]) == {"outcomes": ["ok"]}


async def test_a_tenants_slow_schedules_leave_the_others_their_places(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, answer = served.app.store.schedules, trio.Event()

    async def slow(queue: str, tenant: str = "", name: str = "", **page: Any) -> Any:
        if tenant == "slow":
            await answer.wait()
        return await read(queue, tenant, name, **page)

    monkeypatch.setattr(type(served.app.store), "schedules", staticmethod(slow))
    row = {"queue": "q", "name": "s", "payload": 1, "every_ms": 60_000}
    async with raw(served, PRODUCER) as shop:
        for ref in range(MAX_TENANT_REQUESTS_HERE):
            await shop.send("schedule", ref=1000 + ref, tenant="slow", **row)
        with pytest.raises(Refused, match=r"^too_many .*tenant slow"):
            await shop.ask("schedule", tenant="slow", **row)
        assert (await shop.ask("schedule", tenant="quick", **row))["outcome"] == "created"
        answer.set()
        for _ in range(MAX_TENANT_REQUESTS_HERE):
            assert (await shop.receive())["type"] == "reply"


async def test_a_tenant_waits_for_its_own_places_only(served: Served) -> None:
    async with raw(served, PRODUCER) as shop:
        ids = [f"flood/t-{n}" for n in range(MAX_TENANT_WAITING)]
        for start in range(0, len(ids), 500):
            some = ids[start : start + 500]
            await shop.ask("enqueue", queue="q", tenant="flood", tasks=[task(id.partition("/")[2]) for id in some])
            await shop.send("wait_tasks", ref=9000 + start, queue="q", ids=some, timeout_ms=9000)
        await shop.ask("enqueue", queue="q", tasks=[task("a", tenant="flood"), task("a", tenant="quiet")])
        with pytest.raises(Refused, match=r"^too_many .*of tenant flood"):
            await shop.ask("wait_tasks", queue="q", ids=["flood/a"], timeout_ms=9000)
        await shop.send("wait_tasks", ref=8000, queue="q", ids=["quiet/a"], timeout_ms=9000)
        assert await shop.ask("cancel", queue="q", ids=["quiet/a"]) == {"outcomes": ["ok"]}


async def test_tasks_of_many_tenants_reach_a_worker_that_waits(served: Served, worker: Raw) -> None:
    async with raw(served, PRODUCER) as shop:
        await worker.attach("q", credit=100)
        await shop.ask("enqueue", queue="q", tasks=[task(f"t-{n}", tenant=f"Tenant.{n}") for n in range(60)])
        assert {pushed["tenant"] for pushed in await worker.pushed(60)} == {f"Tenant.{n}" for n in range(60)}


@pytest.mark.parametrize("tenants", [1, 3])
async def test_producers_calls_of_the_store_take_turns(tenants: int, served: Served) -> None:
    async with raw(served, PRODUCER) as shop, raw(served, tenant("quiet")) as quiet:
        limiter = served.app.producers_calls
        for _ in range(most := int(limiter.total_tokens)):
            limiter.acquire_on_behalf_of_nowait(object())
        tasks = [task("a", tenant=f"t{n}") for n in range(tenants)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(shop.ask, "enqueue", queue="q", tasks=tasks))
            await wait_until(lambda: limiter.statistics().tasks_waiting == tenants)
            await quiet.enqueue("q", ["mine"])
            limiter.total_tokens = most + 1
        assert len((await served.app.store.claim("q", "w", 10)).leases) == tenants + 1


FAILING: list[tuple[dict[str, FairqError], type[FairqError] | None]] = [
    ({"a": Unavailable("away")}, OutcomeUnknown),
    ({"a": Unavailable("away"), "b": Unavailable("away")}, Unavailable),
    ({"a": Unavailable("away"), "b": Repairing("busy")}, OutcomeUnknown),
    ({"a": Unavailable("away"), "b": StoreFull("full")}, OutcomeUnknown),
    ({"a": OutcomeUnknown("lost"), "b": OutcomeUnknown("lost")}, OutcomeUnknown),
    ({"a": StoreFull("full"), "b": StoreFull("full")}, None),
]


async def test_what_is_to_be_sent_again_is_refused_as_a_whole(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    failing: dict[str, FairqError] = {}

    async def enqueue(_: object, queue: str, tenant: str, tasks: Sequence[NewTask], **__: object) -> list[str]:
        await trio.lowlevel.checkpoint()
        if tenant in failing:
            raise failing[tenant]
        return ["ok" for _ in tasks]

    monkeypatch.setattr(type(served.app.store), "enqueue", enqueue)
    tasks = [NewTask("a/1", b"1"), NewTask("b/1", b"1")]
    for failing, raised in FAILING:
        if raised is None:
            _, refusals = await store_for_tenants(served.app, "q", tasks)
            assert {error.code for error in refusals.values()} == {"store_full"}
            continue
        with pytest.raises(raised) as caught:
            await store_for_tenants(served.app, "q", tasks)
        assert type(caught.value) is raised, failing
