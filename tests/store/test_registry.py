"""The registry of queues: who made which, how many a tenant may make, and what becomes of a deleted one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import redis
import trio

from fairq.errors import Deleting, NotEmpty, NotFound, QuotaExceeded, SettingsError, Unavailable
from fairq.model.schedules import Timing
from fairq.model.tasks import NewTask, Settlement
from fairq.store import keys, library
from fairq.store.connection import Connection
from fairq.store.migrations import NEW
from fairq.store.opening import open_store
from fairq.store.registry import Deletion, Registry
from fairq.store.store import Store

Q = "emails"
EVERY_MINUTE = Timing(every_ms=60_000)
NOTHING = dict.fromkeys(("ready", "pending", "delayed", "leased", "dead", "schedules", "open_batches"), 0)


@asynccontextmanager
async def opened(url: str, count: int, quota: int) -> AsyncIterator[list[Store]]:
    """Open a store several times, as servers that hear nothing of each other do."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_store(url, queue_quota=quota)) for _ in range(count)]


async def put(store: Store, *ids: str, queue: str = Q, tenant: str = "ada", **options: Any) -> list[str]:
    """Enqueue tasks."""
    return await store.enqueue(queue, tenant, [NewTask(id, b"1", **options) for id in ids])


def break_at_removal(store: Store) -> None:
    """Have a store's connection break whenever a queue is about to leave the registry."""
    call = store.registry.call

    async def break_off(prefix: str, verb: str, *args: object) -> object:
        if verb == "remove_queue":
            raise trio.BrokenResourceError
        return await call(prefix, verb, *args)

    store.registry.call = break_off


def queues_of(client: redis.Redis) -> set[str]:
    """Name the queues that have keys, by looking at all keys."""
    return {name.decode().partition("/")[0][4:] for name in client.scan_iter("fq:{*/0}*")}


async def test_a_store_that_was_emptied_gets_its_data_version_back_with_its_first_queue(
    store: Store, redis_client: redis.Redis
) -> None:
    for queue in (Q, "other"):  # one that the server knows, and one that it does not
        await put(store, "a")
        redis_client.flushall()
        assert await put(store, "a", queue=queue) == ["ok"]
        assert redis_client.get(keys.DATA_VERSION) == str(NEW).encode()


async def test_nothing_is_put_into_a_store_that_was_emptied_for_a_later_version(
    store_url: str, redis_client: redis.Redis
) -> None:
    later = library.DATA_VERSION + 1

    async def serve() -> None:
        async with open_store(store_url) as store:
            await put(store, "a")
            redis_client.flushall()
            redis_client.set(keys.DATA_VERSION, later)
            with pytest.raises(Unavailable, match=f"data of version {later}"):
                await put(store, "b")

    with pytest.raises(SettingsError, match=f"data of version {later}"):  # it ends
        await serve()
    assert not redis_client.exists(keys.QUEUES)


async def test_the_first_to_put_something_in_made_the_queue(store: Store) -> None:
    await put(store, "a")
    await put(store, "b", tenant="bob")
    await store.open_batch("batches", "bob", "b", 0, [b"", b"", b""])
    await store.schedule("schedules", "eve", "s", EVERY_MINUTE, 1, "skip", NewTask("s", b"1"), maker="eve")
    await store.schedule("ours", "eve", "s", EVERY_MINUTE, 1, "skip", NewTask("s", b"1"))  # an operator did
    await store.set_weight("tuned", "ada", 2)
    made = await store.registry.read()
    assert {queue: maker.made_by for queue, maker in made.items()} == {
        Q: "ada", "batches": "bob", "schedules": "eve", "ours": "", "tuned": "",
    }  # fmt: skip
    assert all(maker.made_at_ms > 1_600_000_000_000 for maker in made.values())


