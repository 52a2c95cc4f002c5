"""The beginning and the end of a queue: nothing goes into one that was not made, and nothing stays of a deleted one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from .calls import Queue, packed_template, refused, snapshot
from .keyspace import TYPES, Keyspace

KINDS = {kind.rstrip(":") for kind in TYPES} | {"progress"}
DAY_MS = 86_400_000
TIMING = b"any bytes"
PUTS_IN = {
    "enqueue": ("ada", "a", b"", b"{}"),
    "enqueue_and_claim": ("w", 1, "", "", "", "", "ada", "b", b"", b"{}"),
    "open_batch": ("ada", "b", 0, "", "", "", 0),
    "schedule": ("ada", "s", 1, 0, TIMING, packed_template(), "jobs"),
    "set_weight": ("ada", 2000),
    "set_limits": ("ada", "max_running", 1),
    "set_opening_hours": ("ada", "daily", 0, 1, ""),
    "add_webhook": ("0000000a", "https://a.example/", "", 1, ""),
    "set_paused": ("ada", 1),
    "configure": ("lease_ms", 1000),
}


def kinds(queue: Queue) -> set[str]:
    """Name the kinds of keys that the queue has."""
    prefix = queue.key("")
    return {name.decode().removeprefix(prefix).split(":")[0] for name in queue.client.scan_iter(f"{prefix}*")}


def fill(queue: Queue) -> None:
    """Make a queue with a key of each kind."""
    queue.configure(dead_keep=10)
    queue.enqueue("ada", "kept", "held-key", result_ttl=10 * DAY_MS, dedupe_key="k", dedupe_period=DAY_MS, events=1)
    queue.settle(*(("ack", lease.id, lease.lease, "", "1") for lease in queue.claim(2)))
    queue.bury("bob", "dead")
    queue.enqueue("ada", "urgent", priority=3, dedupe_key="mine")
    queue.enqueue("ada", "later", delay=1000, expires_in=5000)
    queue.enqueue("ada", "soon", priority=7)
    queue.open_batch("capped", max_running=1)
    queue.enqueue("ada", "in-1", "in-2", batch="capped")
    queue.open_batch("complete", complete="sum")
    queue.enqueue("ada", "named", batch="complete", result_ttl=10 * DAY_MS, priority=0)
    queue.end("ack", queue.claim()[0])
    queue.call("close_batch", "complete")
    queue.open_batch("large", tenant="crowd")
    for part in range(2):
        queue.enqueue("crowd", *(f"c-{part}-{n}" for n in range(400)), batch="large")
    queue.call("close_batch", "large", "cancel")
    queue.enqueue("long", "long-1", payload=b"x" * 5000, delay=1000)
    queue.call("schedule", "ada", "nightly", queue.now + 1000, 0, TIMING, packed_template(), "jobs")
    queue.set_limits("", max_running=100)
    queue.call("set_opening_hours", "zoe", "daily", 1, queue.now + 1000, "")
    queue.set_limits("slow", rate=0.001, burst=1)
    queue.enqueue("slow", "s-1", "s-2")
    queue.end("extend", queue.claim(5)[0])
    queue.enqueue("eve", "pressing", priority=7)
    queue.call("add_webhook", "0000000a", "https://a.example/", "", 0, "")
    queue.client.set(queue.key("progress:urgent"), '[1,0.5,""]', px=3_600_000)
    queue.client.set(queue.key("promoter"), "0 server")  # a tick left due tasks
    queue.client.set(queue.key("sweep"), 0)  # a limit for all was removed, and there are many tenants
    queue.client.set(queue.key("mend"), "1 0")  # the clock went back
    queue.client.zadd(queue.key("idle"), {b"\1\0\0\0": 0})  # there is a reserve
    queue.client.set(queue.key("repair"), 1)  # a repair was broken off
    queue.client.zadd(queue.key("repair:tenants"), {"ada": 0})
    queue.client.zadd(queue.key("repair:tasks:ada"), {"lost": 1})
    queue.client.zadd(queue.key("repair:delayed:ada"), {"lost": 1})
    queue.call("add_history", 0, "ada", 1, 1, 0, b"")
    queue.call("begin_turn", "change", 60_000)
    queue.client.set(queue.key("deleting"), "x 0")  # a search was broken off


def crowd(queue: Queue) -> None:
    """Give the store so many other keys that no deletion ends with its first call."""
    queue.client.mset({f"fq:{{other/0}}:{n}": "" for n in range(1000)})


def delete(queue: Queue, what: str = "any") -> int:
    """Delete a queue; returns in how many calls."""
    calls = 1
    while (outcome := queue.call("delete_queue", what)[0]) == b"more":
        what, calls = "begun", calls + 1
    assert outcome == b"ok"
    return calls


def test_every_kind_of_key_is_made_and_none_is_left(queue: Queue) -> None:
    fill(queue)
    assert kinds(queue) == KINDS, "fill() makes a key of each kind in KEYS.md"
    crowd(queue)
    other = Queue(queue.client, "fq:{mail-2/0}")
    other.enqueue("ada", "a", result_ttl=1000)
    left = snapshot(other)
    assert delete(queue) > 3
    assert kinds(queue) == set()
    assert snapshot(other).keys() == {name for name in left if not name.startswith(queue.key("").encode())}


def test_nothing_is_put_into_a_queue_that_was_not_made(queue: Queue) -> None:
    queue.client.delete(queue.key("queue"))
    for verb, args in PUTS_IN.items():
        refused(queue, "unmade queue", verb, *args)
    queue.claim(1)  # leaves that it is hungry
    for verb, args in PUTS_IN.items():
        refused(queue, "unmade queue", verb, *args)
    assert queue.call("make_queue") == queue.call("make_queue") == b"ok"
    for verb, args in PUTS_IN.items():
        queue.call(verb, *args)
        Keyspace(queue).check()


HOLDS: dict[str, Callable[[Queue], object]] = {
    "ready": lambda queue: queue.enqueue("ada", "a"),
    "pending": lambda queue: (queue.open_batch("b", max_running=1), queue.enqueue("ada", "a", "b", batch="b")),
    "delayed": lambda queue: queue.enqueue("ada", "a", delay=1000),
    "leased": lambda queue: (queue.enqueue("ada", "a"), queue.claim()),
    "dead": lambda queue: queue.bury("ada", "a"),
    "schedules": lambda queue: queue.call("schedule", "ada", "s", queue.now, 0, TIMING, packed_template()),
    "open_batches": lambda queue: queue.open_batch("b"),
}


@pytest.mark.parametrize("what", HOLDS)
def test_what_a_queue_holds_is_named_and_it_stays(queue: Queue, what: str) -> None:
    HOLDS[what](queue)
    before = snapshot(queue)
    outcome, *pairs = queue.call("delete_queue", "empty")
    counts = dict(zip(pairs[::2], pairs[1::2], strict=True))
    assert (outcome, counts[what.encode()]) == (b"not_empty", 1)
    assert {name.decode() for name in counts} == set(HOLDS)
    assert queue.call("delete_queue", "begun") == [b"gone"]
    assert snapshot(queue) == before


def test_an_empty_queue_is_deleted_without_purge(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    queue.end("ack", queue.claim()[0])
    queue.open_batch("b")
    queue.call("close_batch", "b")
    delete(queue, "empty")
    assert kinds(queue) == set()


def test_what_was_never_made_is_gone(queue: Queue) -> None:
    queue.client.delete(queue.key("queue"))
    queue.claim(1)
    before = snapshot(queue)
    assert queue.call("delete_queue", "any") == [b"gone"]
    assert snapshot(queue) == before


def test_a_blocked_queue_answers_no_other_verb(queue: Queue) -> None:
    fill(queue)
    crowd(queue)
    revision = queue.call("schedules", "ada", "nightly", 0, 1)[1][1]
    assert queue.call("delete_queue", "any")[0] == b"more"
    others = {
        **PUTS_IN, "claim": ("w", 1), "settle": ("ack", "a", 1, ""), "tick": (1,), "cancel": ("", "a"),
        "replay": ("dead",), "reschedule": (0, 0, "a"), "purge": ("dead",), "close_batch": ("capped",),
        "unschedule": ("ada", "nightly"), "pause_schedule": ("ada", "nightly", revision, 1), "make_queue": (),
        "fire": ("ada/nightly", revision, 1),
        "drop_tenant": ("ada",), "forget_tenants": ("0", 10, 0, ""), "waiting_tasks": ("ada", "", 0, ""),
        "forget_queue": (0, 0, "", 1),
    }  # fmt: skip
    for verb, args in others.items():
        refused(queue, "deleting queue", verb, *args)
    assert queue.queue_state()["stage"] == 2


def test_a_deletion_is_gone_on_with_by_any_caller_and_begins_no_other(queue: Queue) -> None:
    fill(queue)
    crowd(queue)
    assert queue.call("delete_queue", "begun") == [b"gone"], "nobody has said that it may be deleted"
    assert queue.call("delete_queue", "any")[0] == b"more"
    assert delete(queue, "empty") > 2, "by now nobody need say again that it may hold something"
    queue.client.set(queue.key("test"), 1)
    queue.call("make_queue")
    assert queue.call("delete_queue", "begun") == [b"gone"]
    assert queue.queue_state()["stage"] == 1


def test_a_cursor_of_another_store_is_begun_anew(queue: Queue) -> None:
    """After a failover the keys are in another order."""
    fill(queue)
    crowd(queue)
    assert queue.call("delete_queue", "any")[0] == b"more"
    assert queue.client.set(queue.key("deleting"), b"other 4294967295", get=True) is not None  # the end of any store
    delete(queue, "begun")
    assert kinds(queue) == set()


def test_a_call_deletes_a_bounded_number_of_keys(queue: Queue) -> None:
    for name in range(20):
        for priority in range(0, 100, 2):
            queue.enqueue(f"t-{name}", f"{name}-{priority}", priority=priority)
    before, what = queue.client.dbsize(), "any"
    while queue.call("delete_queue", what)[0] == b"more":
        left, what = queue.client.dbsize(), "begun"
        assert before - left <= 200
        before = left
    assert kinds(queue) == set()


class Registry(Queue):
    """The registry of queues, as a caller of its two functions."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client, "fq:{queues}")
        client.delete(self.key("queue"))

    def add(self, queue: str, maker: str = "", quota: object = "") -> str:
        """Note that a queue is made."""
        word, partitions = self.call("add_queue", queue, maker, quota)
        assert partitions == 1
        return str(word, "utf-8")

    def entry(self, queue: str) -> bytes:
        entry = self.client.hget(self.key("names"), queue) or b""
        assert isinstance(entry, bytes)
        return entry

    def remove(self, queue: str, entry: bytes) -> str:
        word: bytes = self.call("remove_queue", queue, entry)
        return word.decode()


