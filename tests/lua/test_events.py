"""A tenant's feed: what is told of whom, in which order; where it goes on; how long it is."""

from __future__ import annotations

from .calls import LEASE_MS, START, Listener, Queue, Told, writes


def test_each_end_and_each_failed_attempt_is_told_in_order(queue: Queue) -> None:
    queue.enqueue("ada", "a", events=1, max_attempts=2)
    queue.end("nack", queue.claim()[0], 0, "boom")
    queue.advance(5)
    queue.end("nack", queue.claim()[0], 0, "boom again")
    queue.enqueue("ada", "b", events=1)
    queue.end("ack", queue.claim()[0])
    assert queue.events() == (
        1,
        4,
        [
            Told(1, "failed", "a", START, 1, "boom"),
            Told(2, "failed", "a", START + 5, 2, "boom again"),
            Told(3, "dead", "a", START + 5, 2, "exhausted"),
            Told(4, "done", "b", START + 5, 1, ""),
        ],
    )


def test_a_rejected_task_failed_and_is_dead(queue: Queue) -> None:
    queue.enqueue("ada", "a", events=1)
    queue.end("reject", queue.claim()[0], "", "no address")
    assert [told[1:] for told in queue.events().events] == [
        ("failed", "a", START, 1, "no address"),
        ("dead", "a", START, 1, "rejected"),
    ]


def test_a_lost_lease_is_a_failed_attempt(queue: Queue) -> None:
    queue.enqueue("ada", "a", events=1, max_attempts=2)
    for _ in range(2):
        queue.claim()
        queue.advance(LEASE_MS)
        queue.tick()
    assert [(told.event, told.attempt, told.detail) for told in queue.events().events] == [
        ("failed", 1, "lease_lost"),
        ("failed", 2, "lease_lost"),
        ("dead", 2, "lease_lost"),
    ]


def test_what_is_given_back_or_replayed_is_no_event(queue: Queue) -> None:
    queue.enqueue("ada", "a", events=1, delay=5)
    queue.reschedule("a")
    queue.end("release", queue.claim()[0])
    assert queue.settle(("extend", "a", 2)) == ["stale"]
    assert queue.events().events == []
    queue.end("reject", queue.claim()[0])
    queue.call("replay", "a")
    queue.end("ack", queue.claim()[0])
    assert queue.events().short == [("failed", "a"), ("dead", "a"), ("done", "a")]


def test_expired_tasks_are_told_by_a_tick_and_by_a_claim(queue: Queue) -> None:
    queue.enqueue("ada", "late", events=1, expires_in=10)
    queue.enqueue("bob", "late", "later", events=1, expires_in=10)
    queue.advance(10)
    queue.tick(1)
    queue.claim(5)
    told = [*queue.events("ada").events, *queue.events("bob").events]
    assert [event[1:] for event in told] == [
        ("expired", "late", START + 10, 0, "expired"),
        ("expired", "later", START + 10, 0, "expired"),
    ]


def test_cancelled_tasks_are_told_once_when_they_have_ended(queue: Queue) -> None:
    queue.enqueue("ada", "waits", "runs", "ends", events=1)
    leases = {lease.id: lease for lease in queue.claim(3)}
    queue.end("release", leases["waits"])
    assert queue.cancel("waits", "runs", "ends") == ["ok", "running", "running"]
    assert queue.events().short == [("cancelled", "waits")]
    queue.end("nack", leases["runs"], 0, "stopped")
    queue.end("ack", leases["ends"])
    assert queue.events().short == [("cancelled", "waits"), ("cancelled", "runs"), ("done", "ends")]


def test_a_complete_batch_is_told_after_its_tasks_and_once(queue: Queue) -> None:
    queue.open_batch("b", events=1)
    queue.open_batch("quiet")
    queue.enqueue("ada", "x", batch="b", events=1)
    queue.enqueue("ada", "y", batch="b")
    queue.enqueue("ada", "z", batch="quiet")
    for id in ("b", "quiet"):
        queue.call("close_batch", id)
    queue.settle(*(("ack", lease.id, 1) for lease in queue.claim(5)))
    queue.call("close_batch", "b")
    assert queue.events().short == [("done", "x"), ("batch_completed", "b")]
    assert queue.events().events[1][3:] == (START, 0, "2 0 0 0")


