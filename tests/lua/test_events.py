"""A tenant's feed: how much is kept of an event, and which servers learn that there are new ones."""

from __future__ import annotations

from .calls import Listener, Queue, writes


def test_the_end_of_a_plain_task_writes_nothing_for_the_feed(queue: Queue) -> None:
    queue.bury("ada", "first")
    counts = []
    for asked in (0, 1):
        queue.enqueue("ada", f"task-{asked}", events=asked)
        (lease,) = queue.claim()
        before = writes(queue)
        queue.end("ack", lease)
        counts.append(writes(queue) - before)
    assert counts[1] == counts[0] + 2, "the event, and what the task asked for is forgotten"


def test_a_long_error_is_cut(queue: Queue) -> None:
    queue.enqueue("ada", "a", events=1)
    queue.end("nack", queue.claim()[0], 0, "é" * 2000)
    assert queue.events().events[0].detail == "é" * 128


def test_new_events_are_announced_once_a_call_for_each_tenant(queue: Queue) -> None:
    with Listener(queue) as listener:
        queue.enqueue("ada", "a", "b", events=1)
        queue.enqueue("bob", "c", events=1)
        queue.enqueue("cyd", "plain")
        queue.settle(*(("ack", lease.id, 1) for lease in queue.claim(9)))
        assert sorted(listener.heard()) == [b"event ada", b"event bob"]
