"""A replica takes over behind one address, as Sentinel with a proxy, an operator or a managed store has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis
import trio
from attrs import define

from tests import stores
from tests.sentinels import SETTINGS, Sentinel, StartSentinel, start_sentinel, url_of
from tests.store.proxy import HOST, Proxy, open_proxy
from tests.store.waiting import wait_until

from .harness import World, operating, producing, wait_drained

pytestmark = pytest.mark.deep("kills")

__all__ = ["start_sentinel"]

StartStore = Callable[..., stores.LocalServer]
FAR = "127.0.0.3"  # where sentinels and replicas are, seen from the primary


@contextmanager
def owner_of(store: stores.LocalServer) -> Iterator[redis.Redis]:
    """A connection that may do all."""
    with stores.connect(stores.of_owner(store.url)) as client:
        yield client


def primary_and_replica(start_store: StartStore) -> tuple[stores.LocalServer, stores.LocalServer]:
    """Two stores; the second follows the first."""
    settings = {"appendfsync": "everysec", "repl-diskless-sync-delay": "0"}
    primary = start_store(settings)
    return primary, start_store({**settings, "replicaof": f"{HOST} {primary.port}"})


async def test_a_replica_that_is_promoted_in_good_order_loses_nothing_under_load(
    world: World, start_store: StartStore
) -> None:
    primary, replica = primary_and_replica(start_store)
    stop = trio.Event()
    with trio.fail_after(120), owner_of(primary) as old, owner_of(replica) as new:
        async with open_proxy(primary.port) as address:
            url = await world.serve("--store", f"redis://{HOST}:{address.port}/0").wait_url()
            world.work(url)
            async with producing(url) as producer, operating(url) as operator, trio.open_nursery() as nursery:
                nursery.start_soon(producer.keep_on, "id", stop)
                await world.wait_journal(lambda ran: len(ran) > 100)
                await wait_until(lambda: new.info("replication")["master_link_status"] == "up")
                old.execute_command("FAILOVER", "TO", HOST, replica.port)
                await wait_until(lambda: new.info("replication")["role"] == "master")
                address.target = replica.port  # for a while the address still leads to the one that takes no writes
                address.cut()
                before = len(producer.acknowledged)
                await wait_until(lambda: len(producer.acknowledged) > before + 100)
                stop.set()
                await wait_drained(operator)
                producer.check(world.journal(), may_repeat=lambda _: True)
                assert producer.acknowledged == producer.attempted


async def test_what_a_replica_had_when_its_primary_died_is_all_there(world: World, start_store: StartStore) -> None:
    primary, replica = primary_and_replica(start_store)
    with trio.fail_after(120), owner_of(primary) as old, owner_of(replica) as new:
        async with open_proxy(primary.port) as address:
            url = await world.serve("--store", f"redis://{HOST}:{address.port}/0").wait_url()
            async with producing(url) as producer, operating(url) as operator:
                await wait_until(lambda: new.info("replication")["master_link_status"] == "up")
                for number in range(50):
                    await producer.enqueue(f"before-{number}")
                written = old.info("replication")["master_repl_offset"]
                await wait_until(lambda: new.info("replication")["slave_repl_offset"] >= written)
                primary.kill()
                new.replicaof("NO", "ONE")
                address.target = replica.port
                address.cut()
                began = trio.current_time()
                for number in range(50):
                    await producer.enqueue(f"after-{number}")
                print(f"100 tasks, {trio.current_time() - began:.1f} s for the 50 after the failover")
                world.work(url)
                await wait_drained(operator)
                producer.check(world.journal())
                assert producer.acknowledged == producer.attempted


@define
class Watched:
    """A primary, its replicas, and three sentinels that fail over when two of them miss it."""

    primary: stores.LocalServer
    replicas: list[stores.LocalServer]
    sentinels: list[Sentinel]

    @property
    def url(self) -> str:
        return url_of(self.sentinels)

    async def wait_promoted(self) -> stores.LocalServer:
        """Wait until most sentinels name a replica as the primary; return it."""
        ports = {replica.port: replica for replica in self.replicas}
        await wait_until(lambda: sum(each.primary in ports for each in self.sentinels) >= 2, 60)
        return next(ports[each.primary] for each in self.sentinels if each.primary in ports)


async def start_watched(
    start_store: StartStore, start_sentinel: StartSentinel, replicas: int, least: int = 0, proxy: Proxy | None = None
) -> Watched:
    """Start all of them; replicas and sentinels are at FAR, and all see the primary at the proxy, if there is one."""
    settings = {**SETTINGS, "min-replicas-to-write": str(least)}
    primary = start_store(settings)
    seen_at = primary.port
    if proxy:
        proxy.target, seen_at = primary.port, proxy.port
    far = {"bind-source-addr": FAR, "replica-announce-ip": HOST}
    follow = {**settings, **far, "replicaof": f"{HOST} {seen_at}"}
    watched = Watched(primary, [start_store(follow) for _ in range(replicas)], [])
    for replica in watched.replicas:
        with owner_of(replica) as client:
            await wait_until(lambda: client.info("replication")["master_link_status"] == "up")
    watched.sentinels = [start_sentinel(seen_at, quorum=2, more=(f"bind-source-addr {FAR}",)) for _ in range(3)]
    await wait_until(lambda: all(each.sees(replicas=replicas, others=2) for each in watched.sentinels), 60)
    return watched


@pytest.mark.parametrize(("replicas", "least"), [(1, 0), (2, 1)])
async def test_servers_find_the_replica_that_sentinels_promote(
    world: World, start_store: StartStore, start_sentinel: StartSentinel, replicas: int, least: int
) -> None:
    with trio.fail_after(180):
        watched = await start_watched(start_store, start_sentinel, replicas, least)
        urls = [await world.serve("--store", watched.url).wait_url() for _ in range(2)]
        world.work(*urls)
        stop = trio.Event()
        async with producing(*urls) as producer, operating(*urls) as operator, trio.open_nursery() as nursery:
            nursery.start_soon(producer.keep_on, "id", stop)
            await world.wait_journal(lambda ran: len(ran) > 100)
            watched.primary.kill()
            killed_at, before = trio.current_time(), len(producer.acknowledged)
            await watched.wait_promoted()
            promoted_at = trio.current_time()
            await wait_until(lambda: len(producer.acknowledged) > before + 1, 60)
            acknowledged_at = trio.current_time()
            await wait_until(lambda: len(producer.acknowledged) > before + 100, 60)
            stop.set()
            await wait_drained(operator)
        lost = producer.acknowledged - {row.id for row in world.journal("end")}
        print(
            f"promoted after {promoted_at - killed_at:.1f} s, acknowledged {acknowledged_at - killed_at:.1f} s, {lost=}"
        )
        assert len(lost) <= 5, "more than writes on its way to the replica"


@pytest.mark.parametrize("waits", [0, 1])
async def test_servers_leave_a_primary_that_only_its_sentinels_have_lost(
    world: World, start_store: StartStore, start_sentinel: StartSentinel, waits: int
) -> None:
    with trio.fail_after(180):
        async with open_proxy(0) as address:
            watched = await start_watched(start_store, start_sentinel, 1 + waits, proxy=address)
            url = await world.serve("--store", watched.url, "--wait-replicas", str(waits)).wait_url()
            stop = trio.Event()
            async with producing(url) as producer, trio.open_nursery() as nursery:
                nursery.start_soon(producer.keep_on, "id", stop)
                await wait_until(lambda: len(producer.acknowledged) > 100)
                address.cut_off(FAR)
                cut_at = trio.current_time()
                new = await watched.wait_promoted()
                promoted_at = trio.current_time()
                with owner_of(new) as client:
                    await wait_until(lambda: any(each["user"] == "fairq" for each in client.client_list()))
                left_at = trio.current_time()
                if waits:
                    before = len(producer.acknowledged)
                    await wait_until(lambda: len(producer.acknowledged) > before + 10, 60)
                stop.set()
            assert left_at - promoted_at < 3.0
            world.work(url)
            async with operating(url) as operator:
                await wait_drained(operator)
            lost = len(producer.acknowledged - {row.id for row in world.journal("end")})
            print(f"promoted after {promoted_at - cut_at:.1f} s, left {left_at - promoted_at:.1f} s later; {lost} lost")
            assert lost == 0 or not waits
