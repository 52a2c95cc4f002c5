"""A cluster as one store: calls find the primary of their queue, also when slots move and nodes come, go and die."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import orjson
import pytest
import trio

from fairq.errors import OutcomeUnknown, SettingsError, Unavailable
from fairq.model.tasks import NewTask, Settlement
from fairq.store import cluster as module
from fairq.store import keys, library
from fairq.store.opening import open_store
from fairq.store.store import Store
from tests import clusters, stores

from .test_address import RULES
from .waiting import wait_until

QUEUES = [f"queue-{number}" for number in range(12)]
SECRET = "p@ss,wo/rd#1"
QUOTED = "p%40ss%2Cwo%2Frd%231"


@pytest.fixture
async def spread(cluster: clusters.Cluster) -> AsyncIterator[Store]:
    """The typed API of an empty cluster of three primaries."""
    async with open_store(cluster.url, connect_timeout=30) as store:
        yield store


async def put(store: Store, queue: str, *ids: str, **options: Any) -> None:
    """Enqueue tasks whose payload is their id."""
    tasks = [NewTask(id, orjson.dumps(id), **options) for id in ids]
    assert await store.enqueue(queue, "ada", tasks) == ["ok"] * len(ids)


async def drain(store: Store, queue: str) -> list[str]:
    """Claim and acknowledge all that is ready; returns the ids."""
    ids: list[str] = []
    while leases := (await store.claim(queue, "w", 100)).leases:
        ended = [Settlement("ack", lease.id, lease.lease) for lease in leases]
        assert await store.settle(queue, ended) == ["ok"] * len(ended)
        ids += [lease.id for lease in leases]
    return sorted(ids)


def queues_of(cluster: clusters.Cluster, node: clusters.Node) -> list[str]:
    """Name the queues that live on a node."""
    return [queue for queue in QUEUES if cluster.owner(keys.queue_prefix(queue)) is node]


async def test_queues_are_spread_over_all_primaries_and_every_verb_finds_its_own(
    spread: Store, cluster: clusters.Cluster
) -> None:
    assert all(queues_of(cluster, node) for node in cluster.nodes[:3])
    for node in cluster.nodes:
        node.client.config_resetstat()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for queue in QUEUES:
                nursery.start_soon(put, spread, queue, "a", "b", "c")
        for queue in QUEUES:
            await put(spread, queue, "late", delay_ms=1)
            await wait_until(partial(promoted, spread, queue))
            leases = (await spread.claim(queue, "w", 2)).leases
            await spread.settle(queue, [Settlement("reject", lease.id, lease.lease) for lease in leases])
            assert await spread.replay(queue, [leases[0].id]) == ["ok"]
            assert await spread.purge(queue, [leases[1].id]) == ["ok"]
            await spread.configure(queue, {"lease_ms": 1_000})
            await spread.set_weight(queue, "ada", 2)
            await spread.set_paused(queue, "ada", True)
            await spread.set_paused(queue, "ada", False)
            assert [row.ready for row in await spread.tenants(queue)] == [3]
            assert len(await spread.tasks(queue, ["a", "b", "c"])) == 3
            assert len(await drain(spread, queue)) == 3
        assert await spread.queues() == sorted(QUEUES)
    assert cluster.error_counts() == {}


async def promoted(store: Store, queue: str) -> bool:
    """Tick; tells whether nothing is delayed any more."""
    await store.tick(queue)
    return (await store.queue(queue)).delayed == 0


async def test_tokens_and_their_end_are_the_clusters(spread: Store, cluster: clusters.Cluster) -> None:
    ended: list[str] = []
    with trio.fail_after(30):
        async with open_store(
            cluster.nodes[-1].server.url, on_message=lambda channel, _: ended.append(channel)
        ) as other:
            await other.subscription.add(keys.REVOKED, sharded=False)
            await wait_until(lambda: ended.count(keys.REVOKED) >= 3)  # it is subscribed at each primary
            ended.clear()
            assert await spread.tokens.write("abcd", b"{}") is True
            assert await other.tokens.read_all() == [b"{}"]
            assert await other.tokens.delete("abcd") is True
            await wait_until(lambda: keys.REVOKED in ended)


async def test_the_library_is_on_every_primary_and_comes_back_where_it_is_flushed(
    spread: Store, cluster: clusters.Cluster
) -> None:
    for node in cluster.nodes:
        assert len(node.client.function_list(library.name())) == 1
        node.client.function_flush()
    with trio.fail_after(30):
        for queue in QUEUES:
            await put(spread, queue, "a")
    assert all(len(node.client.function_list(library.name())) == 1 for node in cluster.nodes)


async def test_a_slot_that_has_moved_is_followed(
    spread: Store, cluster: clusters.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.Cluster, "refresh_soon", lambda _: None)  # a late node may still name the former owner
    prefix = keys.queue_prefix("emails")
    with trio.fail_after(30):
        await put(spread, "emails", "a", "b")
        source = cluster.owner(prefix)
        cluster.move(prefix, cluster.other(source))
        for node in cluster.nodes:
            node.client.config_resetstat()
        await put(spread, "emails", "c")
        assert await drain(spread, "emails") == ["a", "b", "c"]
        assert cluster.error_counts() == {"MOVED": 1}  # and then it was known
        cluster.move(prefix, source)
        await put(spread, "emails", "d")
        assert await drain(spread, "emails") == ["d"]


async def test_a_slot_that_has_moved_is_found_out_in_time_without_a_call(
    cluster: clusters.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REFRESH_S", 0.05)
    prefix = keys.queue_prefix("emails")
    with trio.fail_after(30):
        async with open_store(cluster.url) as store:
            target = cluster.other(cluster.owner(prefix))
            cluster.move(prefix, target)

            def is_found() -> bool:
                assert isinstance(store.connection, module.Cluster)
                owner = store.connection.owner(prefix)
                return owner is not None and owner.address.port == target.port

            await wait_until(is_found)


async def test_a_queue_waits_while_its_slot_moves_key_by_key_and_nothing_is_lost_or_split(
    spread: Store, cluster: clusters.Cluster
) -> None:
    prefix = keys.queue_prefix("emails")
    with trio.fail_after(30):
        await put(spread, "emails", "a", "b")
        target = cluster.other(cluster.owner(prefix))
        with cluster.moving(prefix, target) as move_keys:
            with pytest.raises(Unavailable, match="is moving"):
                await put(spread, "emails", "c")
            move_keys()
            with pytest.raises(Unavailable, match="is moving"):
                await spread.claim("emails", "w", 10)
            with pytest.raises(Unavailable, match="is moving"):
                await spread.queue("emails")
        await put(spread, "emails", "c")
        assert await drain(spread, "emails") == ["a", "b", "c"]
        assert cluster.owner(prefix) is target


async def test_a_plain_key_is_asked_for_where_it_has_gone_in_the_middle_of_a_move(
    spread: Store, cluster: clusters.Cluster
) -> None:
    with trio.fail_after(30):
        await spread.tokens.write("abcd", b"{}")
        source = cluster.owner(keys.TOKENS)
        with cluster.moving(keys.TOKENS, cluster.other(source)) as move_keys:
            assert await spread.tokens.read_all() == [b"{}"]  # still at the old owner
            move_keys()
            for node in cluster.nodes:
                node.client.config_resetstat()
            async with trio.open_nursery() as nursery:  # ASKING counts for one command: others must not come between
                for number in range(20):
                    nursery.start_soon(spread.tokens.write, f"token-{number}", b"{}")
            assert cluster.error_counts() == {"ASK": 20}
            assert len(await spread.tokens.read_all()) == 21
        assert len(await spread.tokens.read_all()) == 21
        cluster.move(keys.TOKENS, source)


@pytest.mark.one_store("valkey")  # Redis moves slots key by key only
async def test_a_slot_that_moves_in_one_step_is_followed(spread: Store, cluster: clusters.Cluster) -> None:
    prefix = keys.queue_prefix("emails")
    source = cluster.owner(prefix)
    target, slot = cluster.other(source), module.slot_of(("GET", prefix))
    with trio.fail_after(30):
        await put(spread, "emails", "a")
        source.cluster("MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.id)
        number = 0
        while not target.sees_owner(slot, target):
            await put(spread, "emails", f"id-{number}")
            number += 1
            await trio.sleep(0.01)
        await put(spread, "emails", "z")
        assert await drain(spread, "emails") == sorted(["a", *(f"id-{each}" for each in range(number)), "z"])


async def test_what_the_cluster_cannot_serve_now_is_unavailable(spread: Store, cluster: clusters.Cluster) -> None:
    prefix = keys.queue_prefix("emails")
    owner, slot = cluster.owner(prefix), module.slot_of(("GET", prefix))
    with trio.fail_after(30):
        await put(spread, "emails", "a")
        owner.cluster("DELSLOTS", slot)
        with pytest.raises(Unavailable, match=r"CLUSTERDOWN|no node"):
            await spread.queue("emails")
        owner.cluster("ADDSLOTS", slot)
        await wait_until(lambda: succeeds(spread, "emails"))
        cluster.owner("{x}").client.set("{x}1", "1")
        is_moving = cluster.moving("{x}", cluster.other(cluster.owner("{x}")))
        with is_moving, pytest.raises(Unavailable, match="TRYAGAIN"):
            await spread.connection.call("MGET", "{x}1", "{x}2")


@pytest.mark.one_store
async def test_a_call_is_not_sent_round_for_ever_between_nodes_that_do_not_agree(
    spread: Store, cluster: clusters.Cluster
) -> None:
    prefix = keys.queue_prefix("emails")
    owner, slot = cluster.owner(prefix), module.slot_of(("GET", prefix))
    other = cluster.other(owner)
    with trio.fail_after(30):
        owner.cluster("SETSLOT", slot, "NODE", other.id)
        with pytest.raises(Unavailable, match="disagree"):
            await spread.queue("emails")
        owner.cluster("SETSLOT", slot, "NODE", owner.id)
        await wait_until(lambda: succeeds(spread, "emails"))


async def succeeds(store: Store, queue: str) -> bool:
    """Tell whether a queue can be read."""
    try:
        await store.queue(queue)
    except (Unavailable, OutcomeUnknown):
        return False
    return True


async def test_ready_hints_are_heard_from_every_primary_and_after_a_slot_moved(
    cluster: clusters.Cluster, spread: Store
) -> None:
    heard: list[str] = []

    async def notification_comes(queue: str, id: str) -> None:
        assert (await spread.claim(queue, "w", 100)).leases == []  # it is hungry now
        heard.clear()
        await put(spread, queue, id)
        await wait_until(lambda: keys.ready_channel(queue) in heard)
        await drain(spread, queue)

    with trio.fail_after(30):
        async with open_store(cluster.url, on_message=lambda channel, _: heard.append(channel)) as listening:
            for queue in QUEUES:
                await listening.subscription.add(keys.ready_channel(queue))
                await wait_until(partial(cluster.is_heard, keys.ready_channel(queue)))
                await notification_comes(queue, "a")
            for round in range(2):
                prefix = keys.queue_prefix(QUEUES[0])
                cluster.move(prefix, cluster.other(cluster.owner(prefix)))
                await wait_until(lambda: subscriptions(cluster, QUEUES[0]) == 1)
                await notification_comes(QUEUES[0], f"moved-{round}")
            await listening.subscription.remove(keys.ready_channel(QUEUES[0]))
            await wait_until(lambda: subscriptions(cluster, QUEUES[0]) == 0)
            await notification_comes(QUEUES[1], "b")


def subscriptions(cluster: clusters.Cluster, queue: str) -> int:
    """Count who listens to a queue's channel at the node that has it."""
    channel = keys.ready_channel(queue)
    return cluster.owner(channel).subscriptions(channel)


