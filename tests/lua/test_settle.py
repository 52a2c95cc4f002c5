"""The verb `settle`: how a lease ends, and the fence of (id, lease)."""

from __future__ import annotations

import struct

import pytest

from .calls import FORMATS, LEASE_MS, START, Leased, Queue, snapshot, writes

ACTIONS = ["ack", "nack", "postpone", "reject", "release", "reap", "extend", "take"]


def leased(queue: Queue, id: str = "a", max_attempts: int = 5, expires_in: int = 0) -> Leased:
    """Enqueue one task and lease it."""
    queue.enqueue("ada", id, max_attempts=max_attempts, expires_in=expires_in)
    return queue.claim()[0]


def set_attempts(queue: Queue, id: str, attempt: int, uncounted: int) -> None:
    """Have a leased task be at an attempt, as if so many before it did not count."""
    packed = queue.client.hget(queue.key("runs"), id)
    assert isinstance(packed, bytes)
    at = FORMATS["LEASE"].size - 4  # its last field is `attempt`, and a run goes on with `uncounted_attempts`
    queue.client.hset(queue.key("runs"), id, packed[:at] + struct.pack("<II", attempt, uncounted) + packed[at + 8 :])


def test_ack_forgets_the_task_and_remembers_its_id(queue: Queue) -> None:
    assert queue.end("ack", leased(queue)) == "ok"
    assert queue.tasks("a")[0][:3] == ("done", "", 0)
    assert queue.tenant("ada").done == queue.queue_state()["done"] == 1
    keys = ("runs", "leases", "bundles", "claims", "payloads")
    assert not queue.client.exists(*(queue.key(name) for name in keys))
    assert len(queue.client.hget(queue.key("tasks"), "a") or b"") == FORMATS["MARK"].size


def test_ticks_forget_done_ids_after_one_to_two_minutes(queue: Queue) -> None:
    queue.end("ack", leased(queue))
    over = queue.tick().next_due
    assert queue.now + 60_000 < over <= queue.now + 120_000
    queue.advance(over - queue.now - 1)
    queue.tick()
    assert queue.state("a") == "done"
    queue.advance(1)
    assert queue.tick().next_due == -1
    assert queue.state("a") == "unknown"
    assert not queue.client.exists(queue.key("tasks"), *queue.client.scan_iter(match="*:done:*"))


def test_nack_waits_for_the_given_delay(queue: Queue) -> None:
    assert queue.end("nack", leased(queue), 400, "no route") == "ok"
    known = queue.tasks("a")[0]
    assert (known.state, known.attempt, known.at, known.error) == ("delayed", 1, START + 400, "no route")


def test_nack_with_delay_0_goes_to_the_end_of_the_list(queue: Queue) -> None:
    lease = leased(queue)
    queue.enqueue("ada", "b")
    queue.end("nack", lease, 0)
    assert [lease.id for lease in queue.claim(2)] == ["b", "a"]


@pytest.mark.parametrize(
    ("die", "delays"), [(0.0, [1, 1, 1]), (0.5, [501, 1001, 1501]), (0.999999, [1000, 2000, 3000])]
)
def test_backoff_doubles_up_to_the_cap_with_full_jitter(queue: Queue, die: float, delays: list[int]) -> None:
    queue.configure(retry_base_ms=1000, retry_cap_ms=3000)
    queue.enqueue("ada", "a")
    for delay in delays:
        lease = queue.claim()[0]
        told = queue.call("settle", "nack", "a", lease.lease, "", "", "", random_values=struct.pack("<d", die))
        assert told == [b"ok"]
        assert queue.tasks("a")[0].at == queue.now + delay
        queue.advance(delay)
        queue.tick()


def test_nack_of_the_last_attempt_is_a_dead_letter_that_is_exhausted(queue: Queue) -> None:
    queue.enqueue("ada", "a", max_attempts=2)
    queue.end("nack", queue.claim()[0], 0, "first")
    assert queue.dead() == []
    queue.end("nack", queue.claim()[0], 0, "second")
    assert queue.dead()[0][2:] == ("exhausted", 2, START, "second", "")
    assert queue.state("a") == "dead"


def test_a_task_without_a_limit_of_attempts_stays_until_its_handler_is_done(queue: Queue) -> None:
    queue.configure(max_attempts=2)
    queue.enqueue("ada", "a", max_attempts=0)
    for attempt in range(1, 26):
        lease = queue.claim()[0]
        assert (lease.id, lease.attempt, lease.max_attempts) == ("a", attempt, 0)
        queue.end(("nack", "reap", "release")[attempt % 3], lease, 0)
    assert queue.dead() == []
    queue.end("ack", queue.claim()[0])
    assert queue.state("a") == "done"


