"""Replacing: a task takes the place of the waiting one that holds its dedupe key, which is cancelled."""

from __future__ import annotations

from typing import Any

import pytest

from .calls import LEASE_MS, Queue, counted, options, refused, words
from .keyspace import Keyspace

LONG = b"x" * 5000  # stands apart


def replace(queue: Queue, id: str, payload: bytes = b"new", **asked: Any) -> str:
    """Enqueue a task that replaces the holder of the key; returns its outcome."""
    return queue.enqueue("ada", id, payload=payload, key="k", replace=1, **asked)[0]


@pytest.mark.parametrize("place", ["ready", "delayed", "grouped", "retried"])
def test_a_waiting_task_is_cancelled_wherever_it_waits(queue: Queue, place: str) -> None:
    of_place: dict[str, dict[str, Any]] = {"delayed": {"delay": 100}, "grouped": {"group": "g"}}
    asked = of_place.get(place, {})
    queue.enqueue("ada", "a", key="k", expires_in=5000, payload=LONG, events=1, **asked)
    if place == "retried":
        queue.end("nack", queue.claim(1)[0], 0, "bad")
    assert replace(queue, "new", delay=50, max_attempts=2) == "replaced"
    Keyspace(queue).check()
    assert (queue.state("a"), queue.state("new")) == ("cancelled", "delayed")
    assert queue.events("ada").events[-1].event == "cancelled"
    queue.advance(50)
    queue.tick()
    (lease,) = queue.claim(5)
    assert (lease.id, lease.max_attempts) == ("new", 2)


def test_one_that_runs_has_ended_or_is_in_a_batch_stays(queue: Queue) -> None:
    queue.enqueue("ada", "a", key="k", period=10_000)
    (lease,) = queue.claim(1)
    assert replace(queue, "n1") == "duplicate a"
    queue.end("ack", lease)
    assert replace(queue, "n2") == "duplicate a"  # the key is held for a while
    queue.advance(10_000)
    assert replace(queue, "n3") == "ok"
    queue.end("reject", queue.claim(1)[0])
    queue.open_batch("b")
    assert queue.enqueue("ada", "n4", key="k", batch="b") == ["ok"]  # a dead one has no key any more
    assert replace(queue, "n5") == "duplicate n4"
    assert queue.state("n4") == "ready"


def test_another_task_under_the_id_of_the_holder_stays(queue: Queue) -> None:
    """A key that is held for a period outlives its task, and an id may be used again."""
    for asked in ({}, {"key": "other"}):
        queue.enqueue("ada", "a", key="k", period=3_600_000)
        queue.end("ack", queue.claim(1)[0])
        queue.advance(300_000)
        queue.tick()
        assert queue.enqueue("ada", "a", payload=b"precious", **asked) == ["ok"]
        assert replace(queue, "b") == "duplicate a"
        assert queue.state("a") == "ready"
        Keyspace(queue).check()
        queue.end("ack", queue.claim(1)[0])
        queue.advance(4_000_000)
        queue.tick()
        assert queue.queue_state()["tasks_with_options"] == 0


def test_a_repeated_call_changes_nothing(queue: Queue) -> None:
    queue.enqueue("ada", "a", key="k")
    assert replace(queue, "n1") == "replaced"
    assert replace(queue, "n2") == "replaced"
    assert replace(queue, "n1") == "duplicate"  # its reply was lost
    assert (queue.state("n1"), queue.state("n2")) == ("cancelled", "ready")
    assert queue.end("ack", queue.claim(1)[0]) == "ok"
    assert replace(queue, "n2") == "duplicate", "it ran: not once more"
    assert queue.queue_state()["ready"] == 0


def test_of_one_call_the_first_of_a_key_replaces(queue: Queue) -> None:
    queue.enqueue("ada", "a", key="k")
    packed = options(key="k", replace=1)
    parts = [part for n in range(3) for part in (f"n{n}", packed, b"%d" % n)]
    assert words(queue.call("enqueue", "ada", *parts)) == ["replaced", "duplicate n0", "duplicate n0"]


def test_the_new_task_takes_the_room_that_the_other_leaves(queue: Queue) -> None:
    queue.enqueue("ada", "a", key="k", payload=b"12345")
    replace(queue, "n1", payload=LONG)
    assert queue.tenant("ada").bytes == counted("n1", 5000, key="k")
    replace(queue, "n2", payload=b"1", delay=9)
    assert queue.tenant("ada").bytes == counted("n2", 1, key="k")
    queue.set_limits("ada", stored_bytes=counted("n3", 100, key="k"), delayed=1, queued=1)
    refused(queue, "quota_exceeded stored_bytes", "enqueue", "ada", "n3", options(key="k", replace=1), b"x" * 101)
    assert queue.state("n2") == "delayed"
    assert replace(queue, "n4", payload=b"x" * 100, delay=5) == "replaced"  # there is no more of them than before
    Keyspace(queue).check()


def test_more_may_not_be_delayed_than_the_limit_allows(queue: Queue) -> None:
    queue.enqueue("ada", "a", key="k")
    queue.enqueue("ada", "late", delay=100)
    queue.set_limits("ada", delayed=1)
    refused(queue, "quota_exceeded delayed", "enqueue", "ada", "n1", options(key="k", replace=1, delay=9), b"1")
    assert replace(queue, "n2") == "replaced"


def test_a_lost_lease_of_the_other_does_not_matter(queue: Queue) -> None:
    queue.enqueue("ada", "a", key="k")
    (lost,) = queue.claim(1)
    queue.advance(LEASE_MS)
    queue.tick()
    assert replace(queue, "n1") == "replaced"
    assert queue.end("ack", lost) == "stale"
    assert queue.state("n1") == "ready"
