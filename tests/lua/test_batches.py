"""Batches: limits, completion exactly once, callbacks, cancellation; and results that are kept."""

from __future__ import annotations

import pytest

from fairq.model.queue.limits import bytes_of

from .calls import LEASE_MS, START, Listener, Queue

DAY_MS = 86_400_000


def run(queue: Queue, limit: int = 100, action: str = "ack") -> list[str]:
    """Claim tasks and end them all in one way; returns their ids."""
    leases = queue.claim(limit)
    for lease in leases:
        assert queue.end(action, lease) == "ok"
    return [lease.id for lease in leases]


def test_a_limit_holds_the_others_until_one_has_ended(queue: Queue) -> None:
    assert queue.open_batch("b", max_running=2) == "ok"
    queue.enqueue("ada", *"wxyz", batch="b")
    assert [queue.state(id) for id in "wxyz"] == ["ready", "ready", "pending", "pending"]
    assert (queue.tenant("ada").pending, queue.queue_state()["pending"]) == (2, 2)
    first, second = queue.claim(10)
    assert queue.claim(10) == []
    queue.end("ack", first)
    assert [lease.id for lease in queue.claim(10)] == ["y"]
    queue.end("ack", second)
    assert [lease.id for lease in queue.claim(10)] == ["z"]


@pytest.mark.parametrize("how", ["release", "reap", "nack"])
def test_a_limit_holds_when_workers_die_and_attempts_fail(queue: Queue, how: str) -> None:
    queue.open_batch("b", max_running=1)
    queue.enqueue("ada", "x", "y", batch="b")
    lease = queue.claim(5)[0]
    if how == "reap":
        queue.advance(LEASE_MS)
        queue.tick()
    else:
        queue.end(how, lease, 0)
    assert [lease.id for lease in queue.claim(5)] == ["x"]
    assert queue.claim(5) == []


def test_a_task_that_waits_for_its_next_attempt_gives_its_place_to_another(queue: Queue) -> None:
    queue.open_batch("b", max_running=1)
    queue.enqueue("ada", "x", "y", batch="b")
    queue.end("nack", queue.claim(5)[0], 1000)
    assert run(queue) == ["y"]
    queue.advance(1000)
    queue.tick()
    assert run(queue) == ["x"]


def test_the_most_urgent_of_the_held_goes_first(queue: Queue) -> None:
    queue.open_batch("b", max_running=1)
    queue.enqueue("ada", "now", "later", batch="b")
    queue.enqueue("ada", "urgent", batch="b", priority=0)
    assert [id for _ in range(3) for id in run(queue)] == ["now", "urgent", "later"]


def test_two_batches_take_turns_and_do_not_share_a_limit(queue: Queue) -> None:
    queue.open_batch("b", max_running=1)
    queue.open_batch("c", max_running=2)
    queue.enqueue("ada", "b1", "b2", batch="b")
    queue.enqueue("ada", "c1", "c2", "c3", batch="c")
    assert [lease.id for lease in queue.claim(10)] == ["b1", "c1", "c2"]


def test_a_batch_is_complete_when_it_is_closed_and_all_have_ended(queue: Queue) -> None:
    queue.open_batch("b", complete='"c"', success='"s"', death='"d"')
    queue.enqueue("ada", "x", "y", batch="b")
    assert run(queue, 1) == ["x"]
    assert queue.call("close_batch", "b") == b"open"
    assert queue.batch("b").state == "closed"  # type: ignore[union-attr]
    assert run(queue) == ["y"]
    done = queue.batch("b")
    assert done is not None
    assert (done.state, done.total, done.done, done.completed_at) == ("complete", 2, 2, START)
    assert run(queue) == [f"b-complete-{START}", f"b-success-{START}"]
    assert queue.call("close_batch", "b") == b"complete"
    assert queue.claim(5) == [], "once"


def test_an_empty_batch_is_complete_when_it_is_closed(queue: Queue) -> None:
    queue.open_batch("b", complete='"c"')
    queue.call("close_batch", "b")
    assert run(queue) == [f"b-complete-{START}"]


def test_a_task_that_takes_the_id_of_a_callback_is_the_only_one(queue: Queue) -> None:
    queue.open_batch("b", complete="after", success="done")
    queue.enqueue("ada", f"b-complete-{START}", payload=b"1" * 5000)
    queue.end("ack", queue.claim()[0])
    queue.advance(300_000)
    queue.tick()
    assert queue.state(f"b-complete-{START}") == "unknown", "its payload has gone with it, and the callback's"
    queue.call("close_batch", "b")
    assert (queue.state(f"b-complete-{START}"), queue.state(f"b-success-{START}")) == ("unknown", "ready")


def test_ids_of_callback_tasks_are_no_longer_than_others_may_be(queue: Queue) -> None:
    queue.now = 2**52
    queue.open_batch("b" * 229, complete='"c"')
    queue.call("close_batch", "b" * 229)
    assert [len(id) for id in queue.client.hkeys(queue.key("tasks"))] == [255]


