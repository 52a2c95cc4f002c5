"""What a tenant's tasks that expired cost others: nothing."""

from __future__ import annotations

from collections import Counter

import pytest

from .calls import Queue


def honest(queue: Queue, count: int = 5) -> None:
    """Give tenants tasks."""
    for n in range(count):
        queue.enqueue(f"t{n}", *(f"t{n}/{k}" for k in range(100)))


def served(queue: Queue, claims: int, limit: int) -> Counter[str]:
    """Count by tenant what so many claims lease; tasks take 50 ms."""
    found = Counter[str]()
    for _ in range(claims):
        leases = queue.claim(limit)
        queue.advance(50)
        if leases:
            queue.settle(*(("ack", lease.id, lease.lease) for lease in leases))
        found.update(lease.id.partition("/")[0] for lease in leases)
    return found


@pytest.mark.parametrize("share", [0, 1])
def test_late_tasks_of_one_tenant_leave_no_slot_empty(queue: Queue, share: int) -> None:
    queue.configure(share=share)
    honest(queue)
    served(queue, 4, 10)
    queue.enqueue("flood", *(f"flood/{n}" for n in range(400)), expires_in=20)
    queue.advance(20)
    counts = served(queue, 10, 10)
    assert counts.total() == 100
    assert queue.tenant("flood").ready > 200, "claims bury few: ticks do that"
    assert max(counts.values()) - min(counts.values()) <= 3


@pytest.mark.parametrize("share", [0, 1])
def test_who_offers_late_tasks_saves_up_nothing(queue: Queue, share: int) -> None:
    queue.configure(share=share)
    honest(queue)
    for n in range(25):
        queue.enqueue("flood", *(f"flood/{n}-{k}" for k in range(40)), expires_in=20)
        queue.advance(20)
        served(queue, 1, 10)
    queue.enqueue("flood", *(f"flood/live{n}" for n in range(100)))
    while queue.tick(500).expired:
        pass
    assert served(queue, 6, 10)["flood"] == pytest.approx(10, abs=2)


def test_a_late_task_behind_a_full_reply_takes_none_that_went_back(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b", "c", payload=b"x" * 600_000)
    queue.enqueue("ada", "late", expires_in=20)
    queue.advance(20)
    assert [[lease.id for lease in queue.claim(4)] for _ in range(2)] == [["a", "b"], ["c"]]


def test_late_tasks_of_many_tenants_leave_the_others_their_part(queue: Queue) -> None:
    honest(queue)
    for n in range(50):
        queue.enqueue(f"late{n}", *(f"late{n}/{k}" for k in range(20)), expires_in=20)
    queue.advance(20)
    assert served(queue, 30, 4).total() >= 60
