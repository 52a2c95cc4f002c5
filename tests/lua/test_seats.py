"""The fair pick: who is served next, and the traps that others fell into."""

from __future__ import annotations

import struct
from collections import Counter

import pytest

from .calls import Queue, writes


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
    counting.call("set_paused", "stuck", 1)
    serve(counting, 100)
    counting.enqueue("new", *ids("new", 100))
    assert abs(serve(counting, 20)["new"] - 10) <= 3


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


def test_too_few_random_values_are_refused(counting: Queue) -> None:
    for n in range(17):
        counting.enqueue(f"t{n}", *ids(f"t{n}", 3))
    counting.claim(17)
    with pytest.raises(Exception, match="FAIRQ bad_request random_values"):
        counting.claim(2, rolled=struct.pack("<1d", 0.1))
