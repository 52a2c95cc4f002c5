"""How much the library does for a task, in instructions of Lua: that depends on no machine and no load."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest
import redis

from .calls import Queue, leased_in
from .counting import CountingLua

TENANTS, TASKS, AT_ONCE = 300, 500, 50
MOST = {"enqueue": 205, "claim": 875, "settle": 331}  # per task


@pytest.mark.one_store
def test_a_task_takes_few_instructions(redis_client: redis.Redis) -> None:
    """Three hundred tenants with a few tasks each, in calls of 50; run times differ."""
    lua, source = CountingLua(redis_client), random.Random(5)
    queue, took = Queue(lua), dict[str, float]()  # type: ignore[arg-type]
    leases = []

    def enqueue(tenant: int, name: str, count: int) -> None:
        queue.enqueue(f"t{tenant}", *(f"{tenant}-{name}-{n}" for n in range(count)))

    def claim() -> None:
        drawn = struct.pack("<600d", *(source.random() for _ in range(600)))
        leases.extend(leased_in(queue.call("claim", "w", AT_ONCE, "", "", 1000, random_values=drawn)))
        queue.advance(3)

    def settle() -> None:
        some = [leases.pop(0) for _ in range(AT_ONCE)]
        queue.settle(*(("ack", each.id, each.lease) for each in some))
        queue.advance(7)

    for tenant in range(TENANTS):
        enqueue(tenant, "first", 3)
    for _ in range(2 * TENANTS // AT_ONCE):  # tenants have estimates, and stand in classes, before it is counted
        claim()
        queue.advance(source.randrange(20, 60))
        settle()
    for tenant in range(TENANTS):
        enqueue(tenant, "more", 3)
    steps: dict[str, Callable[[], None]] = {
        "enqueue": lambda: enqueue(0, str(source.random()), AT_ONCE), "claim": claim, "settle": settle,
    }  # fmt: skip
    for name, step in steps.items():
        lua.instructions = 0
        for _ in range(TASKS // AT_ONCE):
            step()
        took[name] = lua.instructions / TASKS
    assert {name: each for name, each in took.items() if each > MOST[name]} == {}
