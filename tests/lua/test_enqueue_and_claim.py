"""One call that enqueues and claims leaves what two calls leave; the state machine has the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from .calls import Listener, Queue, leased_in, options, refused, words
from .joined_walk import JoinedWalk
from .keyspace import unpack_queue
from .machine import QueueMachine

STEPS = 60
READS: dict[bytes | str, Callable[[redis.Redis, bytes], Any]] = {
    b"string": lambda client, key: client.get(key),
    b"hash": lambda client, key: client.hgetall(key),
    b"list": lambda client, key: client.lrange(key, 0, -1),
    b"zset": lambda client, key: client.zrange(key, 0, -1, withscores=True),
    b"stream": lambda client, key: client.xrange(key),
}


def values(queue: Queue) -> dict[bytes, Any]:
    """Read all keys; the order of the classes means nothing, nor does what is behind their last slots."""
    client, at = queue.client, queue.key("queue").encode()
    found = {key: READS[client.type(key)](client, key) for key in client.scan_iter() if b":class:" not in key}
    return {**found, at: vars(unpack_queue(found.get(at)))}


def states(client: redis.Redis, seed: int, *, joins: bool) -> list[dict[bytes, Any]]:
    """Take a walk; returns what all keys hold after each step."""
    walk = JoinedWalk(type("JoinedMachine", (QueueMachine,), {"client": client, "joins": joins})(), seed)
    walk.compares = False
    found = []
    for _ in range(STEPS):
        walk.step()
        found.append(values(walk.machine.queue))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_one_call_leaves_what_two_leave(redis_client: redis.Redis, seed: int) -> None:
    assert states(redis_client, seed, joins=True) == states(redis_client, seed, joins=False)


def joined(queue: Queue, *ids: str, limit: int, **asked: Any) -> tuple[list[str], list[str]]:
    """Enqueue and claim; returns the outcomes, and the ids that were leased."""
    parts = [part for id in ids for part in (id, options(**asked), b"{}")]
    outcomes, claim = queue.call("enqueue_and_claim", "w1", limit, "", "", "", "", "ada", *parts)
    return words(outcomes), [each.id for each in leased_in(claim)]


def test_a_lost_answer_is_given_again_by_the_two(queue: Queue) -> None:
    assert joined(queue, "a", "b", limit=2) == (["ok", "ok"], ["a", "b"])
    assert queue.enqueue("ada", "a", "b") == ["duplicate\nleased"] * 2
    again = leased_in(queue.call("claim", "w1", 2, "again"))
    assert [(each.id, each.attempt) for each in again] == [("a", 1), ("b", 1)]


def test_no_server_hears_of_tasks_that_are_claimed_at_once(queue: Queue) -> None:
    queue.claim(1)
    with Listener(queue) as listener:
        assert joined(queue, "a", limit=2) == (["ok"], ["a"])
        assert listener.heard() == []
        queue.enqueue("ada", "b")
        assert listener.heard() == [b"1"], "the queue is hungry still"


def test_all_is_refused_where_the_tasks_are(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    queue.set_limits("ada", queued=1)
    refused(queue, "quota_exceeded queued", "enqueue_and_claim", "w1", 1, "", "", "", "", "ada", "b", b"", b"{}")
