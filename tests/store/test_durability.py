"""Stores that could lose acknowledged tasks are named before anything is trusted to them."""

from __future__ import annotations

import redis

from fairq.store.durability import risks
from fairq.store.opening import check_durability
from fairq.store.store import Store
from tests import stores

from .cases import case

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
            assert problem.startswith("the store does not tell whether it has an append-only file")
        finally:
            owner.execute_command("ACL", "SETUSER", "fairq", "+info", "+config|get")


def test_what_is_not_known_of_a_store_counts_as_a_risk() -> None:
    assert [risk.subject for risk in risks({})] == ["persistence"]
    assert risks({"aof_enabled": "1"}) == []
    hidden = risks({"aof_enabled": "1", "maxmemory": "9"})
    assert [risk.told for risk in hidden] == ["maxmemory-policy is not told: a full store would drop tasks"]
