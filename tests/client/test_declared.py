"""Schedules that stand in an app's code, under asyncio and trio: who puts them, when they go, and what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

import fairq
from fairq.client.declaring import rows_of
from fairq.errors import BadRequest, Forbidden
from fairq.store import keys
from fairq.tokens import TokenRecord, hash_token, make_token
from fairq.wire.terms import Role
from tests import stores
from tests.logs import captured_logs
from tests.server.harness import OPERATOR
from tests.store.cases import raises_for

from .runtimes import Service, on_both, wait_until, working


async def handle(task: fairq.Task) -> None:
    """Do nothing."""


async def other(task: fairq.Task) -> None:
    """Do nothing, either."""


def app_of(service: Service, *schedules: str, name: str = "shop") -> fairq.Worker:
    """An app whose code has these schedules."""
    app = service.worker()
    app.app, app.name = name, "-".join((name, *schedules))
    app.task("emails")(handle)
    for schedule in schedules:
        app.schedule("0 3 * * *", tenant=["ada", "bob"], schedule=schedule, zone="Europe/Paris")(handle)
    return app


def forget_declarations(store: str) -> None:
    """Let no worker have declared anything lately."""
    with stores.connect(store) as client:
        key = f"{keys.queue_prefix('emails')}:declared"
        for field in client.zrange(key, 0, -1):
            client.zadd(key, {field: 1})


@on_both
async def test_schedules_follow_the_code_over_workers_restarts_and_versions(
    service: Service, server_store: str
) -> None:
    async with fairq.open_operator(service.url, token=OPERATOR) as boss:

        async def there() -> list[tuple[str, str, str]]:
            return sorted((s.tenant, s.name, s.app) for s in await boss.schedules("emails"))

        await boss.schedule("emails", "by-hand", 1, every=60, tenant="ada")
        first, both = [(t, "nightly", "shop") for t in ("ada", "bob")], [("ada", "by-hand", "")]
        with captured_logs() as logs:
            for _ in range(2):  # the second finds them
                await app_of(service, "nightly").run(burst=True)
            assert await there() == sorted(first + both)
            await app_of(service, "nightly", name="another").run(burst=True)  # its own code has the same name
            async with working(app_of(service, "nightly")):  # the old version still runs
                await app_of(service, "daily").run(burst=True)
            assert len(await there()) == 5
            forget_declarations(server_store)
            await app_of(service, "daily").run(burst=True)
            assert await there() == sorted([*both, ("ada", "daily", "shop"), ("bob", "daily", "shop")])
            forget_declarations(server_store)
            await app_of(service).run(burst=True)
        assert await there() == both
    said = [(line["event"].split(" ", 2)[1], line["schedule"]) for line in logs if "schedule" in line]
    assert said == [
        *[("created", "nightly")] * 2, *[("was", "nightly")] * 2, *[("created", "daily")] * 2,
        *[("removed:", "nightly")] * 2, *[("removed:", "daily")] * 2,
    ]  # fmt: skip


@on_both
async def test_the_tasks_of_a_schedule_come_to_its_handler(service: Service) -> None:
    app, ran = service.worker(), list[tuple[str, str, Any]]()
    app.task("emails")(other)

    @app.task("emails", name="tick")
    @app.schedule(every=1, tenant="ada", payload={"n": 1})
    async def pulse(task: fairq.Task) -> None:
        ran.append((task.name, task.tenant, task.payload))

    async with working(app):
        await wait_until(lambda: bool(ran))
    assert ran[0] == ("tick", "ada", {"n": 1})


@on_both
async def test_a_worker_whose_token_may_not_schedule_ends_and_says_what_to_do(service: Service) -> None:
    id, token = make_token(Role.WORKER)
    async with fairq.open_operator(service.url, token=OPERATOR) as boss:
        await boss.create_token(TokenRecord(id, "worker", hash_token(token)))
    for schedules, is_refused in (((), False), (("nightly",), True)):
        app = app_of(service, *schedules)
        app.token = token
        if is_refused:
            with raises_for("tenant", Forbidden) as caught:
                await app.run()
            assert "fairq tokens create worker --tenant ada" in caught.value.message
        else:
            await app.run(burst=True)


def test_a_mistake_is_reported_where_it_is_made() -> None:
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({}, "cron"), ({"cron": "0 3 * * *", "every": 5}, "cron"), ({"every": 0.5}, "every"),
        ({"every": 5, "tenant": "a/b"}, "tenant"), ({"every": 5, "schedule": "A"}, "schedule"),
        ({"every": 5, "delay": 5}, "delay"), ({"every": 5, "payload": {1}}, "payload"),
    ]  # fmt: skip
    for given, field in mistakes:
        with raises_for(field, BadRequest):
            fairq.Worker().schedule(**{"tenant": "ada", **given})(handle)


def test_a_schedule_without_a_handler_of_its_own_is_refused() -> None:
    def rows(*tasks: tuple[Any, str, str], **given: Any) -> list[dict[str, Any]]:
        app = fairq.Worker(app="shop")
        app.schedule(every=5, tenant="ada", schedule="nightly", **given)(handle)
        for function, queue, name in tasks:
            app.task(queue, name=name)(function)
        return rows_of(app.declared, app.handlers, app.handlers)

    with raises_for("queue", BadRequest):
        rows((other, "q", ""))
    with raises_for("queue", BadRequest):
        rows((handle, "q", ""), (handle, "r", ""))
    with raises_for("schedule", BadRequest):
        rows((handle, "q", ""), (other, "q", "nightly"))
    assert [row["queue"] for row in rows((handle, "q", ""), (handle, "r", ""), queue="r")] == ["r"]
    assert [row["task_name"] for row in rows((handle, "q", "mine"), (other, "q", ""))] == ["mine"]


def test_an_app_is_named_as_its_module_unless_it_says_otherwise() -> None:
    class Mine(fairq.Worker):
        pass

    assert [each.app for each in (fairq.Worker(), Mine(), fairq.Worker(app="x"))] == [__name__, __name__, "x"]


@pytest.mark.parametrize("count", [500, 501])
async def test_an_app_declares_so_many_schedules(served: Any, count: int) -> None:
    from tests.server.harness import WORKER, url_of

    app = fairq.Worker(url_of(served), WORKER, app="shop")
    app.task("emails")(handle)
    app.schedule(every=3600, tenant=[f"t{n}" for n in range(count)], schedule="nightly")(handle)
    if count > 500:
        with raises_for("schedules", fairq.TooLarge):
            await app.run(burst=True)
    else:
        await app.run(burst=True)
        assert (await served.app.store.schedules("emails", "t499"))[1]
