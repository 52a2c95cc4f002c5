"""Batches: callback tasks, large ones that are cancelled, long lists; and results that are kept."""

from __future__ import annotations

import pytest

from fairq.model.queue.limits import BATCH_BYTES, bytes_of

from .calls import LEASE_MS, START, Leased, Listener, Queue, words
from .keyspace import Keyspace

DAY = 86_400_000


def test_a_task_that_takes_the_id_of_a_callback_is_the_only_one(queue: Queue) -> None:
    queue.open_batch("b", complete="after", success="done")
    queue.enqueue("ada", f"b-complete-{START}", payload=b"1" * 5000)
    queue.end("ack", queue.claim()[0])
    queue.advance(300_000)
    queue.tick()
    assert queue.state(f"b-complete-{START}") == "unknown", "its payload has gone with it, and the callback's"
    queue.call("close_batch", "b")
    assert (queue.state(f"b-complete-{START}"), queue.state(f"b-success-{START}")) == ("unknown", "ready")


@pytest.mark.parametrize(("event", "action"), [("complete", "ack"), ("success", "ack"), ("death", "reject")])
def test_the_payload_of_a_callback_whose_id_is_taken_goes_with_its_batch(queue: Queue, event: str, action: str) -> None:
    queue.open_batch("b", complete="after", success="done", death="dead")
    queue.enqueue("ada", f"b-{event}-{START}", delay=1)
    queue.enqueue("ada", "a", batch="b")
    queue.call("close_batch", "b")
    queue.end(action, queue.claim()[0])
    Keyspace(queue).check()


def test_ids_of_callback_tasks_are_no_longer_than_others_may_be(queue: Queue) -> None:
    queue.now = 2**52
    queue.open_batch("b" * 229, complete='"c"')
    queue.call("close_batch", "b" * 229)
    assert [len(id) for id in queue.client.hkeys(queue.key("tasks"))] == [255]


def test_a_page_of_batches_is_bounded_by_what_it_reads(queue: Queue) -> None:
    for n in range(100):
        queue.open_batch(f"a{n}", complete="x" * 60_000)
    for n in range(2_000):
        queue.open_batch(f"b{n}", tenant="bob")
    _, *rows = queue.call("list_batches", "", "", "0", 500)
    assert len(rows) // 2 < 600, "a scan returns a little more than it is asked for"
    queue.call("list_batches", "nobody", "", "0", 1)
    cursor, calls = b"0", 0
    while calls == 0 or cursor != b"0":
        cursor, *rows = queue.call("list_batches", "nobody", "", cursor, 500)
        assert rows == []
        calls += 1
    assert 4 < calls < 100, "a call looks at some 500 batches"


@pytest.mark.parametrize(("how", "notices"), [("ack", 1), ("reject", 1), ("nack", 0)])
def test_a_caller_that_waits_for_a_result_hears_of_the_end(queue: Queue, how: str, notices: int) -> None:
    queue.enqueue("ada", "a", result_ttl=1000)
    queue.enqueue("ada", "plain")
    with Listener(queue) as listener:
        for lease in queue.claim(5):
            queue.end(how, lease)
        heard = listener.heard()
    assert heard.count(b"end a") == notices
    assert b"end plain" not in heard


def test_a_lease_that_runs_out_while_its_batch_is_being_cancelled_is_cancelled_once(queue: Queue) -> None:
    queue.open_batch("b")
    queue.enqueue("ada", *(f"w{n}" for n in range(64)), batch="b")
    queue.enqueue("ada", "urgent", batch="b", priority=0)
    (lease,) = queue.claim()
    assert lease.id == "urgent"
    queue.advance(LEASE_MS)
    queue.call("close_batch", "b", "cancel")  # 64 of its 65 tasks: the last is left to the tick, which reaps it first
    assert queue.queue_state()["leased"] == 1
    assert queue.tick().reaped == 1
    assert queue.state("urgent") == "cancelled"
    assert queue.end("ack", lease) == "stale"
    assert queue.claim(10) == []
    progress = queue.batch("b")
    assert progress
    assert (progress.state, progress.cancelled, progress.running) == ("complete", 65, 0)
    state = queue.queue_state()
    assert (state["leased"], state["ready"]) == (0, 0)
    queue.advance(120_000)  # in which their ids are remembered
    assert queue.tenant("ada").bytes == bytes_of("b", BATCH_BYTES)


def test_no_task_of_a_batch_that_is_being_cancelled_is_given_a_place(queue: Queue) -> None:
    queue.open_batch("b", max_running=10)
    for first in range(0, 600, 300):
        queue.enqueue("ada", *(f"w{n}" for n in range(first, first + 300)), batch="b")
    queue.call("close_batch", "b", "cancel")
    assert queue.claim(10) == []
    while queue.tick().next_due == queue.now:
        pass
    progress = queue.batch("b")
    assert progress
    assert (progress.state, progress.cancelled) == ("complete", 600)


