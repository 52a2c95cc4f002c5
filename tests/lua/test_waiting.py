"""Tasks before their time: cancelled, moved to another start, looked at."""

from __future__ import annotations

from typing import Any

import pytest

from .calls import LEASE_MS, START, Listener, Queue, snapshot, unpack


def test_a_waiting_task_that_is_cancelled_never_runs(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b", "c")
    queue.enqueue("ada", "later", delay=50, expires_in=100)
    assert queue.cancel("b", "later", "nobody") == ["ok", "ok", "gone"]
    assert [queue.state(id) for id in ("a", "b", "later")] == ["ready", "cancelled", "cancelled"]
    queue.advance(100)
    queue.tick()
    assert [lease.id for lease in queue.claim(5)] == ["a", "c"]
    counts = queue.queue_state()
    assert (counts["cancelled"], counts["delayed"], counts["expired"]) == (2, 0, 0)
    assert queue.cancel("b", "later") == ["gone", "gone"]


def test_the_id_of_a_cancelled_task_is_remembered(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    queue.cancel("a")
    assert queue.enqueue("ada", "a") == ["duplicate"]


@pytest.mark.parametrize(
    ("action", "state"), [("ack", "done"), ("nack", "cancelled"), ("reject", "cancelled"), ("release", "cancelled")]
)
def test_a_running_task_ends_as_cancelled_unless_it_was_done(queue: Queue, action: str, state: str) -> None:
    queue.enqueue("ada", "a")
    lease = queue.claim()[0]
    assert queue.cancel("a") == ["running"]
    assert queue.state("a") == "leased"
    assert queue.end("extend", lease) == "cancelled"
    assert queue.end(action, lease) == "ok"
    assert queue.state("a") == state
    assert queue.end(action, lease) == "gone", "the same settlement again"
    assert queue.claim() == []


def test_a_cancelled_task_whose_worker_dies_is_not_run_again(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    lease = queue.claim()[0]
    queue.cancel("a")
    queue.advance(LEASE_MS)
    assert queue.tick().reaped == 1
    assert queue.state("a") == "cancelled"
    assert queue.end("ack", lease) == "stale"


def test_the_servers_are_told_to_stop_a_running_task(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b")
    queue.claim()
    with Listener(queue) as listener:
        queue.cancel("b", "a")
        assert listener.heard() == [b"stop a"]


def test_a_delayed_task_is_moved_earlier_later_and_to_now(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b", "c", delay=1000)
    assert queue.reschedule("a", delay=10) == ["ok"]
    assert queue.reschedule("b", start_at=queue.now + 5000) == ["ok"]
    assert queue.reschedule("c") == ["ok"]
    assert [lease.id for lease in queue.claim(5)] == ["c"]
    assert queue.tick().next_due == queue.now + 10
    queue.advance(10)
    queue.tick()
    assert [lease.id for lease in queue.claim(5)] == ["a"]
    queue.advance(4990)
    queue.tick()
    assert [lease.id for lease in queue.claim(5)] == ["b"]


def test_a_ready_task_is_put_off_or_keeps_its_place(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b")
    assert queue.reschedule("a") == ["ok"]
    assert queue.peek("ada") == ["a", "b"]
    assert queue.reschedule("a", delay=50) == ["ok"]
    assert queue.peek("ada") == ["b"]
    assert queue.reschedule("a") == ["ok"]
    assert queue.peek("ada") == ["b", "a"]
    assert [lease.id for lease in queue.claim(5)] == ["b", "a"]


def test_no_more_tasks_are_put_off_than_may_be_delayed(queue: Queue) -> None:
    queue.set_limits("ada", delayed=2)
    queue.enqueue("ada", "late", delay=50)
    queue.enqueue("ada", "a", "b", "c")
    assert queue.reschedule("a", "b", "late", delay=1000) == ["ok", "quota_exceeded", "ok"]
    assert queue.reschedule("c", "b", delay=1000) == ["quota_exceeded"] * 2
    assert queue.reschedule("late") == ["ok"], "there is room again"
    assert queue.reschedule("c", "b", delay=1000) == ["ok", "quota_exceeded"]
    assert (queue.tenant("ada").delayed, queue.peek("ada")) == (2, ["b", "late"])


def test_a_task_between_attempts_is_promoted_with_its_attempts(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    queue.end("nack", queue.claim()[0], 60_000)
    assert queue.reschedule("a") == ["ok"]
    assert queue.claim()[0].attempt == 2


def test_what_cannot_be_moved_stays_as_it_is(queue: Queue) -> None:
    queue.enqueue("ada", "leased")
    queue.claim()
    queue.enqueue("ada", "short", delay=10, expires_in=100)
    queue.enqueue("ada", "dead", max_attempts=1)
    queue.end("reject", queue.claim()[0])
    before = {key: value for key, value in snapshot(queue).items() if not key.endswith(b":queue")}
    assert queue.reschedule("leased", "short", "dead", "nobody", delay=100) == ["running", "expired", "gone", "gone"]
    assert {key: value for key, value in snapshot(queue).items() if not key.endswith(b":queue")} == before


def test_a_moved_start_is_the_one_that_the_worker_is_told(queue: Queue) -> None:
    queue.enqueue("ada", "a", delay=1000)
    queue.reschedule("a", delay=5)
    queue.advance(5)
    queue.tick()
    assert unpack("HEADER", queue.claim()[0].record).start_at == queue.now


def window_of(queue: Queue, id: str = "a") -> tuple[float, float]:
    """Return a task's start and end, less the time."""
    record: Any = queue.client.hget(queue.key("tasks"), id)
    header = unpack("HEADER", record)
    return header.start_at - queue.now, header.expires_at - queue.now


@pytest.mark.parametrize("start", [{}, {"delay": 500}, {"start_at": START + 300}])
def test_an_end_that_counts_from_the_start_moves_with_it(queue: Queue, start: dict[str, Any]) -> None:
    queue.enqueue("ada", "a", after_start=100, payload=b"x" * 5000, **start)
    assert queue.reschedule("a", delay=2000) == ["ok"]
    assert window_of(queue) == (2000, 2100)
    queue.advance(1000)
    assert queue.reschedule("a", start_at=queue.now + 50) == ["ok"]
    assert window_of(queue) == (50, 150)
    assert queue.reschedule("a") == ["ok"]
    assert window_of(queue) == (0, 100)
    assert queue.reschedule("a", delay=10) == ["ok"]
    assert window_of(queue) == (10, 110)
    queue.advance(110)
    queue.tick()
    assert queue.dead()[0].reason == "expired"


def test_an_end_that_counts_from_the_start_is_kept_by_a_task_that_is_ready_now(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b", after_start=100)
    queue.advance(60)
    assert queue.reschedule("a") == ["ok"]
    assert window_of(queue) == (-queue.now, 40)
    assert queue.peek("ada") == ["a", "b"]


def test_a_window_that_is_over_does_not_move(queue: Queue) -> None:
    queue.enqueue("ada", "a", after_start=100)
    queue.advance(100)
    assert queue.reschedule("a", delay=10) == ["expired"]


def test_a_retry_leaves_the_window_and_a_later_start_moves_it(queue: Queue) -> None:
    queue.enqueue("ada", "a", after_start=1000, max_attempts=0)
    queue.end("nack", queue.claim()[0], 500)
    assert window_of(queue) == (-queue.now, 1000)
    assert queue.reschedule("a", delay=1500) == ["ok"]
    queue.advance(1500)
    queue.tick()
    queue.end("nack", queue.claim()[0], 999)
    queue.advance(1000)
    queue.tick()
    assert queue.dead()[0][2:4] == ("expired", 2)


def test_a_replayed_task_whose_window_was_dropped_has_none_when_it_is_moved(queue: Queue) -> None:
    queue.enqueue("ada", "a", after_start=100)
    queue.advance(100)
    queue.tick()
    assert queue.call("replay", "a") == [b"ok"]
    assert queue.reschedule("a", delay=10) == ["ok"]
    assert window_of(queue) == (10, -queue.now)


def test_peek_shows_what_is_next_and_takes_nothing(queue: Queue) -> None:
    queue.enqueue("ada", *"abcde")
    queue.cancel("a", "c")
    assert queue.peek("ada", 2) == ["b", "d"]
    assert queue.peek("bob") == []
    assert queue.queue_state()["ready"] == 3