def test_a_dead_task_calls_back_once_and_spoils_success(queue: Queue) -> None:
    queue.open_batch("b", complete='"c"', success='"s"', death='"d"')
    queue.enqueue("ada", "x", "y", "z", batch="b")
    run(queue, 2, "reject")
    queue.call("close_batch", "b")
    assert set(run(queue)) == {"z", f"b-death-{START}"}
    assert run(queue) == [f"b-complete-{START}"]


def test_expired_and_cancelled_tasks_are_counted(queue: Queue) -> None:
    queue.open_batch("b")
    queue.enqueue("ada", "short", batch="b", expires_in=10)
    queue.enqueue("ada", "x", "later", batch="b")
    queue.cancel("later")
    queue.call("close_batch", "b")
    queue.advance(10)
    queue.tick()
    run(queue)
    assert queue.batch("b") == ("complete", "ada", 0, 3, 0, 1, 1, 1, 1, START, START + 10)


def test_an_expired_task_that_is_replayed_is_neither_dead_nor_expired(queue: Queue) -> None:
    def dead_and_expired() -> tuple[int, int]:
        found = queue.batch("b")
        assert found
        return found.dead, found.expired

    queue.open_batch("b")
    queue.enqueue("ada", "x", batch="b")
    run(queue, 1, "reject")
    queue.enqueue("ada", "short", batch="b", expires_in=10)
    queue.advance(10)
    queue.tick()
    assert dead_and_expired() == (2, 1)
    queue.call("replay", "short")
    assert dead_and_expired() == (1, 0)
    queue.call("replay", "x")
    assert dead_and_expired() == (0, 0)


def test_batches_are_listed_page_by_page_of_a_tenant_and_in_a_state(queue: Queue) -> None:
    for n in range(130):
        queue.open_batch(f"a{n}")
        queue.open_batch(f"b{n}", tenant="bob")
    queue.enqueue("ada", "x", batch="a1")
    for name in ("a0", "a1", "b0"):
        queue.call("close_batch", name)
    assert len(queue.list_batches(count=3)) == 260
    assert queue.list_batches("bob").keys() == {f"b{n}" for n in range(130)}
    assert queue.list_batches(state="closed") == {"a1": queue.batch("a1")}
    assert queue.list_batches("ada", "complete") == {"a0": queue.batch("a0")}
    assert queue.list_batches("cyd") == {}
    assert len(queue.list_batches("ada", "open", count=500)) == 128


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


def test_a_replayed_letter_of_an_unfinished_batch_counts_again(queue: Queue) -> None:
    queue.open_batch("b", max_running=1)
    queue.enqueue("ada", "x", "y", batch="b")
    run(queue, 1, "reject")
    lease = queue.claim(1)[0]
    queue.call("close_batch", "b")
    queue.call("replay", "x")
    assert queue.state("x") == "pending"
    queue.end("ack", lease)
    assert queue.batch("b").state == "closed"  # type: ignore[union-attr]
    run(queue)
    assert queue.batch("b")[:7] == ("complete", "ada", 1, 2, 0, 2, 0)  # type: ignore[index]


def test_what_happens_after_completion_changes_nothing(queue: Queue) -> None:
    queue.open_batch("b", max_running=1)
    queue.enqueue("ada", "x", batch="b")
    run(queue, 1, "reject")
    queue.call("close_batch", "b")
    before = queue.batch("b")
    queue.call("replay", "x")
    assert run(queue) == ["x"]
    assert queue.batch("b") == before
    assert before is not None
    assert before.state == "complete"


def test_a_cancelled_batch_ends_with_its_running_tasks(queue: Queue) -> None:
    queue.open_batch("b", max_running=2)
    queue.enqueue("ada", *(f"x{n}" for n in range(400)), batch="b")
    queue.enqueue("ada", *(f"y{n}" for n in range(400)), batch="b", delay=50)
    first, second = queue.claim(5)
    assert queue.call("cancel_batch", "b") == b"open"
    while queue.tick().next_due == queue.now:
        pass
    assert (queue.queue_state()["cancelled"], queue.queue_state()["pending"], queue.queue_state()["delayed"]) == (
        798,
        0,
        0,
    )
    assert queue.end("extend", first) == "cancelled"
    queue.end("ack", first)
    queue.end("release", second)
    assert queue.batch("b")[:8] == ("complete", "ada", 2, 800, 0, 1, 0, 799)  # type: ignore[index]


def test_opening_adding_and_closing_again_change_nothing(queue: Queue) -> None:
    queue.open_batch("b", max_running=3)
    assert queue.open_batch("b", max_running=9) == "duplicate"
    assert queue.enqueue("ada", "x", batch="b") == ["ok"]
    assert queue.enqueue("ada", "x", batch="b") == ["duplicate"]
    assert [queue.call("close_batch", "b") for _ in "12"] == [b"open", b"closed"]
    assert queue.enqueue("ada", "x", batch="b") == ["duplicate"], "the same call again, its answer was lost"
    assert queue.batch("b")[:4] == ("closed", "ada", 3, 1)  # type: ignore[index]


