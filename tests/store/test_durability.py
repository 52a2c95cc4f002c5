"""Stores that could lose acknowledged tasks are named before anything is trusted to them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis
import trio
from structlog.testing import capture_logs

from fairq.store.durability import risks
from fairq.store.opening import check_durability
from fairq.store.store import Store
from tests import stores
from tests.server.harness import running

from .cases import case
from .proxy import open_proxy
from .waiting import wait_until

EVICTING = ["allkeys-lru", "allkeys-random", "volatile-lru", "volatile-ttl"]


async def test_a_store_without_its_file_is_named(store: Store, redis_client: redis.Redis) -> None:
    redis_client.config_set("appendonly", "no")
    try:
        (problem,) = await check_durability(store)
        assert "appendonly" in problem
        assert "`CONFIG SET appendonly yes`, then `CONFIG REWRITE`" in problem  # how to mend it
    finally:
        redis_client.config_set("appendonly", "yes")


async def test_a_policy_that_evicts_is_named_where_memory_is_limited(store: Store, redis_client: redis.Redis) -> None:
    try:
        for limit in (0, 1 << 30):
            redis_client.config_set("maxmemory", limit)
            for policy in ("noeviction", *EVICTING):
                with case(limit, policy):
                    redis_client.config_set("maxmemory-policy", policy)
                    problems = await check_durability(store)
                    assert len(problems) == (limit > 0 and policy != "noeviction")
                    assert all("maxmemory-policy" in each and "noeviction`" in each for each in problems)
    finally:
        redis_client.config_set("maxmemory", 0)
        redis_client.config_set("maxmemory-policy", "noeviction")


async def test_a_store_that_hides_its_settings_is_judged_by_what_it_tells(store: Store, store_url: str) -> None:
    with stores.connect(stores.of_owner(store_url)) as owner:
        owner.execute_command("ACL", "SETUSER", "fairq", "-config|get")
        try:
            assert await check_durability(store) == []
            owner.execute_command("ACL", "SETUSER", "fairq", "-info")
            (problem,) = await check_durability(store)
            assert problem.startswith("the store does not report whether it has an append-only file")
        finally:
            owner.execute_command("ACL", "SETUSER", "fairq", "+info", "+config|get")


async def test_a_server_whose_store_comes_to_be_unsafe_logs_each_cause_once(
    start_store: Callable[..., stores.LocalServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairq.store.opening.LOOK_S", 0.01)
    server = start_store()
    with capture_logs() as logs, stores.connect(server.url) as client:

        def causes() -> list[str]:
            return [line["problem"] for line in logs if line["event"] == "the store is not safe"]

        async with running(server.url, unsafe_store=False):
            client.config_set("maxmemory", 1 << 30)
            client.config_set("maxmemory-policy", "allkeys-lru")
            await wait_until(lambda: len(causes()) == 1)
            server.stop()
            server.start({"appendonly": "no"})
            await wait_until(lambda: len(causes()) == 2)
    assert "allkeys-lru" in causes()[0]
    assert "appendonly is no" in causes()[1]


async def test_a_server_starts_though_a_connection_to_the_store_breaks_behind_any_of_its_first_calls(
    start_store: Callable[..., stores.LocalServer],
) -> None:
    server, number = start_store(), 0
    with trio.fail_after(60):
        while True:
            async with open_proxy(server.port) as proxy:
                proxy.loses = number = number + 1
                async with running(server.url.replace(str(server.port), str(proxy.port)), unsafe_store=False):
                    pass
                if not proxy.lost:
                    break
    assert number > 6, "calls: it logs in, subscribes, and looks at the data, its rights and the settings"


def test_what_is_not_known_of_a_store_counts_as_a_risk() -> None:
    assert [risk.subject for risk in risks({})] == ["persistence"]
    assert risks({"aof_enabled": "1"}) == []
    hidden = risks({"aof_enabled": "1", "maxmemory": "9"})
    assert [risk.message for risk in hidden] == ["maxmemory-policy is unknown: a full store would drop tasks"]
