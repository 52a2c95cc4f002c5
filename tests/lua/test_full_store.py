"""A full store takes nothing new, and all that is there goes on: every function, as `99_register.lua` has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis

from fairq.store import library

from .calls import HEAD, LEASE_MS, START, Queue, options, packed_link, packed_template, snapshot, words
from .keyspace import Keyspace

DAY_MS = 86_400_000
TIMING = b"any bytes"
Scenario = Callable[[Queue], Iterator[None]]
FLAGS = dict(re.findall(r"^register\('(\w+)', (\w+)\)", library.source(), re.MULTILINE))


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


def revision_of(queue: Queue) -> bytes:
    """Read the head of the one schedule."""
    revision: bytes = queue.call("schedules", "ada", "nightly", 0, 1)[1][1]
    return revision


def schedule(queue: Queue) -> None:
    """Make the one schedule."""
    queue.call("schedule", "ada", "nightly", queue.now + 1000, 0, TIMING, packed_template())


NEW = options(key="k", batch="b", result=1, group="g", weight=2, name="n")
REPLACING = options(key="held", replace=1, max_attempts=0, after_start=5)
# What needs room: the arguments of a call that the store refuses.
REFUSED: dict[str, Callable[[Queue], list[object]]] = {
    "enqueue": lambda _: ["ada", "x", NEW, b"{}", "y", REPLACING, b"new"],
    "replay": lambda _: ["dead"],
    "open_batch": lambda _: ["ada", "other", 0, "", "", ""],
    "schedule": lambda queue: ["ada", "other", queue.now, 0, TIMING, packed_template()],
    "fire": lambda queue: ["ada/nightly", revision_of(queue), queue.now + 1],
    "add_queue": lambda _: ["other", "ada", 100],
    "settle_linked": lambda queue: ["ack_linked", "run", queue.claim()[0].lease, "1", packed_link("a", "next")],
    "add_history": lambda _: ["server", 1, 0, "ada", 1, 1, 0, b""],
    "add_webhook": lambda _: ["0000000a", "https://a.example/", "", 1, ""],
}


def test_a_queue_that_is_made_needs_room(queue: Queue) -> None:
    queue.client.delete(queue.key("queue"))
    before = snapshot(queue)
    with full(queue), pytest.raises(redis.exceptions.OutOfMemoryError):
        queue.call("make_queue")
    assert snapshot(queue) == before


@pytest.mark.parametrize("verb", REFUSED)
def test_what_needs_room_is_refused_and_changes_nothing(queue: Queue, verb: str) -> None:
    queue.bury("ada", "dead")
    queue.enqueue("ada", "run")
    queue.enqueue("ada", "holder", key="held")
    queue.open_batch("b")
    schedule(queue)
    queue.advance(1000)
    args, before = REFUSED[verb](queue), snapshot(queue)
    with full(queue), pytest.raises(redis.exceptions.OutOfMemoryError):
        queue.call(verb, *args)
    assert snapshot(queue) == before
    queue.call(verb, *args)
    assert snapshot(queue) != before


def claim(queue: Queue) -> Iterator[None]:
    queue.open_batch("capped", max_running=20)
    for name in ("ada", "bob"):
        queue.enqueue(name, *many(200, name), result=1000, priority=7)
    queue.enqueue("ada", *many(50, "late"), expires_in=5)
    queue.enqueue("ada", *many(50, "pending"), batch="capped")
    for group in ("a", "b"):
        queue.enqueue("ada", *many(30, group), group=group, weight=2, priority=7)
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


def outbox(queue: Queue) -> Iterator[None]:
    queue.enqueue("ada", *many(3))
    for lease in queue.claim(3):
        queue.link(lease, packed_link(f"{lease.id}-next", "next", b"x" * 5000))
    yield
    for fate, name in zip(("delivered", "later", "never"), queue.take_links(), strict=True):
        assert queue.close_link(name, fate, 5) == "ok"
    assert (queue.queue_state()["links"], queue.queue_state()["dead"]) == (1, 1)


def take_links(queue: Queue) -> Iterator[None]:
    yield from outbox(queue)


def close_links(queue: Queue) -> Iterator[None]:
    yield from outbox(queue)


def note_made(queue: Queue) -> Iterator[None]:
    queue.enqueue("ada", "a")
    (lease,) = queue.claim()
    yield
    assert set(queue.note_made("a", b"12345678")) == {"ok"}
    assert queue.made_by("a", lease.lease, b"12345678") == [1]


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


def cancel(queue: Queue) -> Iterator[None]:
    open_batch(queue, "b")
    queue.enqueue("ada", *many(300), batch="b")
    queue.enqueue("ada", *many(200, "later"), batch="b", delay=1000)
    queue.call("close_batch", "b")
    running = queue.claim(100)
    yield
    assert queue.cancel(*many(300), *many(200, "later")) == ["running"] * 100 + ["ok"] * 400
    assert [queue.end("release", lease) for lease in running] == ["ok"] * 100
    assert queue.state(f"b-complete-{START}") == "ready"


def cancel_waiting(queue: Queue) -> Iterator[None]:
    open_batch(queue, "b")
    queue.enqueue("ada", *many(300), batch="b")
    queue.enqueue("ada", *many(200, "later"), delay=1000, priority=3)
    running = queue.claim(100)
    queue.enqueue("ada", *many(50, "turn"), group="g")
    yield
    assert queue.purge() == 450
    assert [queue.end("ack", lease) for lease in running] == ["ok"] * 100


def drop_tenant(queue: Queue) -> Iterator[None]:
    queue.set_limits("ada", max_running=3)
    queue.enqueue("ada", "a", events=1)
    queue.cancel("a")
    yield
    assert queue.call("drop_tenant", "ada") == [b"ok"]


def forget_tenants(queue: Queue) -> Iterator[None]:
    for name in ("ada", "bob"):
        queue.enqueue(name, name)
        queue.cancel(name)
    yield
    assert queue.call("forget_tenants", "0", 100, 0, "") == [b"0", 0]
    assert queue.call("forget_tenants", "0", 100, 0, "") == [b"0", 2]


def reschedule(queue: Queue) -> Iterator[None]:
    queue.enqueue("ada", *many(500), priority=9)
    yield
    assert queue.reschedule(*many(500), delay=1000) == ["ok"] * 500
    assert queue.reschedule(*many(100)) == ["ok"] * 100
    assert (queue.queue_state()["delayed"], len(queue.claim(500))) == (400, 100)


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


def close_batch(queue: Queue) -> Iterator[None]:
    open_batch(queue, "b")
    yield
    assert queue.call("close_batch", "b") == b"open"
    assert queue.queue_state()["ready"] == 2


def purge(queue: Queue) -> Iterator[None]:
    queue.bury("ada", *many(300))
    yield
    assert words(queue.call("purge", *many(300))) == ["ok"] * 300


def set_weight(queue: Queue) -> Iterator[None]:
    queue.enqueue("ada", "a")
    yield
    assert queue.call("set_weight", "ada", 5000) == 1000
    assert queue.call("set_weight", "newcomer", 5000) == 1000


def set_limits(queue: Queue) -> Iterator[None]:
    queue.enqueue("ada", *many(10))
    yield
    queue.set_limits("ada", max_running=2, rate=1, burst=1)
    assert len(queue.claim(10)) == 1


def set_opening_hours(queue: Queue) -> Iterator[None]:
    queue.enqueue("ada", *many(10))
    yield
    queue.call("set_opening_hours", "ada", "daily", 0, queue.now + 1000, "")
    assert queue.claim(10) == []


def pause(queue: Queue) -> Iterator[None]:
    queue.enqueue("ada", "a")
    yield
    assert (queue.call("pause", "ada"), queue.call("pause", "")) == (0, 0)
    assert queue.claim(1) == []


def resume(queue: Queue) -> Iterator[None]:
    queue.enqueue("ada", "a")
    queue.call("pause", "ada")
    yield
    assert queue.call("resume", "ada") == 1
    assert len(queue.claim(1)) == 1


def configure(queue: Queue) -> Iterator[None]:
    yield
    queue.configure(share=1, lease_ms=5000)
    assert queue.queue_state()["lease_ms"] == 5000


def repair(queue: Queue) -> Iterator[None]:
    queue.client.delete(queue.key("ready:ada"))
    yield
    assert queue.call("repair", "")[0] == b"done"


def unschedule(queue: Queue) -> Iterator[None]:
    schedule(queue)
    yield
    assert queue.call("unschedule", "ada", "nightly") == b"ok"


def pause_schedule(queue: Queue) -> Iterator[None]:
    schedule(queue)
    yield
    assert queue.call("pause_schedule", "ada", "nightly") == 0


def resume_schedule(queue: Queue) -> Iterator[None]:
    schedule(queue)
    queue.call("pause_schedule", "ada", "nightly")
    yield
    assert queue.call("resume_schedule", "ada", "nightly", revision_of(queue), queue.now + 1) == b"ok"


def block_queue(queue: Queue) -> Iterator[None]:
    queue.enqueue("ada", *many(500), result=1000)
    yield
    assert queue.call("block_queue", 1, 1)[0] == b"ok"
    assert queue.queue_state()["stage"] == 2


def empty_queue(queue: Queue) -> Iterator[None]:
    yield from block_queue(queue)
    while queue.call("empty_queue") == b"more":
        pass
    assert queue.call("drop_queue") == b"ok"


def drop_queue(queue: Queue) -> Iterator[None]:
    yield from empty_queue(queue)
    assert not list(queue.client.scan_iter(queue.key("*")))


def forget_queue(queue: Queue) -> Iterator[None]:
    yield
    assert queue.call("forget_queue", 0, 0, "", 1) == b"ok"
    assert not queue.client.exists(queue.key("queue"))


def remove_queue(queue: Queue) -> Iterator[None]:
    queue.call("add_queue", "other", "ada", 100)
    entry = queue.client.hget(queue.key("names"), "other")
    yield
    assert queue.call("remove_queue", "other", entry) == b"ok"


def begin_change(queue: Queue) -> Iterator[None]:
    yield
    assert len(queue.call("begin_change", "token", "pause", "q", "", "{}")) == 2
    queue.client.delete(queue.key("begun"))  # it is no key of a queue


def end_change(queue: Queue) -> Iterator[None]:
    id, _ = queue.call("begin_change", "token", "pause", "q", "", "{}")
    yield
    assert queue.call("end_change", id, 0, "{}", "token", "pause", "q", "", "{}")
    keys = ("changes", "begun", "of_tenants")  # they are no keys of a queue
    queue.client.delete(*map(queue.key, keys))


def pause_webhook(queue: Queue) -> Iterator[None]:
    queue.call("add_webhook", "0000000a", "https://a.example/", "", 1, "")
    yield
    assert [queue.call("pause_webhook", "0000000a", paused) for paused in (1, 0)] == [0, 1]


def remove_webhook(queue: Queue) -> Iterator[None]:
    queue.call("add_webhook", "0000000a", "https://a.example/", "", 1, "")
    yield
    assert queue.call("remove_webhook", "0000000a") == b"ok"


GOES_ON: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        claim, settle, tick, cancel, cancel_waiting, drop_tenant, forget_tenants,
        reschedule, cancel_batch, close_batch, purge, set_weight, set_limits,
        set_opening_hours, begin_change, end_change,
        pause, resume, configure, unschedule, pause_schedule, resume_schedule, block_queue, empty_queue, drop_queue,
        take_links, close_links, note_made, forget_queue, remove_queue, repair, pause_webhook, remove_webhook,
    )
}  # fmt: skip


@pytest.mark.parametrize("verb", GOES_ON)
def test_what_drains_goes_on_and_the_keys_stay_whole(queue: Queue, verb: str) -> None:
    scenario = GOES_ON[verb](queue)
    next(scenario)
    with full(queue):
        for _ in scenario:
            raise AssertionError("a scenario has two parts")
    Keyspace(queue).check()


def test_every_function_is_in_the_tables() -> None:
    assert set(REFUSED) | {"make_queue"} == {verb for verb, flags in FLAGS.items() if flags == "WRITES"}
    assert set(GOES_ON) == {verb for verb, flags in FLAGS.items() if flags == "DRAINS"}
    assert {verb for verb, flags in FLAGS.items() if flags == "READS"} == library.read_verbs()
