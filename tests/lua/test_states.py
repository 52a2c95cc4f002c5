"""What can be asked, and the habits of the sections' text."""

from __future__ import annotations

import pytest
import redis

from fairq.store import library

from .calls import START, VERBS, Queue, snapshot


def test_depth_of_a_queue_that_never_was_shows_the_defaults(queue: Queue) -> None:
    state = queue.queue_state()
    assert (state["ready"], state["lease_ms"], state["max_attempts"], state["blocked"]) == (0, 30_000, 5, 0)
    assert snapshot(queue).keys() == {queue.key("queue").encode(), queue.key("test").encode()}


def test_depth_counts_every_state(queue: Queue) -> None:
    queue.enqueue("ada", *"abcd")
    queue.enqueue("ada", "later", delay=10)
    a, b, _ = queue.claim(3)
    queue.end("ack", a)
    queue.end("reject", b)
    state = queue.queue_state()
    names = ("ready", "delayed", "leased", "dead", "done", "enqueued", "buried", "expired")
    assert [state[name] for name in names] == [1, 1, 1, 1, 1, 5, 1, 0]


def test_tenants_come_in_pages(queue: Queue) -> None:
    for n in range(600):
        queue.enqueue(f"t{n}", f"id{n}")
    cursor, pages, names = "0", 0, []
    while pages == 0 or cursor != "0":
        cursor, *lines = (part.decode() for part in queue.call("tenants", cursor, 50))
        names += [line.split(" ")[0] for line in lines]
        pages += 1
    assert pages > 1
    assert sorted(names) == sorted(f"t{n}" for n in range(600))


def test_named_tenants_are_reported_in_order_without_those_that_are_unknown(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    queue.call("set_weight", "bob", 2000)
    found = queue.tenants("bob", "eve", "ada")
    assert list(found) == ["bob", "ada"]
    assert (found["bob"].weight, found["bob"].ready, found["bob"].is_eligible) == (2000, 0, 0)
    assert (found["ada"].ready, found["ada"].is_eligible) == (1, 1)


def test_entitlement_is_told_up_to_now(queue: Queue) -> None:
    queue.configure(share=1)
    for name in ("ada", "bob"):
        queue.enqueue(name, *(f"{name}{n}" for n in range(20)))
    queue.claim(20)
    found = queue.tenants()
    assert found["ada"].entitled == pytest.approx(10)
    assert found["bob"].entitled == pytest.approx(10)
    assert found["ada"].delivered + found["bob"].delivered == 20


def test_tasks_tells_every_state(queue: Queue) -> None:
    queue.enqueue("ada", "leased", "done", "dead", "ready")
    queue.enqueue("ada", "delayed", delay=70)
    _, done, dead = queue.claim(3, worker="w7")
    queue.end("ack", done)
    queue.end("reject", dead, "", "bad")
    assert queue.tasks("ready", "delayed", "leased", "dead", "done", "nobody") == [
        ("ready", "ada", 0, 0, "", ""),
        ("delayed", "ada", 0, START + 70, "", ""),
        ("leased", "ada", 1, START + 30_000, "w7", ""),
        ("dead", "ada", 1, START, "rejected", "bad"),
        ("done", "", 0, 0, "", ""),
        ("unknown", "", 0, 0, "", ""),
    ]


def test_a_read_verb_may_be_called_on_a_replica_and_a_write_verb_may_not(queue: Queue) -> None:
    loaded = queue.client.function_list(library.name())
    functions = {entry[1].decode(): {flag.decode() for flag in entry[5]} for entry in loaded[0][5]}
    assert functions.keys() == {library.function_name(verb) for verb in VERBS}
    for verb in VERBS:
        assert ("no-writes" in functions[library.function_name(verb)]) == (verb in library.verbs("reads"))
    with pytest.raises(redis.ResponseError, match="write flag"):
        queue.client.fcall_ro(library.function_name("claim"), 1, queue.prefix, "", "", "w", 1)


def test_queues_share_nothing(queue: Queue) -> None:
    other = Queue(queue.client, "fq:{other/0}")
    queue.enqueue("ada", "a")
    assert other.enqueue("ada", "a") == ["ok"]
    assert len(other.claim(5)) == len(queue.claim(5)) == 1


def test_a_peek_at_long_tasks_ends_before_the_reply_is_too_long(queue: Queue) -> None:
    queue.enqueue("ada", *"abcde", payload=b"1" * 400_000)
    assert queue.peek("ada", 500) == ["a", "b", "c"]
    assert queue.peek("ada", 2) == ["a", "b"]
