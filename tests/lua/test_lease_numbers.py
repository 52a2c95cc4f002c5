"""Lease numbers: no lease of a queue has one that another had before, whatever became of ids, clocks and stores."""

from __future__ import annotations

from .calls import Queue, leased_in, snapshot

SINCE = 1_735_689_600_000  # numbers follow the time since then


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


def test_of_two_claims_of_a_name_the_later_one_is_repeated(queue: Queue) -> None:
    """The first was carried out after all, when the second had been; no worker knows of its leases, so they run out."""
    queue.enqueue("ada", *"abcd")
    queue.claim(2, worker="s/1")
    queue.advance(1)
    second = queue.claim(2, worker="s/1")
    assert sorted(leased_in(queue.call("claim", "s/1", 2, "again"))) == sorted(second)
