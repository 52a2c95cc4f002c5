"""The fair pick: who is served next, and the traps that others fell into."""

from __future__ import annotations

import struct
from collections import Counter

import pytest
import redis

from .calls import Queue, load_variant, writes
from .machine import FEW_VARIANT


def ids(tenant: str, count: int, first: int = 0) -> list[str]:
    """Name `count` tasks after their tenant."""
    return [f"{tenant}-{n}" for n in range(first, first + count)]


def serve(queue: Queue, count: int, batch: int = 10) -> Counter[str]:
    """Claim and acknowledge `count` tasks; count them by tenant."""
    served: Counter[str] = Counter()
    while served.total() < count:
        leases = queue.claim(min(batch, count - served.total()))
        assert leases, "work is stranded"
        served.update(lease.id.split("-")[0] for lease in leases)
        queue.settle(*(("ack", lease.id, lease.lease) for lease in leases))
    return served


@pytest.fixture
def counting(queue: Queue) -> Queue:
    """A queue where every task costs one."""
    queue.configure(share=1)
    return queue


def test_equal_tenants_get_equal_shares_however_deep_their_backlogs(counting: Queue) -> None:
    counting.enqueue("flood", *ids("flood", 400))
    counting.enqueue("small", *ids("small", 100))
    served = serve(counting, 100)
    assert abs(served["flood"] - served["small"]) <= 4


def test_idling_banks_no_credit(counting: Queue) -> None:
    counting.enqueue("idle", "idle-0")
    counting.enqueue("busy", *ids("busy", 400))
    serve(counting, 200)
    counting.enqueue("idle", *ids("idle", 100, 1))
    assert abs(serve(counting, 40)["idle"] - 20) <= 4


def test_coming_back_sheds_no_debt(counting: Queue) -> None:
    """The forgotten tag: a tenant that trickles gets its share, not a task for each of the other's."""
    counting.call("set_weight", "heavy", 9000)
    counting.enqueue("heavy", *ids("heavy", 500))
    served: Counter[str] = Counter()
    for turn in range(300):
        if not (found := counting.tenants("trickle")) or found["trickle"].ready == 0:
            counting.enqueue("trickle", f"trickle-{turn}")
        served += serve(counting, 1)
    assert 25 <= served["trickle"] <= 36


def test_a_paused_tenant_does_not_pin_the_clock(counting: Queue) -> None:
    """The pinned floor: newcomers would be served alone until they reach a tenant that cannot be served."""
    counting.enqueue("stuck", *ids("stuck", 10))
    counting.enqueue("old", *ids("old", 300))
    counting.call("pause", "stuck")
    serve(counting, 100)
    counting.enqueue("new", *ids("new", 100))
    assert abs(serve(counting, 20)["new"] - 10) <= 3


def test_a_resumed_tenant_does_not_catch_up(counting: Queue) -> None:
    counting.enqueue("stuck", *ids("stuck", 200))
    counting.enqueue("old", *ids("old", 400))
    counting.call("pause", "stuck")
    serve(counting, 150)
    counting.call("resume", "stuck")
    assert abs(serve(counting, 40)["stuck"] - 20) <= 4


def test_a_stream_of_newcomers_does_not_starve_a_backlog(counting: Queue) -> None:
    counting.enqueue("flood", *ids("flood", 400))
    served: Counter[str] = Counter()
    for turn in range(200):
        counting.enqueue(f"fresh{turn}", f"fresh{turn}-0", f"fresh{turn}-1")
        served += serve(counting, 2, batch=1)
    backlogged = sum(1 for share in counting.tenants().values() if share.ready)
    share = counting.tenant("flood")
    assert share.entitled - share.delivered <= 2, (share, backlogged)
    assert served["flood"] >= 5


def test_an_idle_claim_and_an_idle_tick_write_nothing(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    queue.enqueue("bob", "b", delay=10_000)
    queue.claim(2)
    before = writes(queue)
    for _ in range(3):
        queue.advance(100)
        assert queue.claim(5) == []
        assert queue.tick().promoted == 0
    assert writes(queue) == before


def test_the_probe_falls_where_the_random_values_say(redis_client: redis.Redis) -> None:
    """Slots are as long as the top of the class: weight 1000 fills 1000 of 1024, and what lies beyond is a miss."""
    load_variant(redis_client, "draws", FEW_VARIANT)
    counting = Queue(redis_client, version="draws")
    counting.configure(share=1)
    for name in ("ada", "bob"):
        counting.enqueue(name, *ids(name, 4))
    assert [lease.id for lease in counting.claim(2)] == ["ada-0", "bob-0"]  # by the wake list
    miss, ada, bob = 1010 / 2048, 0.1, 0.9
    # two draws, and the cursor looks at bob: of equals the first one drawn is served
    assert [lease.id for lease in counting.claim(1, rolled=struct.pack("<4d", miss, ada, bob, bob))] == ["ada-1"]
    # bob has had less now: whether it is drawn, or met by the cursor, which stands at ada
    assert [lease.id for lease in counting.claim(1, rolled=struct.pack("<4d", ada, bob, ada, ada))] == ["bob-1"]
    # ada twice; the cursor is at bob, of equals the drawn one is served
    assert [lease.id for lease in counting.claim(1, rolled=struct.pack("<4d", ada, ada, bob, bob))] == ["ada-2"]
    # bob has had less, but no probe falls on it, the cursor is at ada, and ada is only half a task ahead of the clock
    assert [lease.id for lease in counting.claim(1, rolled=struct.pack("<4d", ada, ada, ada, ada))] == ["ada-3"]


def test_of_few_tenants_the_one_that_had_least_is_served(counting: Queue) -> None:
    names = [f"t{n}" for n in range(16)]
    for name in names:
        counting.enqueue(name, *ids(name, 3))
    assert sorted(lease.id for lease in counting.claim(16)) == sorted(f"{name}-0" for name in names)
    assert sorted(lease.id for lease in counting.claim(16)) == sorted(f"{name}-1" for name in names)


def test_too_few_random_values_are_refused(counting: Queue) -> None:
    for n in range(17):
        counting.enqueue(f"t{n}", *ids(f"t{n}", 3))
    counting.claim(17)
    with pytest.raises(Exception, match="FAIRQ bad_request random_values"):
        counting.claim(2, rolled=struct.pack("<1d", 0.1))
