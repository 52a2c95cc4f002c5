"""How much the library does for a task, in instructions of Lua: that depends on no machine and no load."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest
import redis

from .calls import Queue, leased_in, options
from .counting import CountingLua

TENANTS, CALLS, MANY = 300, 10, 50
MOST = {MANY: {"enqueue": 186, "claim": 471, "settle": 356}, 1: {"enqueue": 1409, "claim": 2203, "settle": 1135}}


@pytest.mark.one_store
@pytest.mark.parametrize("at_once", MOST)
def test_a_task_takes_few_instructions(redis_client: redis.Redis, at_once: int) -> None:
    """Three hundred tenants with a few tasks each, in calls of 50 and of one; run times differ."""
    lua, source = CountingLua(redis_client), random.Random(5)
    queue, took = Queue(lua), dict[str, float]()  # type: ignore[arg-type]
    leases = []

    def enqueue(tenant: int, name: str, count: int) -> None:
        queue.enqueue(f"t{tenant}", *(f"{tenant}-{name}-{n}" for n in range(count)))

    def claim(at_once: int = at_once) -> None:
        drawn = struct.pack("<600d", *(source.random() for _ in range(600)))
        leases.extend(leased_in(queue.call("claim", "w", at_once, "", "", 1000, random_values=drawn)))
        queue.advance(3)

    def settle(at_once: int = at_once) -> None:
        some = [leases.pop(0) for _ in range(at_once)]
        queue.settle(*(("ack", each.id, each.lease) for each in some))
        queue.advance(7)

    for tenant in range(TENANTS):
        enqueue(tenant, "first", 3)
    for _ in range(2 * TENANTS // MANY):  # tenants have estimates, and stand in classes, before it is counted
        claim(MANY)
        queue.advance(source.randrange(20, 60))
        settle(MANY)
    for tenant in range(TENANTS):
        enqueue(tenant, "more", 3)
    steps: dict[str, Callable[[], None]] = {
        "enqueue": lambda: enqueue(0, str(source.random()), at_once), "claim": claim, "settle": settle,
    }  # fmt: skip
    for name, step in steps.items():
        lua.instructions = 0
        for _ in range(CALLS):
            step()
        took[name] = lua.instructions / CALLS / at_once
    assert {name: each for name, each in took.items() if each > MOST[at_once][name]} == {}


@pytest.mark.one_store
def test_a_task_that_a_worker_waits_for_takes_few_instructions(redis_client: redis.Redis) -> None:
    """Seven tenants in turn with a task each, and nothing else in the queue: in two calls they took 3,762."""
    lua, source = CountingLua(redis_client), random.Random(5)
    queue, instructions = Queue(lua), 0  # type: ignore[arg-type]
    for n in range(60):
        drawn, lua.instructions = struct.pack("<9d", *(source.random() for _ in range(9))), 0
        args = (f"w/{n}", 2, "", "", 10, "", f"t{n % 7}", f"t{n % 7}/{n}", b"", b"{}")
        _, claim = queue.call("enqueue_and_claim", *args, random_values=drawn)
        instructions += lua.instructions if n >= 40 else 0
        queue.advance(source.randrange(1, 9))
        (lease,) = leased_in(claim)
        queue.settle(("ack", lease.id, lease.lease))
        queue.advance(source.randrange(1, 9))
    assert instructions / 20 <= 3134


@pytest.mark.one_store
def test_tasks_of_two_kinds_in_turn_take_hardly_more_than_those_of_one(redis_client: redis.Redis) -> None:
    lua, took = CountingLua(redis_client), []
    queue = Queue(lua)  # type: ignore[arg-type]
    for kinds in (1, 2):
        parts = [part for n in range(MANY) for part in (f"{kinds}-{n}", options(name=f"n{n % kinds}"), b"{}")]
        lua.instructions = 0
        queue.call("enqueue", "ada", *parts)
        took.append(lua.instructions)
    assert took[1] < 1.2 * took[0]
