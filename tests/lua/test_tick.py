"""The verb `tick`: what time does to tasks."""

from __future__ import annotations

import pytest

from .calls import LEASE_MS, START, Queue, writes


def test_a_due_task_is_promoted_at_its_start_and_not_before(queue: Queue) -> None:
    queue.enqueue("ada", "a", delay=100)
    queue.advance(99)
    assert queue.tick().promoted == 0
    assert queue.claim() == []
    queue.advance(1)
    ticked = queue.tick()
    assert (ticked.promoted, ticked.ready) == (1, 1)
    assert queue.claim()[0].id == "a"


def test_a_tick_says_when_the_next_one_will_find_work(queue: Queue) -> None:
    assert queue.tick().next_due == -1
    queue.enqueue("ada", "a", delay=900)
    queue.enqueue("bob", "b", delay=700)
    assert queue.tick().next_due == START + 700
    queue.enqueue("cyd", "c", expires_in=600)
    assert queue.tick().next_due == START + 600
    queue.configure(lease_ms=500)
    assert queue.claim()[0].id == "c"
    assert queue.tick().next_due == START + 500
    queue.settle(("reject", "c", 1))
    queue.configure(dead_keep_ms=1000)
    queue.advance(900)
    assert queue.tick().next_due == START + 1000


def test_a_tick_that_left_work_says_now(queue: Queue) -> None:
    for n in range(60):
        queue.enqueue(f"t{n}", f"id{n}", delay=1)
    queue.advance(50)
    ticked = queue.tick(500)
    assert (ticked.promoted, ticked.next_due) == (50, queue.now)
    ticked = queue.tick(500)
    assert (ticked.promoted, ticked.next_due) == (10, -1)


def test_a_tick_that_finds_nothing_writes_nothing(queue: Queue) -> None:
    queue.enqueue("ada", "a", delay=100, expires_in=900)
    queue.enqueue("bob", "b")
    queue.end("reject", queue.claim()[0])
    before = writes(queue)
    assert queue.tick()[3:] == (0, 0, 0, 0, 0, 0)
    assert writes(queue) == before


def test_a_herd_of_one_tenant_does_not_hold_up_the_others(queue: Queue) -> None:
    for batch in range(3):
        queue.enqueue("herd", *(f"herd{batch}-{n}" for n in range(400)), delay=10)
    queue.enqueue("small", "small", delay=11)
    queue.advance(11)
    assert queue.tick(100).promoted == 51
    assert queue.state("small") == "ready"
    total = 51
    while total < 1201:
        total += queue.tick(100).promoted
    assert queue.queue_state()["delayed"] == 0


def test_a_waiting_task_expires_at_its_end_wherever_it_waits(queue: Queue) -> None:
    queue.enqueue("ada", "is_on_wake_list", expires_in=100)
    queue.enqueue("ada", "kept")
    queue.enqueue("ada", "delayed", delay=50, expires_at=START + 100)
    queue.enqueue("bob", "far", delay=5000, expires_in=9000)
    queue.advance(99)
    assert queue.tick().expired == 0
    queue.advance(1)
    assert queue.tick().expired == 2
    assert [letter[:1] + letter[2:] for letter in queue.dead()] == [
        ("delayed", "expired", 0, START + 100, "", ""),
        ("is_on_wake_list", "expired", 0, START + 100, "", ""),
    ]
    assert [lease.id for lease in queue.claim(5)] == ["kept"]
    assert queue.queue_state()["delayed"] == 1


def test_a_task_whose_start_and_end_have_both_passed_is_never_served(queue: Queue) -> None:
    queue.enqueue("ada", "a", delay=10, expires_at=START + 20)
    queue.advance(1000)
    ticked = queue.tick()
    assert (ticked.promoted, ticked.expired) == (1, 1)
    assert queue.claim() == []
    assert queue.state("a") == "dead"