@pytest.mark.deep("kills")
@pytest.mark.one_store
async def test_the_queues_of_a_killed_primary_are_away_the_others_go_on(
    start_cluster: Callable[..., clusters.Cluster],
) -> None:
    cluster = start_cluster()
    dead = cluster.owner(keys.WORKERS)  # a channel, which any node knows
    theirs = queues_of(cluster, dead)
    others = [queue for queue in QUEUES if queue not in theirs]
    with trio.fail_after(30):
        async with open_store(cluster.other(dead).server.url) as store:
            for queue in QUEUES:
                await put(store, queue, "a")
            dead.server.kill()
            for queue in theirs:
                with pytest.raises((Unavailable, OutcomeUnknown)):
                    await put(store, queue, "b")
            with pytest.raises(Unavailable, match="no connection to the store"):
                await put(store, theirs[0], "b")
            for queue in others:
                await put(store, queue, "b")
                assert await drain(store, queue) == ["a", "b"]
            await store.workers.tell(b"to all servers")
            dead.server.start()
            await wait_until(lambda: succeeds(store, theirs[0]))
            assert await drain(store, theirs[0]) == ["a"]


@pytest.mark.deep("kills")
@pytest.mark.one_store
async def test_a_promoted_replica_is_followed_in_good_order_and_after_a_crash(
    start_cluster: Callable[..., clusters.Cluster],
) -> None:
    cluster = start_cluster()
    first = cluster.owner(keys.queue_prefix("emails"))
    channel = keys.ready_channel("emails")
    with trio.fail_after(120):
        async with open_store(cluster.url) as store:
            second = cluster.add_replica(first)
            await store.subscription.add(channel)
            await put(store, "emails", "a")
            second.cluster("FAILOVER")
            await wait_until(lambda: second.client.info("replication")["role"] == "master", 30)
            await wait_until(lambda: succeeds(store, "emails"), 30)
            await put(store, "emails", "b")
            await wait_until(lambda: second.subscriptions(channel) == 1, 30)
            first.wait_replica()
            assert second.client.wait(1, 5_000) == 1
            second.server.kill()
            await wait_until(lambda: not store.connection.is_connected, 30)
            first.cluster("FAILOVER", "TAKEOVER")
            await wait_until(lambda: succeeds(store, "emails"), 30)
            assert await drain(store, "emails") == ["a", "b"]
            await wait_until(lambda: first.subscriptions(channel) == 1, 30)
            await store.connection.wait_connected()  # the dead one is not waited for any more
            assert second.port not in [node.address.port for node in store.connection.nodes()]


