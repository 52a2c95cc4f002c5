"""A replica takes over behind one address, as Sentinel with a proxy, an operator or a managed store has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis
import trio

from tests import stores
from tests.store.proxy import HOST, open_proxy
from tests.store.waiting import wait_until

from .harness import World, operating, producing, wait_drained

pytestmark = pytest.mark.deep("kills")

StartStore = Callable[..., stores.LocalServer]


@contextmanager
def owner_of(store: stores.LocalServer) -> Iterator[redis.Redis]:
    """A connection that may do all."""
    with stores.connect(stores.of_owner(store.url)) as client:
        yield client


def primary_and_replica(start_store: StartStore) -> tuple[stores.LocalServer, stores.LocalServer]:
    """Two stores, the second of which follows the first."""
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
