"""The load test's own clusters and queues."""

from __future__ import annotations

from collections import Counter

from redis.crc import key_slot

from fairq.store import keys
from loadtest.scale import QUEUES, spread_queues


def test_each_third_of_the_slots_has_equally_many_queues() -> None:
    queues = spread_queues()
    thirds = Counter(key_slot(keys.queue_prefix(queue).encode()) * 3 // 16_384 for queue in queues)
    assert thirds == {0: QUEUES // 3, 1: QUEUES // 3, 2: QUEUES // 3}
    assert len(set(queues)) == QUEUES
