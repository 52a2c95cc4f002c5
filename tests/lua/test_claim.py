"""Claims: who is told that there is work, how much one call handles, and that no task is given twice."""

from __future__ import annotations

import threading

import redis

from fairq.store import library

from .calls import HEAD, START, Listener, Queue, leased_in, options, refused


def test_expired_tasks_of_many_tenants_do_not_stop_a_claim(queue: Queue) -> None:
    pipeline = queue.client.pipeline(transaction=False)
    for n in range(500):
        queue_args = ("enqueue", f"t{n}", f"id{n}")
        pipeline.fcall(
            library.function_name(queue_args[0]),
            1,
            queue.prefix,
            START,
            "",
            *queue_args[1:],
            options(expires_in=10),
            b"",
        )
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


def test_a_claim_that_got_less_is_told_once_when_there_is_work(queue: Queue) -> None:
    with Listener(queue) as listener:
        queue.enqueue("ada", "a")
        assert listener.heard() == [], "nobody was hungry"
        queue.claim(2)
        assert listener.heard() == []
        queue.enqueue("ada", "b")
        assert listener.heard() == [b"1"]
        queue.enqueue("ada", "c")
        assert listener.heard() == [], "told once"
        queue.claim(2)
        queue.enqueue("ada", "d")
        assert listener.heard() == [], "the last claim got all that it asked for"


def test_nobody_is_told_of_tasks_whose_server_claims_them_at_once(queue: Queue) -> None:
    with Listener(queue) as listener:
        queue.claim()
        assert queue.call("enqueue", "ada", "a", b"", b"1", "covered") == [b"ok"]
        assert listener.heard() == []
        assert queue.queue_state()["hungry"] == 1, "the claim that follows leaves nothing"
        queue.enqueue("ada", "b")
        assert listener.heard() == [b"1"], "it did not follow: the next ones are told"
    refused(queue, "bad_request tasks", "enqueue", "ada", "c", b"", b"1", "uncovered")
    refused(queue, "bad_request tasks", "enqueue", "ada", "covered")


def test_the_servers_are_told_to_stop_a_running_task(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b")
    queue.claim()
    with Listener(queue) as listener:
        queue.cancel("b", "a")
        assert listener.heard() == [b"stop a"]


def test_concurrent_claimers_never_get_the_same_task(queue: Queue, store_url: str) -> None:
    queue.uses_store_time = True
    for tenant in ("ada", "bob", "cyd", "dan"):
        queue.enqueue(tenant, *(f"{tenant}{n}" for n in range(250)))
    got: list[list[str]] = [[], [], [], []]

    def work(mine: list[str]) -> None:
        with redis.Redis.from_url(store_url) as client:
            while True:
                reply = client.fcall(library.function_name("claim"), 1, queue.prefix, "", "", "w", 7)
                if len(reply) == HEAD:
                    return
                mine += [lease.id for lease in leased_in(reply)]

    threads = [threading.Thread(target=work, args=(mine,)) for mine in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = [id for mine in got for id in mine]
    assert len(everything) == len(set(everything)) == 1000
