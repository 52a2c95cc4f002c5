"""Claims: which servers learn that there is work, how much one call handles, and that no task is given twice."""

from __future__ import annotations

from fairq.store import library

from .calls import START, Listener, Queue, leased_in, options


def test_expired_tasks_of_many_tenants_do_not_stop_a_claim(queue: Queue) -> None:
    pipeline = queue.client.pipeline(transaction=False)
    for n in range(500):
        queue_args = ("enqueue", f"t{n}", f"id{n}")
        pipeline.fcall(
            library.function_name(queue_args[0]), 1, queue.prefix, START, "", *queue_args[1:], options(expires_in=10),
            b"",
        )  # fmt: skip
    pipeline.execute()
    queue.advance(10)
    for calls in range(1, 8):
        assert queue.claim(100) == []
        assert queue.queue_state()["expired"] == 64 * calls, "a call buries so many, and has another one follow"
    assert queue.claim(100) == []
    assert queue.queue_state()["ready"] == 0


def test_a_claim_leases_no_more_than_servers_ask_for(queue: Queue) -> None:
    queue.enqueue("ada", *(f"t{n}" for n in range(400)))
    assert [len(leased_in(queue.call("claim", "w1", 500))) for _ in range(4)] == [150, 150, 100, 0]
    assert queue.queue_state()["leased"] == 400


def test_a_claim_that_got_less_hears_once_when_there_is_work(queue: Queue) -> None:
    with Listener(queue) as listener:
        queue.enqueue("ada", "a")
        assert listener.heard() == [], "nobody was hungry"
        queue.claim(2)
        assert listener.heard() == []
        queue.enqueue("ada", "b")
        assert listener.heard() == [b"1"]
        queue.enqueue("ada", "c")
        assert listener.heard() == [], "one notice is enough"
        queue.claim(2)
        queue.enqueue("ada", "d")
        assert listener.heard() == [], "the last claim got all that it asked for"


def test_room_beside_kept_slots_is_claimed(queue: Queue) -> None:
    queue.configure(reserve=20)
    queue.enqueue("ada", *"abcdef")
    leases = queue.claim(5, slots=5)
    assert len(leases) == 4, "one slot is kept"
    with Listener(queue) as listener:
        assert queue.settle(("ack", leases[0].id, leases[0].lease)) == ["ok"]
        assert listener.heard() == [b"1"]


def test_the_servers_are_asked_to_stop_a_running_task(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b")
    queue.claim()
    with Listener(queue) as listener:
        queue.cancel("b", "a")
        assert listener.heard() == [b"stop a"]
