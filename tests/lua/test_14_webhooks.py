"""Webhooks in the store: registrations, and the copies of tasks for several of them."""

from __future__ import annotations

import pytest
import redis

from .calls import Queue, leased_in, options, packed_template, unpack, words

A, B, C, D = (f"0000000{letter}" for letter in "abcd")


def add(queue: Queue, id: str, name: str = "", fan_out: int = 0, url: str = "https://a.example/") -> str:
    """Register a webhook."""
    return str(queue.call("add_webhook", id, url, name, fan_out, "").decode())


def taken(queue: Queue, count: int = 100) -> dict[str, str]:
    """Claim all tasks: which webhook each is for."""
    return {task.id: unpack("HEADER", task.record).webhook for task in queue.claim(count)}


def test_a_webhook_is_registered_changed_and_forgotten(queue: Queue) -> None:
    assert [add(queue, A), add(queue, A), add(queue, A, name="n"), add(queue, B, fan_out=1)] == [
        "created", "same", "changed", "created",
    ]  # fmt: skip
    assert queue.call("pause_webhook", A, 1) == 0
    assert queue.call("pause_webhook", A, 1) == 1
    assert add(queue, A, fan_out=1) == "changed"
    flat = queue.call("webhooks")
    rows = {id.decode(): unpack("WEBHOOK", packed) for id, packed in zip(flat[::2], flat[1::2], strict=True)}
    assert {id: (row.fan_out, row.paused, row.name, row.url) for id, row in rows.items()} == {
        A: (1, 1, "", "https://a.example/"), B: (1, 0, "", "https://a.example/"),
    }  # fmt: skip
    assert queue.queue_state()["fan_outs"] == 2
    assert [queue.call("remove_webhook", A), queue.call("remove_webhook", A)] == [b"ok", b"gone"]
    assert queue.call("pause_webhook", A, 1) == -1
    assert queue.queue_state()["fan_outs"] == 1


def test_a_task_is_copied_for_each_webhook_with_fan_out(queue: Queue) -> None:
    add(queue, A, fan_out=1)
    add(queue, B, fan_out=1)
    add(queue, C, fan_out=1, name="other")
    queue.enqueue("ada", "t1", payload=b'"x"')
    assert queue.tenants()["ada"].ready == 2
    assert taken(queue) == {"t1": A, f"t1+{B}": B}
    queue.enqueue("ada", "t2", name="other")
    assert taken(queue) == {"t2": A, f"t2+{B}": B, f"t2+{C}": C}


def test_the_task_itself_is_for_a_webhook_without_fan_out(queue: Queue) -> None:
    add(queue, A, fan_out=1)
    add(queue, D)
    queue.enqueue("ada", "t1")
    assert taken(queue) == {"t1": "", f"t1+{A}": A}


def test_a_repeated_enqueue_copies_nothing_and_copies_end_apart(queue: Queue) -> None:
    add(queue, A, fan_out=1)
    add(queue, B, fan_out=1)
    queue.enqueue("ada", "t1")
    assert queue.enqueue("ada", "t1") == ["duplicate"]
    first, second = queue.claim(2)
    queue.end("ack", first)
    queue.end("reject", second)
    assert [state.state for state in queue.tasks("t1", f"t1+{B}")] == ["done", "dead"]
    assert queue.enqueue("ada", "t1") == ["duplicate"]


def test_a_copy_that_is_still_known_is_not_made_again(queue: Queue) -> None:
    add(queue, A, fan_out=1)
    add(queue, B, fan_out=1)
    queue.enqueue("ada", "t1")
    queue.end("ack", queue.claim(1)[0])  # of t1; the copy stays
    queue.now += 180_000
    queue.call("tick", 100)
    assert queue.enqueue("ada", "t1") == ["ok"]
    assert queue.queue_state()["ready"] == 2
    assert taken(queue) == {"t1": A, f"t1+{B}": B}


def test_copies_hold_no_dedupe_key_and_a_duplicate_is_not_copied(queue: Queue) -> None:
    add(queue, A, fan_out=1)
    add(queue, B, fan_out=1)
    assert queue.enqueue("ada", "t1", key="k", period=1000) == ["ok"]
    assert queue.enqueue("ada", "t2", key="k") == ["duplicate t1"]
    assert queue.queue_state()["ready"] == 2
    with pytest.raises(redis.ResponseError, match="FAIRQ bad_request replace"):
        queue.enqueue("ada", "t3", key="k", replace=1)
    queue.call("remove_webhook", B)
    assert queue.enqueue("ada", "t3", key="k", replace=1) == ["replaced"]


