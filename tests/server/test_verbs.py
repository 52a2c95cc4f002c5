"""What tenants and operators see and change, and what is no frame; test_refusals.py has what is refused."""

from __future__ import annotations

from fairq.server.run import Served

from .harness import OPERATOR, WORKER, raw, tenant


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
        assert (await operator.ask("set_weight", queue="q", tenant="ada", weight=3))["previous"] == 1
        assert (await operator.ask("set_weight", queue="q", tenant="ada", weight=0.5))["previous"] == 3
        assert (await operator.ask("pause", queue="q"))["previous"] is False
        assert (await operator.ask("resume", queue="q"))["previous"] is True
        await operator.ask("configure", queue="q", settings={"share": "count", "lease_ms": 5000})
        await worker.attach("q", credit=1)
        await worker.pushed()
        (row,) = (await operator.ask("queues"))["queues"]
        assert (row["queue"], row["leased"], row["workers"]) == ("q", 1, 1)
        assert (row["settings"]["share"], row["settings"]["lease_ms"]) == ("count", 5000)


NO_FRAMES: list[str] = ["", "[]", "1", "{", '{"type":"queues"}', '{"ref":1}', '{"a":1,"a":2}', "[" * 5000]


async def test_what_is_no_frame_is_told_so_and_the_connection_lives(served: Served) -> None:
    async with raw(served, OPERATOR) as operator:
        for text in NO_FRAMES:
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