def dead_in_batch(queue: Queue, complete: str = "", success: str = "", death: str = "") -> tuple[int, int]:
    """Complete a batch with one task that is done and two that are dead; returns its counts."""
    queue.open_batch("b", max_running=1, complete=complete, success=success, death=death)
    queue.enqueue("ada", "good", "bad1", "bad2", batch="b")
    queue.call("close_batch", "b")
    for how in ("ack", "reject", "reject"):
        end_next(queue, how)
    return counts(queue)


def end_next(queue: Queue, how: str) -> None:
    """End the next task of the batch, after callbacks of it, which are acknowledged."""
    while (leases := queue.claim()) and leases[0].id.startswith("b-"):
        queue.end("ack", leases[0])
    for lease in leases:
        queue.end(how, lease)


def counts(queue: Queue) -> tuple[int, int]:
    progress = queue.batch("b")
    assert progress
    assert progress.running == 0
    assert (progress.state == "complete") == (progress.done + progress.dead + progress.cancelled == progress.total)
    return progress.done, progress.dead


def succeeded(queue: Queue) -> bool:
    return queue.state(f"b-success-{START}") != "unknown"


def test_a_batch_succeeds_once_when_its_last_dead_task_was_replayed(queue: Queue) -> None:
    assert dead_in_batch(queue, complete="all", success="good", death="bad") == (1, 2)
    assert words(queue.call("replay", "bad1")) == words(queue.call("replay", "bad2")) == ["ok"]
    assert words(queue.call("replay", "bad2")) == ["gone"], "it waits already"
    assert counts(queue) == (1, 0)
    end_next(queue, "ack")
    end_next(queue, "reject")
    assert (counts(queue), succeeded(queue)) == ((2, 1), False)
    queue.call("replay", "bad2")
    end_next(queue, "ack")
    assert (counts(queue), succeeded(queue)) == ((3, 0), True)
    end_next(queue, "ack")
    assert words(queue.call("replay", "bad1", "bad2")) == ["gone", "gone"]
    assert queue.claim(10) == [], "each callback came once"
    assert queue.queue_state()["enqueued"] == 3 + 3
    queue.now += DAY - 1
    assert queue.batch("b") is not None, "it is known for a day after it was complete again"
    for _ in range(9):
        queue.advance(1)
        queue.tick()
    assert queue.batch("b") is None
    Keyspace(queue).check()


def read(queue: Queue, callback: Leased) -> list[list[object]]:
    """Read the pages of a batch's results."""
    pages, cursor = list[list[object]](), b""
    while cursor != b"0":
        cursor, *page = queue.call("batch_results", callback.id, callback.lease, cursor or 0)
        pages.append(page)
    return pages


@pytest.mark.parametrize(("result", "pages"), [("1", [500, 500, 2]), ("x" * 262_144, [4] * 250 + [2])])
def test_the_results_of_a_batch_come_in_bounded_pages_and_in_order(queue: Queue, result: str, pages: list[int]) -> None:
    queue.open_batch("b", complete="sum")
    ids = [f"a{n}" for n in range(1002)]
    for at in range(0, len(ids), 500):
        queue.enqueue("ada", *ids[at : at + 500], batch="b", result_ttl=DAY)
    leases = [lease for _ in range(11) for lease in queue.claim(100)]
    for lease in reversed(leases):
        queue.end("ack", lease, "", result)
    queue.call("close_batch", "b")
    (callback,) = queue.claim()
    found = read(queue, callback)
    assert [len(page) // 2 for page in found] == pages
    assert [id for page in found for id in page[::2]] == [id.encode() for id in ids]
    assert {said for page in found for said in page[1::2]} == {result.encode()}


@pytest.mark.parametrize("batch", ["", "other"])
def test_the_result_of_a_later_task_of_a_members_id_is_of_no_earlier_batch(queue: Queue, batch: str) -> None:
    for name in ("b", "other"):
        queue.open_batch(name, complete="sum")
    queue.enqueue("ada", "a", batch="b", result_ttl=DAY)
    queue.end("ack", queue.claim()[0], "", "first")
    queue.call("close_batch", "b")
    (callback,) = queue.claim()
    queue.advance(300_000)
    queue.tick()
    assert queue.settle(("extend", callback.id, callback.lease)) == ["stale"], "it has run out"
    queue.enqueue("ada", "a", batch=batch, result_ttl=DAY, priority=0)
    late = queue.claim()[0]
    (callback,) = queue.claim()
    queue.end("ack", late, "", "second")
    assert read(queue, callback) == [[b"a", None]]


def test_the_names_of_results_go_with_their_batch_and_leave_their_room(queue: Queue) -> None:
    queue.open_batch("b", complete="sum")
    queue.enqueue("ada", "a", batch="b", result_ttl=1)
    queue.end("ack", queue.claim()[0])
    queue.call("close_batch", "b")
    queue.end("ack", queue.claim()[0])
    Keyspace(queue).check()
    queue.advance(DAY + 60_001)
    queue.tick()
    assert not queue.client.exists(queue.key("batch_results:b"))
    Keyspace(queue).check()
