"""Replacing: a task that holds a dedupe key and waits takes what a new one asks for, in one atomic call."""

from __future__ import annotations

from typing import Any

import pytest

from .calls import LEASE_MS, Queue, counted, options, refused, unpack, words
from .keyspace import Keyspace

LONG = b"x" * 5000  # stands apart


def replace(queue: Queue, id: str, payload: bytes = b"new", **asked: Any) -> str:
    """Enqueue a task that replaces the holder of the key; returns its outcome."""
    return queue.enqueue("ada", id, payload=payload, key="k", replace=1, **asked)[0]


def payload_of(queue: Queue, id: str) -> bytes:
    """Read the payload of a waiting task that is ready."""
    reply = queue.call("peek", "ada", 100)
    record: bytes = dict(zip(words(reply[::2]), reply[1::2], strict=True))[id]
    return record[unpack("HEADER", record).end :]


@pytest.mark.parametrize("place", ["ready", "delayed", "pending", "grouped", "retried"])
def test_a_waiting_task_takes_all_but_id_and_batch(queue: Queue, place: str) -> None:
    queue.open_batch("b", max_running=1)
    of_place: dict[str, dict[str, Any]] = {
        "delayed": {"delay": 100}, "pending": {"batch": "b"}, "grouped": {"group": "g"},
    }  # fmt: skip
    asked = of_place.get(place, {})
    if place == "pending":
        queue.enqueue("ada", "other", batch="b")
    queue.enqueue("ada", "a", key="k", expires_in=5000, max_attempts=3, payload=LONG, **asked)
    if place == "retried":
        for _ in range(2):
            queue.end("nack", queue.claim(1)[0], 0, "bad")
    assert replace(queue, "new", delay=50, expires_in=60, priority=7, max_attempts=2) == "replaced a"
    Keyspace(queue).check()
    assert (queue.state("a"), queue.state("new")) == ("delayed", "unknown")
    queue.advance(50)
    queue.tick()
    assert queue.state("a") == ("pending" if place == "pending" else "ready")
    if place != "pending":
        assert payload_of(queue, "a") == b"new"
        leases = [lease for lease in queue.claim(5) if lease.id == "a"]
        assert len(leases) == 1
        assert leases[0].max_attempts - leases[0].attempt == 1  # a fresh set
    queue.advance(10)
    queue.tick()
    assert queue.state("a") == ("dead" if place == "pending" else "leased")


def test_a_running_or_ended_task_takes_nothing(queue: Queue) -> None:
    queue.enqueue("ada", "a", key="k", period=10_000)
    (lease,) = queue.claim(1)
    assert replace(queue, "n1") == "duplicate a"
    queue.end("ack", lease)
    assert replace(queue, "n2") == "duplicate a"  # the key is held for a while
    queue.advance(10_000)
    assert replace(queue, "n3") == "ok"
    queue.end("reject", queue.claim(1)[0])
    assert replace(queue, "n4") == "ok"  # a dead one has no key any more


def test_another_task_under_the_id_of_the_holder_takes_nothing(queue: Queue) -> None:
    """A key that is held for a period outlives its task, and an id may be used again."""
    for asked in ({}, {"key": "other"}):
        queue.enqueue("ada", "a", key="k", period=3_600_000)
        queue.end("ack", queue.claim(1)[0])
        queue.advance(300_000)
        queue.tick()
        assert queue.enqueue("ada", "a", payload=b"precious", **asked) == ["ok"]
        assert replace(queue, "b") == "duplicate a"
        assert payload_of(queue, "a") == b"precious"
        Keyspace(queue).check()
        queue.end("ack", queue.claim(1)[0])
        queue.advance(4_000_000)
        queue.tick()
        assert queue.queue_state()["tasks_with_options"] == 0


def test_a_repeated_call_says_the_same_and_changes_nothing(queue: Queue) -> None:
    queue.enqueue("ada", "a", key="k")
    assert replace(queue, "n1", payload=b"one") == "replaced a"
    assert replace(queue, "n2", payload=b"two") == "replaced a"
    assert replace(queue, "n1", payload=b"one") == "replaced a"  # its reply was lost
    assert payload_of(queue, "a") == b"two"
    (lease,) = queue.claim(1)
    assert queue.end("ack", lease) == "ok"
    assert replace(queue, "n2", payload=b"two") == "replaced a", "it ran: not once more"
    assert queue.queue_state()["ready"] == 0
    for _ in range(3):
        queue.advance(60_000)
        queue.tick()
    assert replace(queue, "n2", payload=b"two") == "ok"  # as of every id that ended long ago


def test_of_one_call_the_first_of_a_key_replaces(queue: Queue) -> None:
    queue.enqueue("ada", "a", key="k")
    packed = options(key="k", replace=1)
    parts = [part for n in range(3) for part in (f"n{n}", packed, b"%d" % n)]
    assert words(queue.call("enqueue", "ada", *parts)) == ["replaced a", "duplicate a", "duplicate a"]
    assert payload_of(queue, "a") == b"0"


def test_what_is_kept_is_counted(queue: Queue) -> None:
    queue.enqueue("ada", "a", key="k", payload=b"12345")
    assert queue.tenant("ada").bytes == counted("a", 5, key="k")
    replace(queue, "n1", payload=LONG)
    assert queue.tenant("ada").bytes == counted("a", 5000, key="k")
    replace(queue, "n2", payload=b"1")
    assert queue.tenant("ada").bytes == counted("a", 1, key="k")
    assert queue.queue_state()["enqueued"] == 1
    queue.enqueue("ada", "full", delay=5)
    queue.set_limits("ada", stored_bytes=counted("full") + counted("a", 100, key="k"), delayed=1, queued=1)
    refused(queue, "quota_exceeded stored_bytes", "enqueue", "ada", "n3", options(key="k", replace=1), b"x" * 101)
    assert replace(queue, "n4", payload=b"22") == "replaced a"  # there is no more of them than before
    Keyspace(queue).check()


def test_more_may_not_be_delayed_than_the_limit_allows(queue: Queue) -> None:
    queue.enqueue("ada", "a", key="k")
    queue.enqueue("ada", "late", delay=100)
    queue.set_limits("ada", delayed=1)
    refused(queue, "quota_exceeded delayed", "enqueue", "ada", "n1", options(key="k", replace=1, delay=9), b"1")
    assert replace(queue, "n2") == "replaced a"


def test_a_lost_lease_does_not_matter_to_the_new_content(queue: Queue) -> None:
    queue.enqueue("ada", "a", key="k")
    (lost,) = queue.claim(1)
    queue.advance(LEASE_MS)
    queue.tick()
    assert replace(queue, "n1") == "replaced a"
    assert queue.end("ack", lost) == "stale"
    assert payload_of(queue, "a") == b"new"