@pytest.mark.parametrize("again", [True, False])
async def test_a_queue_that_is_deleted_while_all_are_read_keeps_no_places(
    store_url: str, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is deleted, and made anew, around the reading of the numbers of partitions."""
    with trio.fail_after(30):
        async with opened(store_url, 2, quota=10) as (one, two):
            places = await one.registry.make(Q, "", partitions=3)
            call = Connection.call

            async def meanwhile(connection: Connection, *words: Any, **options: Any) -> Any:
                if words != ("HGETALL", keys.PARTITIONS):
                    return await call(connection, *words, **options)
                await two.registry.delete(Q, purge=True)
                flat = await call(connection, *words, **options)
                if again:
                    await two.registry.make(Q, "", partitions=3)
                return flat

            monkeypatch.setattr(Connection, "call", meanwhile)
            assert await one.registry.all_places() == (list(places) if again else [])
            assert one.registry.places_known(Q) == places


async def test_servers_side_by_side_do_not_overrun_a_quota(store_url: str, redis_client: redis.Redis) -> None:
    made: list[str] = []
    refused: list[tuple[str | None, int | None]] = []

    async def make(store: Store, queue: str) -> None:
        try:
            await put(store, "a", queue=queue)
            made.append(queue)
        except QuotaExceeded as error:
            refused.append((error.field, error.retry_in_ms))

    with trio.fail_after(60):
        async with opened(store_url, 4, quota=10) as servers, trio.open_nursery() as nursery:
            for number in range(40):  # each name at two servers
                for place in range(2):
                    nursery.start_soon(make, servers[(number + place) % 4], f"q-{number}")
    assert len(set(made)) == 10
    assert set(refused) == {("queues", None)}
    assert queues_of(redis_client) == set(made)
    assert redis_client.hgetall(keys.REGISTRY + ":makers") == {b"ada": b"10"}


async def test_a_quota_of_0_leaves_existing_queues_and_operators_alone(
    store_url: str, redis_client: redis.Redis
) -> None:
    async with opened(store_url, 1, quota=0) as (store,):
        await store.set_weight(Q, "ada", 2)
        assert await put(store, "a") == ["ok"]
        before = redis_client.dbsize()
        with pytest.raises(NotFound, match="there is no queue other, and only operators make queues here"):
            await put(store, "a", queue="other")
        with pytest.raises(NotFound):
            await store.open_batch("other", "ada", "b", 0, [b"", b"", b""])
        with pytest.raises(NotFound):
            await store.schedule("other", "ada", "s", EVERY_MINUTE, 1, "skip", NewTask("s", b"1"), maker="ada")
        assert redis_client.dbsize() == before
        assert await store.queues() == [Q]


async def test_a_queue_that_was_deleted_elsewhere_is_made_anew(store_url: str, redis_client: redis.Redis) -> None:
    async with opened(store_url, 2, quota=1) as (one, two):
        await put(one, "a", delay_ms=3_600_000)
        assert await two.registry.delete(Q, purge=True) == Deletion("ok", {**NOTHING, "delayed": 1})
        assert (await two.queues(), queues_of(redis_client)) == ([], set())
        assert Q in one.registry.known  # nothing has announced it
        assert await put(one, "b") == ["ok"]
        assert (await two.registry.read())[Q].made_by == "ada"
        assert (await two.queue(Q)).ready == 1
        await two.registry.delete(Q, purge=True)
        await put(two, "a", queue="other")
        with pytest.raises(QuotaExceeded):  # counted like any other
            await put(one, "c")
        assert queues_of(redis_client) == {"other"}


async def test_a_queue_deleted_while_it_is_made_is_registered_all_the_same(store: Store) -> None:
    call = store.registry.call

    async def delete_first(prefix: str, verb: str, *args: object) -> object:
        if verb == "make_queue":
            store.registry.call = call
            assert (await other.delete(Q, purge=False)).outcome == "ok"
        return await call(prefix, verb, *args)

    other = Registry(store.connection, call, store.registry.check_data)
    store.registry.call = delete_first
    assert await put(store, "a") == ["ok"]
    assert {queue: maker.made_by for queue, maker in (await store.registry.read()).items()} == {Q: "ada"}


async def test_a_deletion_that_was_broken_off_bars_the_queue_until_another_finishes_it(
    store_url: str, redis_client: redis.Redis
) -> None:
    async with opened(store_url, 2, quota=100) as (one, two):
        await put(one, *(f"a-{n}" for n in range(300)), priority=3)
        await two.set_weight("other", "ada", 1)
        redis_client.mset({f"fq:{{other/0}}{n}": "" for n in range(1000)})  # the deletion does not end at once
        lease = (await one.claim(Q, "w", 1)).leases[0]
        with pytest.raises(NotEmpty, match="queue emails is not empty: 299 ready, 1 leased"):
            await one.registry.delete(Q, purge=False)
        contents = {**NOTHING, "ready": 299, "leased": 1}
        assert await one.registry.delete(Q, purge=True, seconds=0) == Deletion("more", contents)
        assert (await two.queue(Q)).is_deleting
        for store in (one, two):
            with pytest.raises(Deleting):
                await put(store, "b")
            with pytest.raises(Deleting):
                await store.claim(Q, "w", 1)
        assert await one.settle(Q, [Settlement("ack", lease.id, lease.lease)]) == ["gone"]
        while (await two.registry.delete(Q, purge=False, seconds=0)).outcome == "more":  # `one` has died
            pass
        assert (await two.queues(), queues_of(redis_client)) == (["other"], {"other"})
        assert await two.registry.delete(Q, purge=False) == Deletion("gone", {})
        assert await put(one, "b") == ["ok"]


@pytest.mark.parametrize("moment", ["delete_queue", "remove_queue"])  # after the first, before the second
async def test_who_ends_a_deletion_that_others_have_ended_touches_no_queue_made_since(
    store_url: str, redis_client: redis.Redis, moment: str
) -> None:
    async with opened(store_url, 2, quota=100) as (one, two):
        await put(one, "a")
        redis_client.mset({f"other:{n}": "" for n in range(1000)})  # more keys than one call looks through
        call = one.registry.call

        async def let_other_finish(prefix: str, verb: str, *args: object) -> object:
            begun = await call(prefix, verb, *args) if verb == "delete_queue" else None
            if verb == moment:
                one.registry.call = call
                await two.registry.delete(Q, purge=True)
                await put(two, "b")
            return begun or await call(prefix, verb, *args)

        one.registry.call = let_other_finish
        assert (await one.registry.delete(Q, purge=True)).outcome == "ok"
        assert (await one.queues(), (await one.queue(Q)).ready) == ([Q], 1)


async def test_what_is_left_of_a_deletion_whose_server_died_at_its_end_goes_with_the_next(store_url: str) -> None:
    async with opened(store_url, 2, quota=1) as (one, two):
        await put(one, "a")
        break_at_removal(one)
        with pytest.raises(trio.BrokenResourceError):
            await one.registry.delete(Q, purge=True)
        assert await two.queues() == [Q]
        assert (await two.registry.delete(Q, purge=False)).outcome == "ok"
        assert (await two.registry.delete(Q, purge=False)).outcome == "gone"
        assert await put(two, "a", queue="other") == ["ok"], "its quota was given back"


async def make_idle(store: Store, queue: str = Q) -> bytes:
    """Make a queue for ada, with nothing in it; returns its entry in the registry."""
    await put_schedule(store, queue)
    assert await store.unschedule(queue, "ada", "s")
    assert await store.drop_tenant(queue, "ada")
    return await entry_a_ms_later(store, queue)


async def entry_a_ms_later(store: Store, queue: str = Q) -> bytes:
    """Read a queue's entry in the registry, and wait until it is idle for a ms."""
    entry = (await store.registry.entries())[queue]
    last = max(await read_ms(store), int(entry.split()[0]))  # made again in its ms, a queue is of a later one
    while await read_ms(store) <= last:
        pass
    return entry


async def read_ms(store: Store) -> int:
    """Read the store's time."""
    seconds, us = await store.connection.call("TIME")
    return int(seconds) * 1000 + int(us) // 1000


async def put_schedule(store: Store, queue: str = Q) -> None:
    """Put a schedule into a queue, which leaves nothing behind when it is deleted."""
    await store.schedule(queue, "ada", "s", EVERY_MINUTE, 2**50, "skip", NewTask("s", b"1"), maker="ada")


async def test_an_idle_queue_is_removed_and_its_maker_may_make_another(
    store_url: str, redis_client: redis.Redis
) -> None:
    async with opened(store_url, 2, quota=1) as (one, two):
        entry = await make_idle(one)
        assert await two.registry.is_idle(Q, entry, 1)
        assert not await two.registry.is_idle(Q, entry, 86_400_000)
        assert not await two.registry.drop_idle(Q, entry, 86_400_000)
        assert await two.queues() == [Q]
        assert await two.registry.drop_idle(Q, entry, 1)
        assert (await two.queues(), queues_of(redis_client)) == ([], set())
        assert redis_client.hgetall(keys.REGISTRY + ":makers") == {}
        assert await put(one, "a", queue="other") == ["ok"]
        with pytest.raises(QuotaExceeded):  # `one` still knows it, and has to make it anew
            await put_schedule(one)
        assert await two.queues() == ["other"]


async def test_a_queue_that_an_operator_made_stays(store: Store) -> None:
    await store.configure(Q, {"lease_ms": 30_000})
    assert not await store.registry.is_idle(Q, await entry_a_ms_later(store), 1)


async def test_a_queue_that_a_tenant_made_stays_when_it_has_partitions(store: Store) -> None:
    """A restore can give it some; its tasks are in them."""
    await store.registry.make(Q, "ada", partitions=3)
    await store.configure(Q, {"partitions": 3})
    await put(store, "a")
    entry = await entry_a_ms_later(store)
    assert not await store.registry.is_idle(Q, entry, 1)
    assert not await store.registry.drop_idle(Q, entry, 1)
    assert (await store.queues(), (await store.queue(Q)).ready) == ([Q], 1)


async def test_a_queue_that_is_deleted_while_its_places_are_read_has_none(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(store_url, 2, quota=1) as (one, two):
        await one.registry.make(Q, "", partitions=4)
        call = Connection.call

        async def delete_first(connection: Connection, *words: Any, **options: Any) -> Any:
            if connection is two.connection and words[1] == keys.PARTITIONS:
                await one.registry.delete(Q, purge=True)
            return await call(connection, *words, **options)

        monkeypatch.setattr(Connection, "call", delete_first)
        assert await two.registry.read_places(Q) is None


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("moment", ["forget_queue", "remove_queue"])
async def test_a_task_that_comes_while_its_queue_is_removed_makes_it_anew(
    store_url: str, moment: str, is_known: bool
) -> None:
    async with opened(store_url, 2, quota=1) as (one, two):
        entry = await make_idle(two if is_known else one)
        call = one.registry.call

        async def put_first(prefix: str, verb: str, *args: object) -> object:
            if verb == moment:
                one.registry.call = call
                assert await put(two, "a") == ["ok"]
            return await call(prefix, verb, *args)

        one.registry.call = put_first
        assert await one.registry.drop_idle(Q, entry, 1) is (moment == "remove_queue")
        assert (await one.queues(), (await one.queue(Q)).ready) == ([Q], 1)
        assert not await one.registry.drop_idle(Q, (await one.registry.entries())[Q], 1)


async def test_a_queue_whose_removal_was_broken_off_is_made_anew_or_removed_by_another(
    store_url: str, redis_client: redis.Redis
) -> None:
    async with opened(store_url, 2, quota=2) as (one, two):
        break_at_removal(one)
        entries = {queue: await make_idle(two, queue) for queue in (Q, "other")}
        for queue, entry in entries.items():
            with pytest.raises(trio.BrokenResourceError):
                await one.registry.drop_idle(queue, entry, 1)
        assert await put(two, "a") == ["ok"]  # at its quota, with a queue that is its own
        assert not await two.registry.drop_idle(Q, entries[Q], 1)
        assert await two.registry.drop_idle("other", entries["other"], 1)
        assert (await two.queues(), queues_of(redis_client)) == ([Q], {Q})
        assert (await two.queue(Q)).ready == 1


async def test_a_queue_that_is_slow_to_make_holds_up_no_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when its node of a cluster does not answer, or a tenant names thousands; its own calls keep their order."""
    answers, is_asked, call, ended = trio.Event(), trio.Event(), store.registry.call, list[str]()

    async def slowly(prefix: str, verb: str, *args: Any) -> Any:
        if (prefix, verb) == (keys.queue_prefix("slow"), "make_queue"):
            is_asked.set()
            await answers.wait()
        return await call(prefix, verb, *args)

    async def make(name: str, queue: str) -> None:
        await put(store, name, queue=queue)
        ended.append(name)

    monkeypatch.setattr(store.registry, "call", slowly)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(make, "first", "slow")
            await is_asked.wait()
            with trio.move_on_after(0) as cancelled:
                await make("cancelled", "slow")
            nursery.start_soon(make, "second", "slow")
            await make("other", "quick")
            assert (ended, cancelled.cancelled_caught) == (["other"], True)
            answers.set()
    assert sorted(ended[1:]) == ["first", "second"]
    assert [lease.id for lease in (await store.claim("slow", "c", 9)).leases] == ["first", "second"]
    assert not store.registry.making


async def test_what_is_known_of_queues_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairq.store.registry.MAX_KNOWN", 3)
    for number in range(7):
        await put(store, "a", queue=f"q-{number}")
    assert len(store.registry.known) <= 3
    assert await put(store, "b", queue="q-0") == ["ok"]