@pytest.mark.deep("kills")
@pytest.mark.one_store
async def test_a_node_that_joined_later_gets_the_library_and_one_that_left_is_closed(
    start_cluster: Callable[..., clusters.Cluster],
) -> None:
    cluster = start_cluster(count=2)
    prefix = keys.queue_prefix("emails")
    with trio.fail_after(40):
        async with open_store(cluster.url) as store:
            await put(store, "emails", "a")
            home, late = cluster.owner(prefix), cluster.add()
            assert late.client.function_list() == []
            cluster.move(prefix, late)
            await put(store, "emails", "b")
            assert await drain(store, "emails") == ["a", "b"]
            assert len(late.client.function_list(library.name())) == 1
            assert isinstance(store.connection, module.Cluster)
            await wait_until(lambda: len(store.connection.nodes()) == 3)
            cluster.move(prefix, home)
            for node in cluster.nodes:
                await wait_until(partial(node.sees_owner, module.slot_of(("GET", prefix)), home))
            store.connection.timeout = 0.1  # and with it the longest wait for an answer
            await put(store, "emails", "c")
            await wait_until(lambda: clients_of(late) == 0)


def clients_of(node: clusters.Node) -> int:
    """Count the clients of a node but for this test's, and for another node's that brings keys."""
    return sum(row["cmd"].split("|")[0] not in ("client", "restore-asking") for row in node.client.client_list())


