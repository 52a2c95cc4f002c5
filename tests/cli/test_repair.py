"""`fairq queues repair` and `fairq serve --repair`: queues with damaged keys."""

from __future__ import annotations

import struct

import pytest
import redis

from fairq.store import library
from tests.server.harness import OPERATOR, WORKER, Refused, raw, running, tenant

from .harness import Commands

KEY = "fq:{emails/0}:"


def test_a_queue_is_rebuilt_and_what_it_has_is_reported(commands: Commands, redis_store: redis.Redis) -> None:
    for number in range(3):
        commands.enqueue("emails", str(number))
    redis_store.delete(f"{KEY}ready:ada")
    assert commands("queues", "repair", "emails", "--json").json == {"queue": "emails", "tasks": 3, "tenants": 1}
    assert redis_store.zcard(f"{KEY}ready:ada") == 3
    assert commands("queues", "repair", "emails").out == "emails: rebuilt: 3 tasks of 1 tenants\n"


async def test_what_is_under_repair_says_so_and_takes_no_changes_until_it_is_done(
    server_store: str, redis_store: redis.Redis
) -> None:
    async with running(server_store) as served, raw(served, tenant("ada")) as ada, raw(served, OPERATOR) as operator:
        await ada.enqueue("emails", ["one"])
        bar(redis_store)
        (row,) = (await operator.ask("queues"))["queues"]
        assert row["is_repairing"] is True
        assert "queue_repairing" in (await ada.ask("why", queue="emails", id="one"))["causes"]
        with pytest.raises(Refused, match="repairing"):
            await ada.enqueue("emails", ["two"])
        done = await operator.ask("repair", queue="emails")
        assert (done["outcome"], done["tasks"], done["tenants"]) == ("done", 1, 1)
        assert (await operator.ask("repair", queue="emails", number=done["number"]))["outcome"] == "gone"
        assert await ada.enqueue("emails", ["two"]) == ["ok"]
        async with raw(served, WORKER) as worker:
            await worker.attach("emails", credit=2)
            assert len(await worker.pushed(2)) == 2


async def test_a_server_may_repair_all_queues_before_it_serves(server_store: str, redis_store: redis.Redis) -> None:
    async with running(server_store) as served, raw(served, tenant("ada")) as ada:
        await ada.enqueue("emails", ["one"])
    redis_store.delete(f"{KEY}ready:ada")
    bar(redis_store)
    async with running(server_store, repair=True) as served, raw(served, WORKER) as worker:
        await worker.attach("emails", credit=1)
        (task,) = await worker.pushed()
        assert task["id"] == "one"


def bar(redis_store: redis.Redis) -> None:
    """Block a queue as an abandoned repair does."""
    packed = redis_store.get(f"{KEY}queue")
    assert isinstance(packed, bytes)
    at = 8 * [field.name for field in library.formats()["QUEUE"].fields].index("blocked")
    redis_store.set(f"{KEY}queue", packed[:at] + struct.pack("<d", 16.0) + packed[at + 8 :])