def test_a_queue_without_a_limit_of_attempts_gives_it_to_new_tasks_only(queue: Queue) -> None:
    queue.configure(max_attempts=1)
    queue.enqueue("ada", "old")
    queue.configure(max_attempts=0)
    queue.enqueue("ada", "new", priority=3)
    queue.enqueue("ada", "own", max_attempts=1)
    for lease in queue.claim(3):
        queue.end("nack", lease, 0)
    assert [letter.id for letter in queue.dead()] == ["old", "own"]
    assert [lease.max_attempts for lease in queue.claim(3)] == [0]


@pytest.mark.parametrize("drawn", [0.0, 0.999])
def test_the_backoff_of_a_task_without_a_limit_stays_bounded(queue: Queue, drawn: float) -> None:
    """Also where two to the power of the attempts is no number any more."""
    queue.configure(retry_base_ms=1, retry_cap_ms=5)
    queue.enqueue("ada", "a", max_attempts=0)
    lease = queue.claim()[0]
    set_attempts(queue, "a", 1000, 0)
    for _ in range(50):
        told = queue.call("settle", "nack", "a", lease.lease, "", "", "", random_values=struct.pack("<d", drawn))
        assert told == [b"ok"]
        assert 1 <= queue.tasks("a")[0].at - queue.now <= 5
        queue.advance(5)
        queue.tick()
        lease = queue.claim()[0]
    assert lease.attempt == 1050


@pytest.mark.parametrize("end", ["reject", "expire", "cancel"])
def test_a_task_without_a_limit_ends_by_all_else_and_is_replayed_without_one(queue: Queue, end: str) -> None:
    queue.enqueue("ada", "a", max_attempts=0, expires_in=1000)
    lease = queue.claim()[0]
    if end == "reject":
        queue.end("reject", lease, "", "bad")
    else:
        queue.end("release", lease)
    if end == "expire":
        queue.advance(1000)
        queue.tick()
    elif end == "cancel":
        queue.cancel("a")
        assert queue.state("a") == "cancelled"
        return
    assert [letter.reason for letter in queue.dead()] == ["rejected" if end == "reject" else "expired"]
    assert queue.call("replay", "a") == [b"ok"]
    assert [(lease.attempt, lease.max_attempts) for lease in queue.claim()] == [(2, 0)]


def test_reject_is_a_dead_letter_at_once(queue: Queue) -> None:
    queue.end("reject", leased(queue), "", "bad address")
    assert queue.dead()[0][2:] == ("rejected", 1, START, "bad address", "")


@pytest.mark.parametrize("action", ["nack", "reject"])
def test_a_dead_letter_keeps_the_traceback_of_its_last_failure_only(queue: Queue, action: str) -> None:
    queue.enqueue("ada", "a", max_attempts=2)
    queue.end("nack", queue.claim()[0], 0, "first", "first frames")
    queue.end(action, queue.claim()[0], 0, "second", "second frames\n")
    (letter,) = queue.dead()
    assert (letter.error, letter.traceback) == ("second", "second frames\n")
    assert queue.letter("a") == letter
    queue.call("replay", "a")
    queue.end("nack", queue.claim()[0], 0, "third", "third frames")
    queue.end("reap", queue.claim()[0])
    (letter,) = queue.dead()
    assert (letter.reason, letter.error, letter.traceback) == ("lease_lost", "third", "")


def test_a_traceback_is_kept_up_to_8_kib(queue: Queue) -> None:
    queue.end("reject", leased(queue), "", "no", "x" * 8192 + "y")
    assert queue.dead()[0].traceback == "x" * 8192


def test_release_goes_to_the_head_and_forgives_the_attempt(queue: Queue) -> None:
    queue.enqueue("ada", "a", max_attempts=1)
    queue.enqueue("ada", "b")
    for attempt in (1, 2, 3):
        lease = queue.claim()[0]
        assert (lease.id, lease.attempt, lease.max_attempts) == ("a", attempt, attempt)
        queue.end("release", lease)
    queue.end("nack", queue.claim()[0])
    assert queue.dead()[0].reason == "exhausted"


