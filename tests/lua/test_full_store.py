"""A full store takes nothing new, and all that is there goes on: every verb, as its table says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis

from fairq.store import library

from .calls import HEAD, LEASE_MS, START, VERBS, Queue, options, snapshot, words
from .keyspace import Keyspace

DAY_MS = 86_400_000
Scenario = Callable[[Queue], Iterator[None]]
# What brings something new. All else goes on in a full store: it ends, moves, deletes or reads what is there.
NEEDS_ROOM = {
    "make_queue", "enqueue", "settle_linked", "replay", "open_batch", "schedule", "fire", "add_queue", "add_history",
    "add_webhook",
}  # fmt: skip


@contextmanager
def full(queue: Queue) -> Iterator[None]:
    """Leave the store no room while the block runs."""
    queue.client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        queue.client.config_set("maxmemory", 0)


def many(count: int, tenant: str = "ada") -> list[str]:
    """Ids for a crowd of tasks."""
    return [f"{tenant}-{n}" for n in range(count)]


def open_batch(queue: Queue, id: str, max_running: int = 0) -> None:
    """Open a batch that has all callbacks."""
    queue.open_batch(id, max_running, complete="all ended", success="all done", death="one dead")


def claim(queue: Queue) -> Iterator[None]:
    queue.open_batch("capped", max_running=20)
    for name in ("ada", "bob"):
        queue.enqueue(name, *many(200, name), result=1000, priority=7)
    queue.enqueue("ada", *many(50, "late"), expires_in=5)
    queue.enqueue("ada", *many(50, "pending"), batch="capped")
    for group in ("a", "b"):
        queue.enqueue("ada", *many(30, group), group=group, priority=7)
    queue.advance(5)
    yield
    assert len(queue.claim(500)) == 480
    assert (queue.queue_state()["dead"], queue.queue_state()["pending"]) == (50, 30)
    queue.advance(LEASE_MS - 1)
    assert len(queue.call("claim", "w1", 500, "again")) == HEAD + 4 * 150, "what the first of three calls took"


def settle(queue: Queue) -> Iterator[None]:
    open_batch(queue, "b", max_running=100)
    queue.enqueue("ada", *many(400), batch="b", result=1000)
    queue.call("close_batch", "b")
    leases = queue.claim(500)
    yield
    actions = {"nack": 1000, "release": "", "extend": "", "reject": ""}
    for (action, delay), lease in zip(actions.items(), leases, strict=False):
        assert queue.end(action, lease, delay, "e" * 2048) == "ok"
    assert [queue.state(lease.id) for lease in leases[:4]] == ["delayed", "ready", "leased", "dead"]
    assert queue.state(f"b-death-{START}") == "ready"
    queue.advance(1000)
    queue.tick()
    leases = leases[2:3] + leases[4:]
    while leases:
        finished = [("ack_with_result", lease.id, lease.lease, "", "r" * 1000) for lease in leases]
        assert set(queue.settle(*finished)) == {"ok"}
        leases = queue.claim(500)
    assert queue.call("results", "ada-7") == [b"r" * 1000]
    progress = queue.batch("b")
    assert progress
    assert (progress.state, progress.done, progress.dead) == ("complete", 399, 1)
    assert queue.state(f"b-complete-{START}") == "done"


def tick(queue: Queue) -> Iterator[None]:
    queue.configure(dead_keep=400)
    for name in ("lost", "expired", "old"):
        open_batch(queue, name)
    queue.enqueue("ada", *many(200, "lost"), batch="lost", max_attempts=1)
    queue.claim(200)
    queue.enqueue("ada", *many(200, "again"))
    queue.claim(200)
    queue.enqueue("ada", *many(300, "expired"), batch="expired", expires_in=LEASE_MS)
    queue.enqueue("ada", *many(300, "due"), delay=LEASE_MS, priority=3)
    for name in ("lost", "expired", "old"):
        queue.call("close_batch", name)
    queue.advance(LEASE_MS)
    yield
    done = [queue.tick(500) for _ in range(20)]
    assert sum(each.promoted for each in done) == 300
    assert (sum(each.expired for each in done), sum(each.reaped for each in done)) == (300, 400)
    assert queue.queue_state()["dead"] == 400
    assert {queue.state(f"{name}-{end}-{START}") for name in ("lost", "expired") for end in ("complete", "death")} == {
        "ready"
    }
    queue.advance(DAY_MS)
    queue.tick(500)
    assert queue.batch("old") is None


def cancel_batch(queue: Queue) -> Iterator[None]:
    open_batch(queue, "b", max_running=5)
    queue.enqueue("ada", *many(500), batch="b")
    queue.enqueue("ada", *many(400, "more"), batch="b")
    running = queue.claim(5)
    yield
    assert queue.call("cancel_batch", "b") == b"open"
    while queue.tick(125).next_due == queue.now:
        pass
    assert [queue.end("release", lease) for lease in running] == ["ok"] * 5
    progress = queue.batch("b")
    assert progress
    assert (progress.state, progress.cancelled) == ("complete", 900)
    assert queue.state(f"b-complete-{START}") == "ready"


@pytest.mark.parametrize("begin", [claim, settle, tick, cancel_batch], ids=lambda each: each.__name__)
def test_what_drains_goes_on_and_the_keys_stay_whole(queue: Queue, begin: Scenario) -> None:
    scenario = begin(queue)
    next(scenario)
    with full(queue):
        for _ in scenario:
            raise AssertionError("a scenario has two parts")
    Keyspace(queue).check()


def test_what_needs_room_is_refused_and_changes_nothing(queue: Queue) -> None:
    queue.enqueue("ada", "holder", key="held")
    queue.open_batch("b")
    new = options(key="k", batch="b", result=1, group="g", name="n")
    replacing = options(key="held", replace=1, max_attempts=0, after_start=5)
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
