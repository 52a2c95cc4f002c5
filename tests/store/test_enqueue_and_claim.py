"""A covered enqueue and its claim are one call of the library, and each caller gets its own part of the reply."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis
import trio
from attrs import define, field

from fairq.errors import FairqError, OutcomeUnknown, QuotaExceeded, Unavailable
from fairq.io.taskless import Taskless
from fairq.model.tasks import NewTask
from fairq.store import keys
from fairq.store.covered import Covered
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
    outcomes_of_calls: list[Any] = field(factory=list)

    def begin(self, call: Coroutine[Any, Any, Any]) -> None:
        """Begin a call."""
        self.taskless.begin(self._note(call, len(self.outcomes_of_calls)))

    async def _note(self, call: Coroutine[Any, Any, Any], place: int) -> None:
        self.outcomes_of_calls.append(None)
        try:
            self.outcomes_of_calls[place] = await call
        except FairqError as error:
            self.outcomes_of_calls[place] = type(error)


@asynccontextmanager
async def turn() -> AsyncIterator[Turn]:
    """A turn: the block begins its calls; then all of them end."""
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            found = Turn(Taskless(nursery))
            yield found
            await wait_until(lambda: not found.taskless.waiting)


def enqueue(store: Store, *ids: str, notify: str | Covered = "all") -> Coroutine[Any, Any, list[str]]:
    return store.enqueue(Q, "ada", [NewTask(id, b"1") for id in ids], notify=notify)


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


@pytest.mark.parametrize("enqueues", [["a b"], ["a", "b"]], ids=["one", "two"])
async def test_the_last_enqueue_and_the_claim_are_one_call(
    made: Store, redis_client: redis.Redis, enqueues: list[str]
) -> None:
    before, covered = calls(redis_client), Covered()
    with redis_client.pubsub() as listener:
        listener.ssubscribe(keys.ready_channel(Q))
        async with turn() as now:
            for ids in enqueues:
                now.begin(enqueue(made, *ids.split(), notify=covered))
            now.begin(made.cancel(Q, ["none"]))  # does not part them
            now.begin(made.claim(Q, "w/1", 3, covered=covered))
        *outcomes, _, claim = now.outcomes_of_calls
        assert ([word for each in outcomes for word in each], [each.id for each in claim.leases]) == (
            ["ok", "ok"], ["a", "b"]
        )  # fmt: skip
        assert calls(redis_client) - before == len(enqueues) + 1
        assert listener.get_message(timeout=30)["type"] == "ssubscribe"
        assert listener.get_message() is None, "no other server is notified"


async def test_without_a_claim_the_enqueues_leave_alone(made: Store, redis_client: redis.Redis) -> None:
    covered = Covered()
    await made.claim(Q, "w/0", 1)  # finds nothing: it asks to be notified
    with redis_client.pubsub() as listener:
        listener.ssubscribe(keys.ready_channel(Q))
        listener.get_message(timeout=30)
        async with turn() as now:
            now.begin(enqueue(made, "a", notify=covered))
            covered.send()
        assert now.outcomes_of_calls == [["ok"]]
        assert listener.get_message(timeout=30)["type"] == "smessage"


async def test_an_enqueue_that_is_held_while_the_connection_breaks_was_not_sent(made: Store) -> None:
    covered = Covered()
    async with turn() as now:
        now.begin(enqueue(made, "a", notify=covered))
        now.begin(enqueue(made, "b", notify=covered))
        for connection in made.connection.nodes():
            connection.is_connected = False
        now.begin(made.claim(Q, "w/1", 1, covered=covered))
    assert now.outcomes_of_calls == [Unavailable] * 3


async def test_where_the_tasks_are_refused_the_claim_is_made_all_the_same(made: Store) -> None:
    await made.set_limits(Q, "ada", {"queued": 1})
    await enqueue(made, "a")
    covered = Covered()
    async with turn() as now:
        now.begin(enqueue(made, "b", notify=covered))
        now.begin(made.claim(Q, "w/1", 3, covered=covered))
    refusal, claim = now.outcomes_of_calls
    assert refusal is QuotaExceeded
    assert [each.id for each in claim.leases] == ["a"]


async def test_where_the_library_is_gone_both_are_made_again(made: Store, redis_client: redis.Redis) -> None:
    redis_client.function_flush()
    covered = Covered()
    async with turn() as now:
        now.begin(enqueue(made, "a", notify=covered))
        now.begin(made.claim(Q, "w/1", 3, covered=covered))
    outcomes, claim = now.outcomes_of_calls
    assert outcomes == ["ok"]
    if not claim.leases:  # it was first
        claim = await made.claim(Q, "w/2", 3)
    assert [each.id for each in claim.leases] == ["a"]


async def test_where_the_answer_is_lost_neither_is_known_and_both_can_be_repeated(store_port: int) -> None:
    async with open_proxy(store_port) as proxy, open_store(f"redis://127.0.0.1:{proxy.port}/0") as store:
        assert await store.cancel(Q, ["none"]) == ["gone"]
        await store.registry.make(Q, "ada")
        proxy.lose_next_reply()
        covered = Covered()
        async with turn() as now:
            now.begin(enqueue(store, "a", notify=covered))
            now.begin(store.claim(Q, "w/1", 3, covered=covered))
        assert now.outcomes_of_calls == [OutcomeUnknown, OutcomeUnknown]
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
        covered = Covered()
        async with turn() as now:
            now.begin(enqueue(store, "a", notify=covered))
            now.begin(store.claim(Q, "w/1", 3, covered=covered))
        assert [each.id for each in now.outcomes_of_calls[1].leases] == ["a"]
        assert calls(primary.client) - before == 1
        cluster.move(prefix, cluster.other(primary))
        covered = Covered()
        async with turn() as now:
            now.begin(enqueue(store, "b", notify=covered))
            now.begin(store.claim(Q, "w/2", 3, covered=covered))
        outcomes, claim = now.outcomes_of_calls
        assert (outcomes, [each.id for each in claim.leases]) == (["ok"], ["b"])