def test_reap_goes_to_the_head_and_counts(queue: Queue) -> None:
    queue.enqueue("ada", "a", max_attempts=2)
    queue.enqueue("ada", "b")
    queue.end("reap", queue.claim()[0])
    lease = queue.claim()[0]
    assert (lease.id, lease.attempt) == ("a", 2)
    queue.end("reap", lease)
    assert queue.dead()[0][2:4] == ("lease_lost", 2)


def test_extend_moves_the_deadline_and_keeps_the_lease(queue: Queue) -> None:
    lease = leased(queue)
    queue.advance(LEASE_MS - 1)
    assert queue.end("extend", lease) == "ok"
    assert queue.tasks("a")[0].at == START + 2 * LEASE_MS - 1
    queue.advance(2)
    assert queue.tick().reaped == 0
    assert queue.end("ack", lease) == "ok"


@pytest.mark.parametrize("ending", ["ack", "nack", "reject", "release"])
def test_who_settled_already_is_told_gone_and_nothing_changes(queue: Queue, ending: str) -> None:
    lease = leased(queue)
    queue.end(ending, lease, 1000)
    before = snapshot(queue), writes(queue)
    for action in ACTIONS:
        assert queue.end(action, lease) == "gone", action
    assert (snapshot(queue), writes(queue)) == before


@pytest.mark.parametrize("fate", ["waits", "leased", "done", "dead"])
def test_who_lost_the_lease_is_told_stale_and_nothing_changes(queue: Queue, fate: str) -> None:
    lost = leased(queue, max_attempts=2)
    queue.advance(LEASE_MS)
    queue.tick()
    if fate != "waits":
        (lease,) = queue.claim()
        if fate != "leased":
            queue.end("ack" if fate == "done" else "nack", lease)
    before = snapshot(queue)
    for action in ACTIONS:
        assert queue.end(action, lost) == "stale", action
    assert snapshot(queue) == before


def test_who_lost_the_last_lease_is_told_stale(queue: Queue) -> None:
    lost = leased(queue, max_attempts=1)
    queue.advance(LEASE_MS)
    queue.tick()
    assert queue.end("ack", lost) == "stale"
    assert queue.dead()[0].reason == "lease_lost"


def test_a_number_that_never_was_is_stale_and_an_unknown_id_is_gone(queue: Queue) -> None:
    leased(queue)
    assert queue.settle(("ack", "a", 0), ("ack", "a", 2), ("ack", "nobody", 1)) == ["stale", "stale", "gone"]
    assert queue.state("a") == "leased"


def test_a_lease_past_its_deadline_holds_until_it_is_reaped(queue: Queue) -> None:
    lease = leased(queue)
    queue.advance(10 * LEASE_MS)
    assert queue.end("ack", lease) == "ok"


