"""Lease numbers: no lease of a queue has one that another had before, whatever became of ids, clocks and stores."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .calls import LEASE_MS, Leased, Queue, leased_in, snapshot

SINCE = 1_735_689_600_000  # numbers follow the time since then
ACTIONS = ["ack", "ack_with_result", "nack", "reject", "release", "reap", "extend", "take"]
PERIOD_MS = 60_000  # ids that are done are remembered for one to two of these


def reject_and_purge(queue: Queue, lease: Leased) -> None:
    """End the lease and delete the dead letter."""
    queue.end("reject", lease)
    queue.call("purge", lease.id)


def lose_and_purge(queue: Queue, lease: Leased) -> None:
    """Let the last lease run out and delete the dead letter."""
    queue.advance(LEASE_MS)
    queue.tick()
    queue.call("purge", lease.id)


def exhaust_and_trim(queue: Queue, lease: Leased) -> None:
    """Have dead letters go at once."""
    queue.configure(dead_keep=0)
    queue.end("nack", lease)
    queue.tick()


def cancel_and_reap(queue: Queue, lease: Leased) -> None:
    """Cancel a task whose worker is never heard of again."""
    queue.cancel(lease.id)
    queue.advance(LEASE_MS)
    queue.tick()
    queue.advance(2 * PERIOD_MS)
    queue.tick()


def cancel_and_release(queue: Queue, lease: Leased) -> None:
    """Cancel a task whose worker gives it back."""
    queue.cancel(lease.id)
    queue.end("release", lease)
    queue.advance(2 * PERIOD_MS)
    queue.tick()


def finish(queue: Queue, lease: Leased) -> None:
    """Finish a task."""
    queue.end("ack", lease)
    queue.advance(2 * PERIOD_MS)
    queue.tick()


ENDS = [reject_and_purge, lose_and_purge, exhaust_and_trim, cancel_and_reap, cancel_and_release, finish]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_a_lease_does_not_fit_another_task_of_its_id(queue: Queue, end: Callable[[Queue, Leased], None]) -> None:
    queue.enqueue("ada", "a", max_attempts=1)
    (old,) = queue.claim()
    end(queue, old)
    assert queue.enqueue("ada", "a") == ["ok"]
    before = snapshot(queue)
    assert {queue.end(action, old) for action in ACTIONS} == {"gone"}
    assert snapshot(queue) == before
    (new,) = queue.claim()
    assert (new.id, new.attempt) == (old.id, old.attempt)
    before = snapshot(queue)
    assert {queue.end(action, old) for action in ACTIONS} == {"stale"}
    assert snapshot(queue) == before
    assert queue.state("a") == "leased"
    assert queue.end("ack", new) == "ok"
    assert {queue.end(action, old) for action in ACTIONS} == {"stale"}


def test_a_number_that_a_failover_has_lost_is_not_given_again(queue: Queue) -> None:
    """The replica that is the primary now had not heard of the last claims; time has gone on."""
    queue.now = SINCE + 10**11
    queue.enqueue("ada", *(f"a{n}" for n in range(40)))
    queue.claim()
    replica = snapshot(queue)
    lost = [queue.claim()[0] for _ in range(32)]  # as many as a ms has numbers
    queue.client.flushall()
    for key, value in replica.items():
        assert value is not None
        queue.client.restore(key, 0, value)
    queue.advance(2)
    again = queue.claim(39)
    assert {lease.id for lease in again} > {lease.id for lease in lost}
    assert again[0].lease > max(lease.lease for lease in lost)
    assert {queue.end("ack", lease) for lease in lost} == {"stale"}
    assert queue.queue_state()["leased"] == 40


def test_of_two_claims_of_a_name_the_later_one_is_told_again(queue: Queue) -> None:
    """The first was carried out after all, when the second had been; no worker knows of its leases, so they run out."""
    queue.enqueue("ada", *"abcd")
    queue.claim(2, worker="s/1")
    queue.advance(1)
    second = queue.claim(2, worker="s/1")
    assert sorted(leased_in(queue.call("claim", "s/1", 2, "again"))) == sorted(second)
