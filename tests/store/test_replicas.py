"""What is put into a queue is acknowledged when replicas have it: real primaries, replicas, sentinels and a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import trio

from fairq.errors import OutcomeUnknown, SettingsError
from fairq.io.scopes import run_all
from fairq.model.tasks import NewTask
from fairq.store import keys, sentinel
from fairq.store import replicas as module
from fairq.store.opening import open_store
from fairq.store.store import Store
from tests import clusters, stores
from tests.sentinels import StartSentinel, start_sentinel, url_of

from .waiting import wait_until

__all__ = ["start_sentinel"]

StartStore = Callable[..., stores.LocalServer]


@contextmanager
def lacking() -> Iterator[None]:
    """Expect that a replica lacks, and do not wait for it for long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WAIT_MS", 200)
        with pytest.raises(OutcomeUnknown, match="0 of 1 replicas"):
            yield


async def follow(start_store: StartStore, primary: stores.LocalServer) -> stores.LocalServer:
    """Start a replica; on return it has confirmed a write."""
    replica = start_store({"replicaof": f"{stores.HOST} {primary.port}"})
    with stores.connect(stores.of_owner(primary.url)) as client:

        def confirms() -> bool:
            client.set("of-the-test", "1")
            return bool(client.wait(1, 100))

        await wait_until(confirms)
    return replica


def stored(store: stores.LocalServer) -> int:
    """How many tasks of the queue a store has."""
    with stores.connect(stores.of_owner(store.url)) as client:
        return int(client.hlen(f"{keys.queue_prefix('emails')}:tasks"))


async def put(store: Store, *ids: str, queue: str = "emails") -> list[str]:
    return await store.enqueue(queue, "ada", [NewTask(id, b"1") for id in ids])


def waits(store: stores.LocalServer) -> int:
    """How many WAITs a store has carried out."""
    with stores.connect(stores.of_owner(store.url)) as client:
        return int(client.info("commandstats").get("cmdstat_wait", {"calls": 0})["calls"])


async def test_a_task_is_acknowledged_when_a_replica_has_it_also_if_it_was_stored_before(
    start_store: StartStore,
) -> None:
    with trio.fail_after(60):
        primary = start_store()
        async with open_store(primary.url, wait_replicas=1) as store:
            for _ in range(2):
                with lacking():
                    await put(store, "ada/a")
            assert [state and state.id for state in await store.tasks("emails", ["ada/a"])] == ["ada/a"]
            replica = await follow(start_store, primary)
            assert [outcome.partition("\n")[0] for outcome in await put(store, "ada/a")] == ["duplicate"]
            assert await put(store, "ada/b") == ["ok"]
            assert stored(replica) == 2
            assert await store.open_batch("emails", "ada", "ada/batch", 0, [b"", b"", b""])
            replica.kill()
            with lacking():
                await store.close_batch("emails", "ada/batch")


async def test_calls_that_came_together_share_a_wait(start_store: StartStore) -> None:
    with trio.fail_after(60):
        primary = start_store()
        await follow(start_store, primary)
        async with open_store(primary.url, wait_replicas=1) as store:
            await put(store, "ada/first")
            before = waits(primary)
            await run_all(*(partial(put, store, f"ada/{n}", queue=f"q{n % 7}") for n in range(100)))
            assert waits(primary) - before <= 10  # the queues are new, and each is made by itself


async def test_a_primary_that_was_replaced_meanwhile_confirms_nothing(
    start_store: StartStore, start_sentinel: StartSentinel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentinel, "LOOK_S", 3600.0)  # the server does not hear of it
    with trio.fail_after(60):
        old, new = start_store(), start_store()
        await follow(start_store, old)
        await follow(start_store, new)
        watching = start_sentinel(old.port)
        async with open_store(url_of([watching]), wait_replicas=1, connect_timeout=30) as store:
            watching.watch(new.port)
            with pytest.raises(OutcomeUnknown, match="the primary was replaced"):
                await put(store, "ada/a")
            assert stored(old) == 1


async def test_a_connection_without_calls_is_closed_and_made_again(
    start_store: StartStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.05)
    with trio.fail_after(60):
        primary = start_store()
        await follow(start_store, primary)
        async with open_store(primary.url, wait_replicas=1) as store:
            await put(store, "ada/a")
            assert store.replicas
            open_ones = store.replicas._open
            await wait_until(lambda: not open_ones)
            assert await put(store, "ada/b") == ["ok"]


async def test_each_primary_of_a_cluster_confirms_its_own_queues(
    start_cluster: Callable[..., clusters.Cluster],
) -> None:
    with trio.fail_after(90):
        cluster = start_cluster(2)
        first, second = cluster.nodes
        cluster.add_replica(first)
        queues = {cluster.owner(f"fq:{{{name}/0}}").server.port: name for name in map("q{}".format, range(20))}
        async with open_store(cluster.url, wait_replicas=1) as store:
            assert await put(store, "ada/a", queue=queues[first.server.port]) == ["ok"]
            with lacking():
                await put(store, "ada/a", queue=queues[second.server.port])


async def test_the_entry_of_a_new_queue_is_confirmed_too_where_another_primary_has_it(
    start_cluster: Callable[..., clusters.Cluster],
) -> None:
    """Else a failover there loses the entry: nobody looks for the queue's tasks, or for its partitions."""
    with trio.fail_after(90):
        cluster = start_cluster(2)
        registry = cluster.owner(keys.QUEUES)
        other = cluster.other(registry)
        cluster.add_replica(other)
        queue = next(name for name in map("q{}".format, range(20)) if cluster.owner(f"fq:{{{name}/0}}") is other)
        async with open_store(cluster.url, wait_replicas=1) as store:
            for _ in range(2):
                with lacking():
                    await put(store, "ada/a", queue=queue)
            cluster.add_replica(registry)
            assert [outcome.partition("\n")[0] for outcome in await put(store, "ada/a", queue=queue)] == ["duplicate"]
            assert await put(store, "ada/b", queue=queue) == ["ok"]


async def test_a_user_who_may_not_wait_is_refused_at_the_start(start_store: StartStore) -> None:
    primary = start_store()
    with stores.connect(stores.of_owner(primary.url)) as client:
        client.execute_command("ACL", "SETUSER", "fairq", "-wait")
    with trio.fail_after(30), pytest.raises(SettingsError, match="wait"):
        async with open_store(primary.url, wait_replicas=1):
            pass


async def test_a_store_that_names_no_replication_id_is_refused_at_the_start(
    start_store: StartStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary = start_store()
    monkeypatch.setattr(module, "read_info", lambda _: {"connected_slaves": "1"})
    with trio.fail_after(30), pytest.raises(SettingsError, match="no master_replid"):
        async with open_store(primary.url, wait_replicas=1):
            pass