async def test_a_seed_that_is_away_is_passed_over_and_the_nodes_need_the_login_of_the_url(
    start_cluster: Callable[..., clusters.Cluster],
) -> None:
    cluster = start_cluster(count=2)
    for node in cluster.nodes:
        node.client.execute_command("ACL", "SETUSER", "shy", f">{SECRET}", *RULES)
        node.client.execute_command("ACL", "SETUSER", "fairq", f">{SECRET}", *RULES, "+cluster|slots")
        node.client.config_set("requirepass", SECRET)
    hosts = f"127.0.0.1:{stores.free_port()},127.0.0.1:{cluster.nodes[1].port}"
    with trio.fail_after(30):
        for login in (f":{QUOTED}@", f"fairq:{QUOTED}@"):
            async with open_store(f"redis://{login}{hosts}/0", connect_timeout=30) as store:
                for queue in QUEUES:
                    assert await drain(store, queue) == []  # it is hungry now, and will publish
                    await put(store, queue, f"of {login[:3]}")
                    assert await drain(store, queue) == [f"of {login[:3]}"]
                    await store.tick(queue)
        for login, why in ((":wrong@", "WRONGPASS"), ("", "NOAUTH"), (f"shy:{QUOTED}@", "NOPERM")):
            with pytest.raises(SettingsError, match=why) as caught:
                async with open_store(f"redis://{login}{hosts}/0", connect_timeout=30):
                    pass
            assert QUOTED not in str(caught.value)


async def test_a_cluster_has_one_database_and_several_hosts_are_one(cluster: clusters.Cluster, store_url: str) -> None:
    hosts = store_url.partition("@")[2].removesuffix("/0")
    refused = {f"{cluster.url.removesuffix('/0')}/3": "only database 0", f"redis://{hosts},{hosts}/0": "not a cluster"}
    for url, why in refused.items():
        with trio.fail_after(30), pytest.raises(SettingsError, match=why):
            async with open_store(url, connect_timeout=30):
                pass