def test_a_complete_batch_tells_how_its_tasks_ended(queue: Queue) -> None:
    queue.open_batch("b", events=1)
    queue.enqueue("ada", "a", "b", "c", "d", "e", batch="b")
    queue.enqueue("ada", "short", batch="b", expires_in=10)
    queue.cancel("a", "b")
    actions = ("ack", "ack", "reject")
    queue.settle(*((action, it.id, it.lease, "", "x") for action, it in zip(actions, queue.claim(3), strict=True)))
    queue.advance(10)
    queue.call("close_batch", "b")
    queue.tick()
    assert [(told.event, told.of, told.detail) for told in queue.events().events] == [
        ("batch_completed", "b", "2 2 2 1")
    ]


def test_nothing_is_kept_of_those_who_did_not_ask(queue: Queue) -> None:
    queue.enqueue("ada", "plain")
    queue.enqueue("ada", "kept", result=1000, priority=3)
    queue.enqueue("bob", "told", events=1)
    for lease in queue.claim(3):
        queue.end("nack", lease, 0)
    queue.settle(*(("ack", lease.id, 2) for lease in queue.claim(3)))
    assert queue.client.exists(queue.key("events:ada")) == 0
    assert queue.events("ada") == (1, 0, [])
    assert queue.events("bob").short == [("failed", "told"), ("done", "told")]


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


def test_a_reader_goes_on_after_the_last_event_it_has_seen(queue: Queue) -> None:
    queue.enqueue("ada", *(f"id{n}" for n in range(5)), events=1)
    queue.settle(*(("ack", lease.id, 1) for lease in queue.claim(5)))
    page = queue.events(count=2)
    assert (page.short, page.oldest, page.newest) == ([("done", "id0"), ("done", "id1")], 1, 5)
    rest = queue.events(after=page.events[-1].id)
    assert [told.id for told in rest.events] == [3, 4, 5]
    assert queue.events(after=5) == (1, 5, [])


def test_only_the_newest_are_kept_and_the_gap_can_be_told(queue: Queue) -> None:
    queue.configure(events_keep=3)
    queue.enqueue("ada", *(f"id{n}" for n in range(5)), events=1)
    queue.settle(*(("ack", lease.id, 1) for lease in queue.claim(5)))
    page = queue.events(after=1)
    assert (page.oldest, page.newest, [told.of for told in page.events]) == (3, 5, ["id2", "id3", "id4"])
    queue.configure(events_keep=0)
    queue.enqueue("ada", "last", events=1)
    queue.end("ack", queue.claim()[0])
    assert queue.events() == (7, 6, [])
    queue.configure(events_keep=2)
    queue.enqueue("ada", "more", events=1)
    queue.end("ack", queue.claim()[0])
    assert queue.events()[:2] == (7, 7)


def test_each_tenant_has_a_feed_of_its_own(queue: Queue) -> None:
    queue.enqueue("ada", "a", events=1)
    queue.enqueue("bob", "b", events=1)
    queue.settle(*(("ack", lease.id, 1) for lease in queue.claim(2)))
    assert [queue.events(name)[1:] for name in ("ada", "bob", "cyd")] == [
        (1, [Told(1, "done", "a", START, 1, "")]),
        (1, [Told(1, "done", "b", START, 1, "")]),
        (0, []),
    ]


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


def test_a_full_store_still_tells(queue: Queue) -> None:
    queue.enqueue("ada", "a", events=1)
    (lease,) = queue.claim()
    queue.client.config_set("maxmemory", 1)
    try:
        assert queue.end("ack", lease) == "ok"
        assert queue.events().short == [("done", "a")]
    finally:
        queue.client.config_set("maxmemory", 0)
