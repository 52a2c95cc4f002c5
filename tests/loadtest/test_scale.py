"""The load test's own clusters and queues."""

from __future__ import annotations

from collections import Counter

import pytest
from redis.crc import key_slot

from fairq.store import keys
from loadtest.figures import Record
from loadtest.partitions import worst_lag
from loadtest.scale import QUEUES, spread_queues


def test_each_third_of_the_slots_has_equally_many_queues() -> None:
    queues = spread_queues()
    thirds = Counter(key_slot(keys.queue_prefix(queue).encode()) * 3 // 16_384 for queue in queues)
    assert thirds == {0: QUEUES // 3, 1: QUEUES // 3, 2: QUEUES // 3}
    assert len(set(queues)) == QUEUES


def test_the_worst_lag_is_that_of_the_tenant_furthest_from_its_due() -> None:
    weights = {"a": 1.0, "b": 3.0}
    fair = [Record(f"a{n}", "a", 0, n * 100, 100) for n in range(10)]
    fair += [Record(f"b{n}{i}", "b", 0, n * 100, 100) for n in range(10) for i in range(3)]
    assert worst_lag([*fair, Record("q", "quiet", 0, 0, 900)], weights, 0, 1_000) == 0
    late = [Record(f"a{n}", "a", 0, 500 + n * 100, 100) for n in range(10)]  # five tasks of 100 ms behind at 0.5 s
    assert worst_lag([*late, *fair[10:]], weights, 0, 1_000) == pytest.approx(3.75)