@pytest.fixture
def registry(redis_client: redis.Redis) -> Registry:
    """The registry on an empty store."""
    return Registry(redis_client)


def test_a_tenant_makes_as_many_queues_as_its_quota_says(registry: Registry) -> None:
    assert [registry.add(f"q-{n}", "ada", 3) for n in range(3)] == ["ok"] * 3
    refused(registry, "quota_exceeded queues", "add_queue", "q-3", "ada", 3)
    assert registry.add("q-0", "ada", 3) == registry.add("q-0", "bob", 0) == "known"
    assert registry.add("q-3", "bob", 3) == registry.add("q-4") == "ok"
    assert registry.add("q-5", "ada", 4) == registry.add("q-6", "ada") == "ok"  # a higher quota, or none
    assert registry.entry("q-0") == f"{registry.now + 2} ada".encode(), "it was added twice more"
    assert registry.entry("q-4") == f"{registry.now} ".encode()


def test_a_removed_queue_counts_no_more(registry: Registry) -> None:
    registry.add("q-0", "ada", 1)
    registry.add("ours")
    refused(registry, "quota_exceeded queues", "add_queue", "q-1", "ada", 1)
    assert registry.remove("q-0", registry.entry("q-0")) == "ok"
    assert registry.client.hgetall(registry.key("makers")) == {}
    assert registry.add("q-1", "ada", 1) == "ok"
    assert registry.remove("ours", registry.entry("ours")) == "ok"


@pytest.mark.parametrize("by_ms", [1, 0, -5_000])
def test_a_queue_that_was_made_anew_stays(registry: Registry, by_ms: int) -> None:
    registry.add("q", "ada")
    entry = registry.entry("q")
    assert (registry.remove("q", entry), registry.remove("q", entry)) == ("ok", "gone")
    registry.advance(by_ms)
    registry.add("q", "ada")
    assert registry.remove("q", entry) == "gone"
    assert registry.client.hgetall(registry.key("makers")) == {b"ada": b"1"}


def test_an_entry_that_was_renewed_stays(registry: Registry) -> None:
    registry.add("q", "ada", 1)
    entry = registry.entry("q")
    assert registry.add("q", "bob", 0) == "known"
    assert registry.entry("q") == f"{registry.now + 1} ada".encode(), "it still counts for its maker"
    assert registry.remove("q", entry) == "gone"
    assert registry.remove("q", registry.entry("q")) == "ok"
    assert registry.client.hgetall(registry.key("makers")) == {}
