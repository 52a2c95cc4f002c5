"""The load test's own clusters and queues."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import trio
from redis.crc import key_slot

from fairq.store import keys
from fairq.store.dial import Redirected
from fairq.store.opening import open_store
from loadtest.scale import QUEUES, spread_queues
from loadtest.stores import count_errors, running_nodes


def test_each_third_of_the_slots_has_equally_many_queues() -> None:
    queues = spread_queues()
    thirds = Counter(key_slot(keys.queue_prefix(queue).encode()) * 3 // 16_384 for queue in queues)
    assert thirds == {0: QUEUES // 3, 1: QUEUES // 3, 2: QUEUES // 3}
    assert len(set(queues)) == QUEUES


async def test_a_cluster_of_three_has_all_slots_and_counts_what_went_wrong(tmp_path: Path) -> None:
    with trio.fail_after(40):
        async with running_nodes(tmp_path / "nodes", 3, fsync="everysec", is_cluster=True) as nodes:
            async with open_store(nodes[1].address.shown) as store:
                for queue in spread_queues():
                    await store.pause(queue)
                assert len(store.connection.nodes()) == 3
            assert await count_errors(nodes) == {}
            with pytest.raises(Redirected):
                await nodes[0].ask("GET", "foo")  # slot 12182, of the third
            assert await count_errors(nodes) == {"MOVED": 1}