def test_a_tenant_whose_tasks_have_expired_is_not_served(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b", expires_in=10)
    queue.advance(10)
    queue.tick()
    assert not queue.client.exists(queue.key("ready:ada"))
    assert queue.tenant("ada").is_eligible == 0


def test_a_lease_is_reaped_at_its_deadline_and_not_before(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    queue.claim()
    queue.advance(LEASE_MS - 1)
    assert queue.tick().reaped == 0
    queue.advance(1)
    assert queue.tick().reaped == 1
    assert queue.claim()[0].attempt == 2


def test_reaped_tasks_come_back_in_their_order_before_the_others(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b", "c", "d")
    queue.claim(2)
    queue.advance(1)
    queue.claim(1)
    queue.advance(LEASE_MS)
    queue.tick()
    assert [lease.id for lease in queue.claim(4)] == ["a", "b", "c", "d"]


def test_the_last_lost_lease_is_a_dead_letter(queue: Queue) -> None:
    queue.enqueue("ada", "a", max_attempts=1)
    queue.claim()
    queue.advance(LEASE_MS)
    assert queue.tick().reaped == 1
    assert queue.dead()[0][2:4] == ("lease_lost", 1)


def test_dead_letters_are_kept_for_a_time(queue: Queue) -> None:
    queue.configure(dead_keep_ms=1000)
    queue.enqueue("ada", "a")
    queue.end("reject", queue.claim()[0])
    queue.advance(999)
    assert queue.tick().trimmed == 0
    queue.advance(1)
    assert queue.tick().trimmed == 1
    assert queue.state("a") == "unknown"
    assert queue.tenant("ada").dead == queue.queue_state()["dead"] == 0


def test_of_too_many_dead_letters_the_oldest_go(queue: Queue) -> None:
    queue.enqueue("ada", *"abcde")
    for lease in queue.claim(5):
        queue.end("reject", lease)
        queue.advance(1)
    queue.configure(dead_keep=2)
    ticked = queue.tick(2)
    assert (ticked.trimmed, ticked.next_due) == (2, queue.now)
    assert queue.tick(2).trimmed == 1
    assert [letter.id for letter in queue.dead()] == ["d", "e"]


def test_a_flood_of_dead_letters_pushes_out_its_own_only(queue: Queue) -> None:
    queue.bury("ada", "a0", "a1")
    queue.bury("bob", "b0", "b1", "b2")
    queue.advance(1)
    for batch in range(3):
        queue.bury("flood", *(f"f{batch}{n:03}" for n in range(100)))
    queue.configure(dead_keep=10)
    assert [queue.tick(100).trimmed for _ in range(5)] == [80, 80, 80, 55, 0]
    assert {name: share.dead for name, share in queue.tenants().items()} == {"ada": 2, "bob": 3, "flood": 5}
    assert [letter.id for letter in queue.dead(tenant="flood")] == [f"f2{n:03}" for n in range(95, 100)]
    queue.configure(dead_keep=6)
    assert queue.tick(100).trimmed == 4
    assert {name: share.dead for name, share in queue.tenants().items()} == {"ada": 2, "bob": 2, "flood": 2}


def test_what_is_too_old_goes_first_and_may_make_room_for_the_rest(queue: Queue) -> None:
    queue.configure(dead_keep_ms=1000)
    queue.bury("ada", "old")
    queue.advance(999)
    queue.bury("bob", "b0", "b1")
    queue.configure(dead_keep=2)
    queue.advance(1)
    assert queue.tick().trimmed == 1
    assert [letter.id for letter in queue.dead()] == ["b0", "b1"]


def test_the_jobs_that_have_something_to_do_share_the_limit(queue: Queue) -> None:
    queue.enqueue("ada", *(f"e{n}" for n in range(10)), expires_in=10)
    queue.enqueue("bob", *(f"l{n}" for n in range(10)))
    queue.call("pause", "ada")
    queue.claim(10)
    queue.enqueue("cyd", *(f"d{n}" for n in range(10)), delay=10)
    queue.advance(LEASE_MS)
    assert queue.tick(12)[3:] == (4, 4, 4, 0, 0, 0)
    assert queue.tick(12)[3:] == (4, 4, 4, 0, 0, 0)
    assert queue.tick(2)[3:] == (1, 1, 1, 0, 0, 0), "none of them waits for the others"
    assert queue.tick(12)[3:] == (1, 1, 1, 0, 0, 0)
    queue.enqueue("cyd", *(f"more{n}" for n in range(10)), delay=10)
    queue.advance(10)
    assert queue.tick(12)[3:] == (10, 0, 0, 0, 0, 0), "a lone tenant has all of it"


def test_many_tickers_promote_each_task_once(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b", delay=5)
    queue.advance(5)
    assert [queue.tick().promoted for _ in range(3)] == [2, 0, 0]
    assert len(queue.claim(10)) == 2


@pytest.mark.parametrize("is_extended", [False, True])
def test_a_clock_that_is_set_back_shortens_no_lease(queue: Queue, is_extended: bool) -> None:
    queue.configure(lease_ms=600_000)
    queue.enqueue("ada", "a")
    (lease,) = queue.claim()
    if is_extended:
        queue.end("extend", lease)
    queue.configure(lease_ms=1000)
    queue.advance(-100_000)
    queue.tick()
    assert queue.tasks("a")[0].at == queue.now + 600_000
    queue.advance(599_999)
    assert queue.tick().reaped == 0
    queue.advance(1)
    assert queue.tick().reaped == 1