def test_one_call_settles_many_each_by_itself(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b", "c", "d")
    queue.claim(4)
    outcomes = queue.settle(("ack", "a", 1), ("nack", "b", 1, 0), ("ack", "b", 1), ("extend", "c", 1), ("ack", "x", 1))
    assert outcomes == ["ok", "ok", "gone", "ok", "gone"]
    assert [known.state for known in queue.tasks("a", "b", "c", "d")] == ["done", "ready", "leased", "leased"]


def test_a_lease_that_stands_twice_in_one_call_is_settled_once(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b")
    queue.claim(2)
    assert queue.settle(("ack", "a", 1), ("ack", "a", 1), ("nack", "b", 1), ("ack", "b", 1)) == [
        "ok",
        "gone",
        "ok",
        "gone",
    ]
    state = queue.queue_state()
    assert (state["done"], state["leased"], state["delayed"]) == (1, 0, 1)


def test_the_window_goes_on_while_a_retry_waits(queue: Queue) -> None:
    queue.end("nack", leased(queue, expires_in=500), 1000)
    queue.advance(500)
    assert queue.tick().expired == 1
    assert queue.dead()[0][2:4] == ("expired", 1)


def test_a_lease_outlives_the_window(queue: Queue) -> None:
    lease = leased(queue, expires_in=500)
    queue.advance(600)
    assert queue.tick().expired == 0
    assert queue.end("ack", lease) == "ok"


def test_an_endless_error_is_cut(queue: Queue) -> None:
    queue.end("reject", leased(queue), "", "x" * 70_000)
    assert queue.dead()[0].error == "x" * 2048


def test_two_hundred_and_fifty_thousand_releases_do_not_wrap_the_attempt(queue: Queue) -> None:
    """Attempts are 32 bits wide: a worker that gives everything back makes none count again."""
    leased(queue)
    set_attempts(queue, "a", 250_000, 249_999)
    queue.settle(("release", "a", 1))
    lease = queue.claim()[0]
    assert (lease.attempt, lease.max_attempts) == (250_001, 250_005)


@pytest.mark.parametrize("how", ["released", "replayed"])
def test_attempts_that_do_not_count_make_no_backoff_longer(queue: Queue, how: str) -> None:
    queue.configure(retry_base_ms=1000, retry_cap_ms=10**6)
    queue.enqueue("ada", "x", max_attempts=3)
    for _ in range(3):
        queue.end("release" if how == "released" else "nack", queue.claim()[0], 0 if how == "replayed" else "")
    if how == "replayed":
        assert queue.call("replay", "x") == [b"ok"]
    (lease,) = queue.claim()
    assert lease.attempt == 4
    almost_one = struct.pack("<d", 0.999)
    queue.call("settle", "nack", "x", lease.lease, "", "", "", random_values=almost_one)
    assert queue.tasks("x")[0].at == queue.now + 1000


def test_a_connection_that_lost_a_lease_to_another_does_not_give_it_back(queue: Queue) -> None:
    queue.enqueue("t", "a")
    (lease,) = queue.claim(1)
    number = lease.lease
    assert queue.settle(("take", "a", number)) == [f"ok 1 {LEASE_MS}"]
    for action in ("release", "reap", "extend", "ack"):
        assert queue.settle((action, "a", f"{number}/0")) == ["stale"]
    assert queue.settle(("extend", "a", number), ("extend", "a", f"{number}/1")) == ["ok", "ok"]
    assert queue.settle(("take", "a", f"{number}/0"), ("take", "a", f"{number}/1")) == ["stale", f"ok 2 {LEASE_MS}"]
    assert queue.settle(("reap", "a", f"{number}/1"), ("reap", "a", f"{number}/2")) == ["stale", "ok"]
    (lease,) = queue.claim(1)
    assert queue.settle(("release", "a", f"{lease.lease}/0")) == ["ok"]  # the next lease begins anew


def test_the_count_of_how_often_a_lease_was_taken_goes_round(queue: Queue) -> None:
    queue.enqueue("t", "a")
    (lease,) = queue.claim(1)
    outcomes = queue.settle(*[("take", "a", lease.lease)] * 256)
    assert [outcomes[0], *outcomes[253:]] == [f"ok {times} {LEASE_MS}" for times in (1, 254, 255, 1)]


def test_a_cancelled_lease_that_is_taken_over_is_known_as_such(queue: Queue) -> None:
    queue.enqueue("t", "a")
    (lease,) = queue.claim(1)
    queue.call("cancel", "", "a")
    assert queue.settle(("take", "a", lease.lease)) == [f"cancelled 1 {LEASE_MS}"]


def test_a_lease_is_renewed_for_no_less_than_it_began_with(queue: Queue) -> None:
    queue.configure(lease_ms=30_000)
    queue.enqueue("t", "a", "b", "c")
    first, other = queue.claim(2)
    queue.configure(lease_ms=1000)
    (short,) = queue.claim()
    for _ in range(4):  # each comes when a third of what its worker was told is over
        queue.advance(10_000)
        assert queue.end("extend", first) == "ok"
    queue.tick()
    assert queue.queue_state()["leased"] == 1
    assert queue.end("extend", other) == "stale", "its 30 s are over"
    assert queue.end("extend", short) == "stale"
    queue.configure(lease_ms=60_000)
    assert queue.settle(("take", first.id, first.lease)) == ["ok 1 60000"]
    queue.configure(lease_ms=1000)
    queue.advance(59_999)
    assert queue.tick().reaped == 0
    queue.advance(1)
    assert queue.tick().reaped == 1


def test_a_lost_lease_is_charged_up_to_its_last_renewal_whatever_was_changed(queue: Queue) -> None:
    queue.configure(lease_ms=30_000)
    queue.enqueue("t", "a", "b")
    renewed, _ = queue.claim(2)
    queue.advance(5_000)
    assert queue.end("extend", renewed) == "ok"
    queue.configure(lease_ms=100)
    queue.advance(60_000)
    assert queue.tick().reaped == 2
    assert queue.tenant("t").delivered == 5_000 + 1


def test_what_is_no_number_of_a_lease_opens_none(queue: Queue) -> None:
    queue.enqueue("t", "a")
    queue.claim(1)
    for fence in ("", "x", "1/", "/0", "1/x", "1.5/0", "-1/0", "1/0/0"):
        assert queue.settle(("ack", "a", fence)) == ["stale"], fence
