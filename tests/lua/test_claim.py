"""The verb `claim`: leases, expiry on the way out, hunger, refusals."""

from __future__ import annotations

import threading

import redis

from fairq.store import library

from .calls import HEAD, LEASE_MS, START, Listener, Queue, leased_in, options, refused, snapshot


def test_a_claim_leases_the_oldest_tasks_of_a_tenant_first(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b", "c", payload=b"hello")
    leases = queue.claim(2, worker="w9")
    assert [(lease.id, lease.attempt, lease.max_attempts) for lease in leases] == [("a", 1, 5), ("b", 1, 5)]
    assert leases[0].record.endswith(b"ada\0hello")
    known = queue.tasks("a")[0]
    assert (known.state, known.tenant, known.attempt, known.at, known.detail) == (
        "leased",
        "ada",
        1,
        START + LEASE_MS,
        "w9",
    )


def test_the_reply_begins_with_the_time_and_the_lease(queue: Queue) -> None:
    queue.configure(lease_ms=1234, run_timeout_ms=567)
    assert queue.call("claim", "w", 1) == [START, 1234, 0, [], -1, [], 567]


def test_a_claim_never_gives_more_than_its_limit(queue: Queue) -> None:
    for tenant in ("ada", "bob", "cyd"):
        queue.enqueue(tenant, *(f"{tenant}{n}" for n in range(20)))
    sizes = [len(queue.claim(7)) for _ in range(9)]
    assert sizes == [7] * 8 + [4]


def test_a_task_that_expired_on_the_list_is_buried_and_not_charged(queue: Queue) -> None:
    queue.configure(share=1)
    queue.enqueue("ada", "a", "b", expires_in=100)
    queue.enqueue("ada", "c")
    queue.advance(100)
    assert [lease.id for lease in queue.claim(3)] == ["c"]
    assert [(letter.id, letter.reason, letter.attempts) for letter in queue.dead()] == [
        ("a", "expired", 0),
        ("b", "expired", 0),
    ]
    assert queue.tenant("ada").delivered == 1
    assert queue.queue_state()["expired"] == 2


def test_an_expired_retry_is_buried_with_its_attempts_and_error(queue: Queue) -> None:
    queue.enqueue("ada", "a", expires_in=100)
    queue.end("nack", queue.claim()[0], 0, "first try")
    queue.advance(100)
    assert queue.claim() == []
    assert queue.dead()[0][2:] == ("expired", 1, START + 100, "first try", "")
    assert not queue.client.exists(queue.key("runs"), queue.key("expiring"))


def test_expired_tasks_of_many_tenants_do_not_stop_a_claim(queue: Queue) -> None:
    pipeline = queue.client.pipeline(transaction=False)
    for n in range(500):
        queue_args = ("enqueue", f"t{n}", f"id{n}")
        pipeline.fcall(
            library.function_name(queue_args[0]), 1, queue.prefix, START, "", *queue_args[1:], EXPIRES_IN_10, b""
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


EXPIRES_IN_10 = options(expires_in=10)


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


def test_every_way_to_ready_work_tells_the_hungry(queue: Queue) -> None:
    queue.enqueue("ada", *"abcdef")
    leases = {lease.id: lease for lease in queue.claim(6)}
    with Listener(queue) as listener:

        def told_by(verb: str, *args: object) -> list[bytes]:
            queue.claim(100)  # hungry again
            listener.heard()
            queue.call(verb, *args)
            return listener.heard()

        assert told_by("settle", "nack", "a", 1, 0, "", "") == [b"1"]
        assert told_by("settle", "release", "b", 1) == [b"1"]
        assert told_by("settle", "reap", "c", 1) == [b"1"]
        queue.end("reject", leases["d"])
        assert told_by("replay", "d") == [b"1"]
        assert told_by("settle", "ack", "e", 1) == []
        assert told_by("enqueue", "ada", "later", DELAY_10, b"") == []
        queue.advance(10)
        assert told_by("tick", 10) == [b"1"]
        queue.advance(LEASE_MS)
        assert told_by("tick", 10) == [b"1"]


DELAY_10 = options(delay=10)


def test_work_that_is_paused_tells_nobody_until_it_is_resumed(queue: Queue) -> None:
    with Listener(queue) as listener:
        queue.call("pause", "ada")
        queue.claim()
        queue.enqueue("ada", "a")
        assert listener.heard() == []
        queue.call("resume", "ada")
        assert listener.heard() == [b"1"]
        queue.claim()
        queue.call("pause", "")
        queue.claim()
        queue.enqueue("bob", "b")
        queue.call("pause", "cyd")
        queue.call("resume", "cyd")
        assert listener.heard() == []
        queue.call("resume", "")
        assert listener.heard() == [b"1"]


def test_a_claimer_that_met_a_paused_queue_is_told_when_it_resumes(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    queue.call("pause", "")
    before = snapshot(queue)
    assert queue.claim() == []
    assert snapshot(queue) != before, "marked hungry"
    with Listener(queue) as listener:
        queue.call("resume", "")
        assert listener.heard() == [b"1"]


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


def test_a_claim_whose_answer_was_lost_is_given_once_more_and_nothing_else(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b", "c", "d")
    queue.claim(1, worker="s/1")
    taken = queue.claim(2, worker="s/2")
    reply = queue.call("claim", "s/2", 2, "again")
    assert sorted(leased_in(reply)) == sorted(taken)
    assert [lease[:4] for lease in taken] == [("b", 2, 1, 5), ("c", 2, 1, 5)]
    assert queue.queue_state()["leased"] == 3
    assert [lease.id for lease in queue.claim(5, worker="s/3")] == ["d"]


def test_a_claim_that_was_never_carried_out_is_carried_out_when_it_is_repeated(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b")
    queue.claim(1, worker="s/1")
    reply = queue.call("claim", "s/2", 5, "again")
    assert [lease[:2] for lease in leased_in(reply)] == [("b", 2)]