def test_copies_count_in_the_tenants_quotas_as_a_whole(queue: Queue) -> None:
    add(queue, A, fan_out=1)
    add(queue, B, fan_out=1)
    queue.set_limits("ada", queued=3)
    queue.enqueue("ada", "t1")
    with pytest.raises(redis.ResponseError, match="FAIRQ quota_exceeded queued"):
        queue.enqueue("ada", "t2")
    assert queue.queue_state()["ready"] == 2
    assert words(queue.call("enqueue", "bob", "b1", options(), b"1")) == ["ok"]


def test_one_call_stores_so_many_tasks_with_their_copies(queue: Queue) -> None:
    """What is left is for another call: the server makes it."""
    for n in range(15):
        add(queue, f"{n:08x}", fan_out=1)
    parts = [part for n in range(500) for part in (f"t{n}", options(), b"{}")]
    outcomes = words(queue.call("enqueue", "ada", *parts))
    assert outcomes == ["ok"] * 34  # 33 are 495 places
    assert queue.queue_state()["ready"] == 34 * 15
    urgent = [part for n in range(500) for part in (f"b{n}", options(priority=1), b"{}")]
    assert len(queue.call("enqueue", "bob", *urgent)) == 12
    big = [part for n in range(9) for part in (f"c{n}", options(), b"1" * 100_000)]
    assert len(queue.call("enqueue", "cyd", *big)) == 1


def test_a_task_and_its_copies_have_8_mib_at_most(queue: Queue) -> None:
    for n in range(15):
        add(queue, f"{n:08x}", fan_out=1)
    with pytest.raises(redis.ResponseError, match="FAIRQ too_large payload"):
        queue.enqueue("ada", "t1", payload=b"1" * (2**23 // 15 + 1))
    assert queue.enqueue("ada", "t1", payload=b"1" * (2**23 // 15)) == ["ok"]


def test_the_tasks_of_schedules_are_copied_and_callbacks_are_not(queue: Queue) -> None:
    add(queue, A, fan_out=1)
    add(queue, B, fan_out=1)
    queue.call("schedule", "ada", "s", queue.now, 0, b"t", packed_template(b"{}"))
    revision = queue.call("schedules", "", "", 0, 10)[1][1]
    assert words(queue.call("fire", "ada/s", revision, queue.now + 1000)) == ["ok"]
    id = f"ada/s-{queue.now}"
    assert taken(queue) == {id: A, f"{id}+{B}": B}
    queue.call("open_batch", "ada", "b", 0, '"over"', "", "", 0)
    queue.enqueue("ada", "m", batch="b")
    queue.call("close_batch", "b")
    assert [batch and (batch.total, batch.copies) for batch in [queue.batch("b")]] == [(2, 1)], (
        "copies are of the batch too"
    )
    for task in queue.claim(10):
        queue.end("ack", task)
    assert taken(queue) == {f"b-complete-{queue.now}": ""}


def test_servers_that_wait_are_told_of_copies_that_nobody_covers(queue: Queue) -> None:
    add(queue, A, fan_out=1)
    add(queue, B, fan_out=1)
    queue.enqueue("ada", "t0")
    assert len(queue.claim(9)) == 2
    assert queue.claim(9) == []  # from now on the queue is hungry
    assert queue.queue_state()["hungry"] == 1
    queue.call("enqueue", "ada", "t1", options(), b"{}", "covered")
    assert queue.queue_state()["hungry"] == 0


def test_a_queue_with_all_its_webhooks_takes_changes(queue: Queue) -> None:
    for n in range(64):
        add(queue, f"{n:08x}", fan_out=int(n < 15))
    assert add(queue, f"{3:08x}", fan_out=1, url="https://b.example/") == "changed"
    assert add(queue, f"{3:08x}") == "changed"
    assert add(queue, f"{63:08x}", fan_out=1) == "changed"


def test_a_claim_of_copies_says_how_long_their_payloads_are(queue: Queue) -> None:
    add(queue, A, fan_out=1)
    add(queue, B, fan_out=1)
    queue.enqueue("ada", "t1", payload=b"1" * 5000)
    reply = queue.call("claim", "w", 10, "", "", "", random_values=b"\0" * 8000)
    payloads = [task.record[unpack("HEADER", task.record).end :] for task in leased_in(reply)]
    assert payloads == [b"1" * 5000] * 2
