"""What few tasks ask for: priorities inside a tenant's share, dedupe keys."""

from __future__ import annotations

from typing import Any

import pytest

from .calls import LEASE_MS, Queue, writes


def ids(queue: Queue, limit: int = 100) -> list[str]:
    """Claim tasks; returns their ids."""
    return [lease.id for lease in queue.claim(limit)]


def test_the_most_urgent_go_first_and_equals_in_their_order(queue: Queue) -> None:
    for id, priority in [("a50", 50), ("a99", 99), ("a0", 0), ("b0", 0), ("b50", 50), ("a49", 49), ("b99", 99)]:
        queue.enqueue("ada", id, priority=priority)
    assert queue.peek("ada") == ["a0", "b0", "a49", "a50", "b50", "a99", "b99"]
    assert queue.peek("ada", 3) == ["a0", "b0", "a49"]
    assert ids(queue, 3) == ["a0", "b0", "a49"]
    assert ids(queue) == ["a50", "b50", "a99", "b99"]


def test_priority_buys_no_share(queue: Queue) -> None:
    queue.configure(share=1)
    queue.enqueue("ada", *(f"a{n}" for n in range(40)), priority=0)
    queue.enqueue("bob", *(f"b{n}" for n in range(40)), priority=99)
    assert abs(sum(id.startswith("a") for id in ids(queue, 40)) - 20) <= 2


def test_a_task_keeps_its_priority_through_delay_retry_and_release(queue: Queue) -> None:
    queue.enqueue("ada", "plain", "plain2")
    queue.enqueue("ada", "late", delay=10, priority=1)
    queue.advance(10)
    queue.tick()
    lease = queue.claim()[0]
    assert lease.id == "late"
    assert queue.end("release", lease) == "ok"
    assert queue.peek("ada") == ["late", "plain", "plain2"]
    assert queue.end("nack", queue.claim()[0], 0) == "ok"
    assert queue.peek("ada") == ["late", "plain", "plain2"]
    queue.claim()
    queue.advance(LEASE_MS)
    queue.tick()
    assert queue.peek("ada") == ["late", "plain", "plain2"]


def test_an_emptied_priority_leaves_nothing_behind(queue: Queue) -> None:
    queue.enqueue("ada", "a", priority=7)
    queue.enqueue("ada", "b")
    for lease in queue.claim(5):
        queue.end("ack", lease)
    queue.enqueue("ada", "c")
    assert ids(queue) == ["c"]
    keys: list[Any] = queue.client.keys("*")
    left = {key.decode().removeprefix(queue.prefix) for key in keys}
    assert not {name for name in left if name.startswith((":priorities", ":ready", ":task_options"))}


def test_a_second_task_with_the_key_gets_the_first_ones_id(queue: Queue) -> None:
    assert queue.enqueue("ada", "a", key="k") == ["ok"]
    assert queue.enqueue("ada", "b", "c", key="k") == ["duplicate a", "duplicate a"]
    assert queue.enqueue("ada", "a", key="k") == ["duplicate"], "the same call again"
    assert queue.enqueue("bob", "b", key="k") == ["ok"], "keys are the tenant's own"
    assert queue.enqueue("ada", "d", key="other") == ["ok"]
    assert queue.queue_state()["ready"] == 3


def test_in_one_call_the_first_of_a_key_is_taken(queue: Queue) -> None:
    assert queue.enqueue("ada", "a", "b", key="k") == ["ok", "duplicate a"]


def test_a_duplicate_writes_nothing(queue: Queue) -> None:
    queue.enqueue("ada", "a", key="k")
    before = writes(queue)
    queue.enqueue("ada", "b", key="k")
    assert writes(queue) == before


@pytest.mark.parametrize("end", ["ack", "reject", "cancel", "expire"])
def test_a_key_is_free_when_its_task_has_ended(queue: Queue, end: str) -> None:
    queue.enqueue("ada", "a", key="k", expires_in=100)
    if end == "cancel":
        queue.cancel("a")
    elif end == "expire":
        queue.advance(100)
        queue.tick()
    else:
        queue.end(end, queue.claim()[0])
    assert queue.enqueue("ada", "b", key="k") == ["ok"]


@pytest.mark.parametrize("step", ["claim", "nack", "release", "reap"])
def test_a_key_is_held_while_its_task_goes_on(queue: Queue, step: str) -> None:
    queue.enqueue("ada", "a", key="k")
    lease = queue.claim()[0]
    if step == "reap":
        queue.advance(LEASE_MS)
        queue.tick()
    elif step != "claim":
        queue.end(step, lease)
    assert queue.enqueue("ada", "b", key="k") == ["duplicate a"]


def test_a_window_holds_the_key_whatever_becomes_of_the_task(queue: Queue) -> None:
    queue.enqueue("ada", "a", key="k", period=1000)
    queue.end("ack", queue.claim()[0])
    queue.advance(999)
    assert queue.enqueue("ada", "b", key="k") == ["duplicate a"]
    queue.advance(1)
    assert queue.enqueue("ada", "b", key="k") == ["ok"]


def test_a_window_that_is_over_does_not_free_the_next_ones_key(queue: Queue) -> None:
    queue.enqueue("ada", "a", key="k", period=10)
    queue.advance(10)
    queue.enqueue("ada", "b", key="k")
    queue.end("ack", queue.claim()[0])
    assert queue.enqueue("ada", "c", key="k") == ["duplicate b"]


def test_what_nobody_asks_for_costs_nothing(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    assert queue.queue_state()["tasks_with_options"] == 0
    assert not queue.client.exists(queue.key("task_options"))
    queue.enqueue("ada", "b", priority=3, key="k")
    assert queue.queue_state()["tasks_with_options"] == 1
    for lease in queue.claim(2):
        queue.end("ack", lease)
    assert queue.queue_state()["tasks_with_options"] == 0
