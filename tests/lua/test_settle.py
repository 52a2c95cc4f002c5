"""The verb `settle`: backoff, bounds of what is kept, and the fence of a lease that was taken over."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from .calls import FORMATS, LEASE_MS, Leased, Queue


def leased(queue: Queue) -> Leased:
    """Enqueue a task and lease it."""
    queue.enqueue("ada", "a")
    return queue.claim()[0]


def set_attempts(queue: Queue, id: str, attempt: int, uncounted: int) -> None:
    """Have a leased task be at an attempt, as if so many before it did not count."""
    packed = queue.client.hget(queue.key("runs"), id)
    assert isinstance(packed, bytes)
    at = FORMATS["LEASE"].size - 4  # its last field is `attempt`, and a run goes on with `uncounted_attempts`
    queue.client.hset(queue.key("runs"), id, packed[:at] + struct.pack("<II", attempt, uncounted) + packed[at + 8 :])


@pytest.mark.parametrize("drawn", [0.0, 0.999])
def test_the_backoff_of_a_task_without_a_limit_stays_bounded(queue: Queue, drawn: float) -> None:
    """Also where two to the power of the attempts is no number any more."""
    queue.configure(retry_base_ms=1, retry_cap_ms=5)
    queue.enqueue("ada", "a", max_attempts=0)
    lease = queue.claim()[0]
    set_attempts(queue, "a", 1000, 0)
    for _ in range(50):
        told = queue.call("settle", "nack", "a", lease.lease, "", "", "", random_values=struct.pack("<d", drawn))
        assert told == [b"ok"]
        assert 1 <= queue.tasks("a")[0].at - queue.now <= 5
        queue.advance(5)
        queue.tick()
        lease = queue.claim()[0]
    assert lease.attempt == 1050


def test_a_task_waits_by_its_own_base_and_cap_and_else_by_the_queues(queue: Queue) -> None:
    queue.configure(retry_base_ms=8, retry_cap_ms=100)
    cases: list[tuple[str, dict[str, Any], list[int]]] = [
        ("queues", {}, [8, 16, 32, 64, 100, 100]),
        ("base", {"retry_base": 20}, [20, 40, 80, 100]),
        ("cap", {"retry_cap": 30}, [8, 16, 30, 30]),
        ("both", {"retry_base": 1000, "retry_cap": 5}, [5, 5]),
    ]
    for id, asked, waits in cases:
        queue.enqueue("ada", id, **asked)
        for longest in waits:
            lease = queue.claim()[0]
            queue.call("settle", "nack", id, lease.lease, "", "", "", random_values=struct.pack("<d", 0.999999))
            assert queue.tasks(id)[0].at - queue.now == longest
            queue.advance(longest)
            queue.tick()
        queue.settle(("reject", id, queue.claim()[0].lease))


def test_a_task_that_loses_its_leases_kills_no_worker_after_the_other(queue: Queue) -> None:
    """The first lost lease makes it ready at once; from then on it waits, as long as after a failure less."""
    queue.configure(retry_base_ms=10, retry_cap_ms=25)
    queue.enqueue("ada", "a", max_attempts=6)
    for wait in (0, 10, 20, 25, 25):
        lease = queue.claim()[0]
        assert queue.settle(("reap", "a", lease.lease)) == ["ok"]
        state = queue.tasks("a")[0]
        assert (state.state, wait and state.at - queue.now) == ("delayed" if wait else "ready", wait)
        queue.advance(wait)
        queue.tick()
    assert queue.settle(("reap", "a", queue.claim()[0].lease)) == ["ok"]
    assert queue.dead()[0].reason == "lease_lost"


def test_an_attempt_that_does_not_count_makes_no_lost_lease_wait(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    for action in ("release", "release", "reap"):
        assert queue.settle((action, "a", queue.claim()[0].lease)) == ["ok"]
    assert queue.tasks("a")[0].state == "ready"


def test_a_traceback_is_kept_up_to_8_kib(queue: Queue) -> None:
    queue.end("reject", leased(queue), "", "no", "x" * 8192 + "y")
    assert queue.dead()[0].traceback == "x" * 8192


def test_an_endless_error_is_cut(queue: Queue) -> None:
    queue.end("reject", leased(queue), "", "x" * 70_000)
    assert queue.dead()[0].error == "x" * 2048


def test_two_hundred_and_fifty_thousand_releases_do_not_wrap_the_attempt(queue: Queue) -> None:
    """Attempts are 32 bits wide: a worker that gives everything back makes none count again."""
    leased(queue)
    set_attempts(queue, "a", 250_000, 249_999)
    queue.settle(("release", "a", 1))
    lease = queue.claim()[0]
    assert (lease.attempt, lease.max_attempts) == (250_001, 250_025)


def test_a_connection_that_lost_a_lease_to_another_does_not_give_it_back(queue: Queue) -> None:
    queue.enqueue("t", "a")
    (lease,) = queue.claim(1)
    number = lease.lease
    assert queue.settle(("take", "a", number)) == [f"ok 1 {LEASE_MS}"]
    for action in ("release", "reap", "extend", "ack"):
        assert queue.settle((action, "a", f"{number}/0")) == ["stale"]
    assert queue.settle(("extend", "a", number), ("extend", "a", f"{number}/1")) == ["ok", "ok"]
    assert queue.settle(("take", "a", f"{number}/0"), ("take", "a", f"{number}/1")) == ["stale", f"ok 2 {LEASE_MS}"]
    assert queue.settle(("reap", "a", f"{number}/1"), ("reap", "a", f"{number}/2")) == ["stale", "ok"]
    (lease,) = queue.claim(1)
    assert queue.settle(("release", "a", f"{lease.lease}/0")) == ["ok"]  # the next lease begins anew


def test_a_lease_is_extended_by_the_longest_time_that_its_worker_knows(queue: Queue) -> None:
    """A worker learns of a longer lease_ms with its next extension, and of a shorter one with its next lease."""
    lease = leased(queue)
    for lease_ms in (2 * LEASE_MS, 1000):
        queue.configure(lease_ms=lease_ms)
        queue.end("extend", lease)
        assert queue.tasks("a")[0].at == queue.now + 2 * LEASE_MS


def test_the_count_of_how_often_a_lease_was_taken_goes_round(queue: Queue) -> None:
    queue.enqueue("t", "a")
    (lease,) = queue.claim(1)
    outcomes = queue.settle(*[("take", "a", lease.lease)] * 256)
    assert [outcomes[0], *outcomes[253:]] == [f"ok {times} {LEASE_MS}" for times in (1, 254, 255, 1)]


def test_what_is_no_number_of_a_lease_opens_none(queue: Queue) -> None:
    queue.enqueue("t", "a")
    queue.claim(1)
    for fence in ("", "x", "1/", "/0", "1/x", "1.5/0", "-1/0", "1/0/0"):
        assert queue.settle(("ack", "a", fence)) == ["stale"], fence


def test_a_tenant_is_seated_for_what_comes_back_in_the_call_that_ends_another_of_its_tasks(queue: Queue) -> None:
    """The first settlement leaves its account packed, the second opens it."""
    queue.enqueue("ada", "a", "b")
    one, other = queue.claim(2)
    queue.settle(("ack", one.id, one.lease), ("release", other.id, other.lease, "", ""))
    assert [each.id for each in queue.claim(2)] == [other.id]


def test_a_tenant_below_its_guarantee_is_served_next_as_soon_as_a_lease_ends(queue: Queue) -> None:
    queue.enqueue("ada", *(f"a{n}" for n in range(9)))
    queue.set_limits("ada", guaranteed=2)
    mine = queue.claim(3)
    queue.enqueue("bob", *(f"b{n}" for n in range(9)))
    queue.advance(1)
    queue.settle(*(("ack", each.id, each.lease) for each in mine[:2]))
    assert queue.client.lrange(queue.key("wake"), 0, -1)[-1] == struct.pack("<I", 1)


def test_a_tenant_with_nothing_running_is_noted_for_the_reserve(queue: Queue) -> None:
    queue.configure(reserve=50)
    queue.enqueue("ada", "a", "b")
    lease = queue.claim(1)[0]
    queue.advance(1)
    queue.settle(("ack", lease.id, lease.lease))
    assert queue.client.zrange(queue.key("idle"), 0, -1) == [struct.pack("<I", 1)]


def test_a_lease_that_ends_after_the_unit_of_service_has_changed_is_charged_from_then_on(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b")
    lease = queue.claim(1)[0]
    queue.advance(1000)
    queue.configure(share=1)
    queue.configure(share=0)
    queue.advance(7)
    queue.settle(("ack", lease.id, lease.lease))
    packed = queue.client.hget(queue.key("accounts"), struct.pack("<I", 1))
    assert isinstance(packed, bytes)
    account, _ = FORMATS["ACCOUNT"].unpack(packed)
    assert account["base"] == 7 / account["weight"]
    assert FORMATS["BOOKS"].unpack(account["books"])[0]["delivered"] == 7
