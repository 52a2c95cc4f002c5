"""A full store takes nothing new, and all that is there goes on: every verb, as its table says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis

from fairq.store import library

from .calls import LEASE_MS, START, VERBS, Queue, options, snapshot, words
from .keyspace import Keyspace

# What brings something new. All else goes on in a full store: it ends, moves, deletes or reads what is there.
NEEDS_ROOM = {
    "make_queue", "enqueue", "enqueue_and_claim", "settle_linked", "replay", "open_batch", "schedule", "fire",
    "add_queue", "add_history", "add_webhook",
}  # fmt: skip


@contextmanager
def full(queue: Queue) -> Iterator[None]:
    """Leave the store no room while the block runs."""
    queue.client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        queue.client.config_set("maxmemory", 0)


def test_what_drains_goes_on_and_the_keys_stay_whole(queue: Queue) -> None:
    queue.configure(dead_keep=40)
    queue.open_batch("b", 100, complete="all ended", success="all done", death="one dead")
    queue.enqueue("ada", *(f"a{n}" for n in range(400)), batch="b", result_ttl=1000)
    queue.enqueue("bob", *(f"late{n}" for n in range(50)), expires_in=5)
    queue.enqueue("bob", *(f"due{n}" for n in range(50)), delay=LEASE_MS, group="g")
    queue.call("close_batch", "b")
    queue.advance(5)
    with full(queue):
        leases = queue.claim(500)
        assert (len(leases), queue.queue_state()["dead"], queue.queue_state()["pending"]) == (100, 50, 300)
        actions = {"nack": 1000, "release": "", "extend": "", "reject": ""}
        for (action, delay), lease in zip(actions.items(), leases, strict=False):
            assert queue.end(action, lease, delay, "e" * 2048) == "ok"
        assert [queue.state(lease.id) for lease in leases[:4]] == ["delayed", "ready", "leased", "dead"]
        assert queue.state(f"b-death-{START}") == "ready"
        finished = [("ack", lease.id, lease.lease, "", "r" * 1000) for lease in leases[4:]]
        assert set(queue.settle(*finished)) == {"ok"}
        assert queue.call("results", leases[4].id) == [b"r" * 1000]
        queue.advance(LEASE_MS)
        ticked = [queue.tick(500) for _ in range(9)]
        sums = [sum(getattr(each, name) for each in ticked) for name in ("promoted", "reaped", "trimmed")]
        assert sums == [51, 1, 11]
        assert queue.call("close_batch", "b", "cancel") == b"closed"
        while queue.tick(125).next_due == queue.now:
            pass
        assert (progress := queue.batch("b"))
        assert (progress.state, progress.done, progress.dead, progress.cancelled) == ("complete", 96, 1, 303)
        assert queue.state(f"b-complete-{START}") == "ready"
    Keyspace(queue).check()


def test_what_needs_room_is_refused_and_changes_nothing(queue: Queue) -> None:
    queue.enqueue("ada", "holder", dedupe_key="held")
    queue.open_batch("b")
    new = options(dedupe_key="k", batch="b", result_ttl=1, group="g", name="n")
    replacing = options(dedupe_key="held", replace=1, max_attempts=0, expires_after_start=5)
    args, before = ("ada", "x", new, b"{}", "y", replacing, b"new"), snapshot(queue)
    with full(queue), pytest.raises(redis.exceptions.OutOfMemoryError):
        queue.call("enqueue", *args)
    assert snapshot(queue) == before
    assert words(queue.call("enqueue", *args)) == ["ok", "replaced"]


def test_the_store_runs_every_other_function_also_when_it_is_full(queue: Queue) -> None:
    """The flag is all that it takes: a function that has it is not refused at its beginning, nor between its writes."""
    (loaded,) = queue.client.function_list(library.name())
    flags = {entry[1].decode(): {flag.decode() for flag in entry[5]} for entry in loaded[5]}
    assert library.verbs("writes") == NEEDS_ROOM
    for verb in VERBS:
        assert ("allow-oom" in flags[library.function_name(verb)]) == (verb in library.verbs("drains")), verb
