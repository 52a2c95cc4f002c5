"""A claim right behind a covered enqueue is one call of the library with it, and each caller gets its own part."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis
import trio
from attrs import define, field

from fairq.errors import FairqError, OutcomeUnknown, QuotaExceeded
from fairq.io.taskless import Taskless
from fairq.model.tasks import NewTask
from fairq.store import keys
from fairq.store.connection import SHORT
from fairq.store.opening import open_store
from fairq.store.store import Store
from tests import clusters

from .proxy import open_proxy
from .waiting import wait_until

Q = "emails"


@define(eq=False)
class Turn:
    """Calls that leave in one turn, and what becomes of them: what they return, or the class of their error."""

    taskless: Taskless
    told: list[Any] = field(factory=list)

    def begin(self, call: Coroutine[Any, Any, Any]) -> None:
        """Begin a call."""
        self.taskless.begin(self._note(call, len(self.told)))

    async def _note(self, call: Coroutine[Any, Any, Any], place: int) -> None:
        self.told.append(None)
        try:
            self.told[place] = await call
        except FairqError as error:
            self.told[place] = type(error)


@asynccontextmanager
async def turn() -> AsyncIterator[Turn]:
    """A turn: the block begins its calls; then all of them end."""
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            found = Turn(Taskless(nursery))
            yield found
            await wait_until(lambda: not found.taskless.waiting)


def enqueue(store: Store, *ids: str, queue: str = Q, notify: str = "covered") -> Coroutine[Any, Any, list[str]]:
    return store.enqueue(queue, "ada", [NewTask(id, b"1") for id in ids], notify=notify)


def calls(client: redis.Redis) -> int:
    """Count the calls of the library so far that change something."""
    return int(client.info("commandstats").get("cmdstat_fcall", {"calls": 0})["calls"])


@pytest.fixture
async def made(store: Store) -> Store:
    """A store whose queues are known."""
    for queue in (Q, "other"):
        await store.enqueue(queue, "bob", [NewTask("bob", b"1")])
        await store.claim(queue, "first", 1)
    return store


async def test_both_are_one_call(made: Store, redis_client: redis.Redis) -> None:
    before = calls(redis_client)
    async with turn() as now:
        now.begin(enqueue(made, "a", "b"))
        now.begin(made.claim(Q, "w/1", 3))
    outcomes, claim = now.told
    assert (outcomes, [each.id for each in claim.leases]) == (["ok", "ok"], ["a", "b"])
    assert calls(redis_client) - before == 1


BETWEEN: dict[str, Callable[[Store], Coroutine[Any, Any, Any]]] = {
    "an enqueue": lambda store: enqueue(store, "b", notify="all"),
    "another queue's": lambda store: enqueue(store, "b", queue="other"),
    "another verb": lambda store: store.cancel(Q, ["none"]),
}


@pytest.mark.parametrize("what", BETWEEN)
async def test_a_call_in_between_parts_them(made: Store, redis_client: redis.Redis, what: str) -> None:
    before = calls(redis_client)
    async with turn() as now:
        now.begin(enqueue(made, "a"))
        now.begin(BETWEEN[what](made))
        now.begin(made.claim(Q, "w/1", 1))
    outcomes, _, claim = now.told
    assert (outcomes, [each.id for each in claim.leases]) == (["ok"], ["a"])
    assert calls(redis_client) - before == 3


async def test_long_payloads_are_not_written_twice(made: Store, redis_client: redis.Redis) -> None:
    before = calls(redis_client)
    async with turn() as now:
        now.begin(made.enqueue(Q, "ada", [NewTask("a", b"1" * SHORT)], notify="covered"))
        now.begin(made.claim(Q, "w/1", 1))
    assert now.told[0] == ["ok"]
    assert [each.id for each in now.told[1].leases] == ["a"]
    assert calls(redis_client) - before == 2


async def test_where_the_tasks_are_refused_the_claim_is_made_all_the_same(made: Store) -> None:
    await made.set_limits(Q, "ada", {"queued": 1})
    await enqueue(made, "a", notify="all")
    async with turn() as now:
        now.begin(enqueue(made, "b"))
        now.begin(made.claim(Q, "w/1", 3))
    refusal, claim = now.told
    assert refusal is QuotaExceeded
    assert [each.id for each in claim.leases] == ["a"]


async def test_where_the_library_is_gone_both_are_made_again(made: Store, redis_client: redis.Redis) -> None:
    redis_client.function_flush()
    async with turn() as now:
        now.begin(enqueue(made, "a"))
        now.begin(made.claim(Q, "w/1", 3))
    outcomes, claim = now.told
    assert outcomes == ["ok"]
    if not claim.leases:  # it was first
        claim = await made.claim(Q, "w/2", 3)
    assert [each.id for each in claim.leases] == ["a"]


async def test_where_the_answer_is_lost_neither_is_known_and_both_can_be_repeated(store_port: int) -> None:
    async with open_proxy(store_port) as proxy, open_store(f"redis://127.0.0.1:{proxy.port}/0") as store:
        assert await store.cancel(Q, ["none"]) == ["gone"]
        await store.registry.make(Q, "ada")
        proxy.lose_next_reply()
        async with turn() as now:
            now.begin(enqueue(store, "a"))
            now.begin(store.claim(Q, "w/1", 3))
        assert now.told == [OutcomeUnknown, OutcomeUnknown]
        await store.connection.wait_connected()
        assert await enqueue(store, "a") == ["duplicate\nleased"]
        again = await store.claim(Q, "w/1", 3, again=True)
        assert [(each.id, each.attempt) for each in again.leases] == [("a", 1)]


async def test_in_a_cluster_both_go_to_the_primary_and_follow_the_slot_when_it_has_moved(
    cluster: clusters.Cluster,
) -> None:
    prefix = keys.queue_prefix(Q)
    async with open_store(cluster.url, connect_timeout=30) as store:
        await store.registry.make(Q, "ada")
        primary = cluster.owner(prefix)
        before = calls(primary.client)
        async with turn() as now:
            now.begin(enqueue(store, "a"))
            now.begin(store.claim(Q, "w/1", 3))
        assert [each.id for each in now.told[1].leases] == ["a"]
        assert calls(primary.client) - before == 1
        cluster.move(prefix, cluster.other(primary))
        async with turn() as now:
            now.begin(enqueue(store, "b"))
            now.begin(store.claim(Q, "w/2", 3))
        outcomes, claim = now.told
        assert (outcomes, [each.id for each in claim.leases]) == (["ok"], ["b"])