def test_a_batch_is_forgotten_a_day_after_it_was_complete(queue: Queue) -> None:
    queue.open_batch("b")
    queue.call("close_batch", "b")
    assert queue.tick().next_due == START + DAY_MS
    queue.advance(DAY_MS)
    queue.tick()
    assert queue.batch("b") is None
    assert queue.tick().next_due == -1


def test_a_result_is_kept_as_long_as_was_asked(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b", result=1000)
    queue.enqueue("ada", "plain")
    assert queue.call("claim", "w", 1, random_values=b"\0" * 800)[3] == [b"a"], "the worker is told"
    for lease in queue.claim(5):
        queue.end("ack_with_result" if lease.id == "plain" else "ack", lease, "", '{"x": 1}')
    queue.settle(("ack_with_result", "a", 1, "", '{"x": 1}'))
    assert queue.call("results", "a", "b", "plain") == [b'{"x": 1}', b"null", None]
    queue.advance(999)
    assert queue.call("results", "a") == [b'{"x": 1}']
    queue.advance(1)
    assert queue.call("results", "a") == [None]


@pytest.mark.parametrize(("how", "told"), [("ack", 1), ("reject", 1), ("nack", 0)])
def test_who_waits_for_a_result_is_told_of_the_end(queue: Queue, how: str, told: int) -> None:
    queue.enqueue("ada", "a", result=1000)
    queue.enqueue("ada", "plain")
    with Listener(queue) as listener:
        for lease in queue.claim(5):
            queue.end(how, lease)
        heard = listener.heard()
    assert heard.count(b"end a") == told
    assert b"end plain" not in heard


def test_a_lease_that_runs_out_while_its_batch_is_being_cancelled_is_cancelled_once(queue: Queue) -> None:
    queue.open_batch("b")
    queue.enqueue("ada", *(f"w{n}" for n in range(64)), batch="b")
    queue.enqueue("ada", "urgent", batch="b", priority=0)
    (lease,) = queue.claim()
    assert lease.id == "urgent"
    queue.advance(LEASE_MS)
    queue.call("cancel_batch", "b")  # 64 of its 65 tasks: the last one is left to the tick, which reaps it first
    assert queue.queue_state()["leased"] == 1
    assert queue.tick().reaped == 1
    assert queue.state("urgent") == "cancelled"
    assert queue.end("ack", lease) == "stale"
    assert queue.claim(10) == []
    progress = queue.batch("b")
    assert progress
    assert (progress.state, progress.cancelled, progress.running) == ("complete", 65, 0)
    assert (queue.queue_state()["leased"], queue.queue_state()["ready"], queue.tenant("ada").bytes) == (
        0,
        0,
        bytes_of("b", 0),
    )


def test_no_task_of_a_batch_that_is_being_cancelled_is_given_a_place(queue: Queue) -> None:
    queue.open_batch("b", max_running=10)
    for first in range(0, 600, 300):
        queue.enqueue("ada", *(f"w{n}" for n in range(first, first + 300)), batch="b")
    queue.call("cancel_batch", "b")
    assert queue.claim(10) == []
    while queue.tick().next_due == queue.now:
        pass
    progress = queue.batch("b")
    assert progress
    assert (progress.state, progress.cancelled) == ("complete", 600)


def test_a_task_that_has_an_id_again_is_not_told_the_result_of_the_one_before(queue: Queue) -> None:
    queue.enqueue("ada", "a", result=10**7)
    queue.end("ack_with_result", queue.claim()[0], "", "1")
    assert queue.call("results", "a") == [b"1"]
    queue.advance(200_000)
    queue.tick()  # the id is forgotten, the result is not
    assert queue.enqueue("ada", "a", result=10**7) == ["ok"]
    assert queue.call("results", "a") == [None]
    queue.end("ack_with_result", queue.claim()[0], "", "2")
    assert queue.call("results", "a") == [b"2"]
    queue.advance(200_000)
    queue.tick()
    assert queue.enqueue("ada", "a") == ["ok"]
    assert queue.cancel("a") == ["ok"]
    assert queue.call("results", "a") == [None], "it was cancelled, and has no result"


def test_a_result_whose_time_was_over_is_not_told_of_the_next_task_where_the_clock_goes_back(queue: Queue) -> None:
    queue.enqueue("ada", "a", result=1000)
    queue.end("ack_with_result", queue.claim()[0], "", "1")
    queue.advance(200_000)
    queue.tick()  # the id is forgotten; the store, whose clock stands still here, has the result yet
    assert queue.enqueue("ada", "a") == ["ok"]
    queue.advance(-199_500)
    assert queue.call("results", "a") == [None]
