"""The verb `enqueue`: outcomes, windows, identity, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from .calls import START, Queue, options, refused, snapshot, unpack


def test_a_new_task_is_ok_and_ready(queue: Queue) -> None:
    assert queue.enqueue("ada", "a") == ["ok"]
    assert queue.state("a") == "ready"
    assert queue.queue_state()["ready"] == queue.queue_state()["enqueued"] == queue.tenant("ada").ready == 1


def test_outcomes_stand_in_the_order_of_the_tasks(queue: Queue) -> None:
    queue.enqueue("ada", "b")
    late = options(start_at=START + 10, expires_at=START + 10)
    reply = queue.call("enqueue", "ada", "a", b"", b"1", "b", b"", b"2", "c", late, b"3", "d", b"", b"4")
    assert reply == [b"ok", b"duplicate", b"expired", b"ok"]


def test_a_waiting_leased_dead_or_done_id_is_a_duplicate(queue: Queue) -> None:
    queue.enqueue("ada", "waiting", delay=1000)
    for id in ("leased", "dead", "done"):
        queue.enqueue("ada", id)
    leases = {lease.id: lease for lease in queue.claim(3)}
    queue.end("reject", leases["dead"])
    queue.end("ack", leases["done"])
    before = snapshot(queue)
    assert queue.enqueue("ada", "waiting", "leased", "dead", "done") == ["duplicate"] * 4
    assert snapshot(queue) == before


def test_an_id_that_stands_twice_in_one_call_is_stored_once(queue: Queue) -> None:
    assert queue.enqueue("ada", "a", "a") == ["ok", "duplicate"]
    assert queue.queue_state()["ready"] == 1


def test_an_id_belongs_to_the_queue_not_to_the_tenant(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    assert queue.enqueue("bob", "a") == ["duplicate"]


def test_a_done_id_is_forgotten_after_two_windows(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    queue.end("ack", queue.claim()[0])
    queue.advance(60_000)
    assert queue.enqueue("ada", "a") == ["duplicate"]
    queue.advance(60_000)
    queue.tick()
    assert queue.enqueue("ada", "a") == ["ok"]


def test_a_task_with_a_delay_or_a_start_waits_for_it(queue: Queue) -> None:
    queue.enqueue("ada", "a", delay=500)
    queue.enqueue("ada", "b", start_at=START + 700)
    assert [(known.state, known.at) for known in queue.tasks("a", "b")] == [
        ("delayed", START + 500),
        ("delayed", START + 700),
    ]
    assert queue.claim() == []


def test_a_start_in_the_past_is_ready_now(queue: Queue) -> None:
    queue.enqueue("ada", "a", start_at=START)
    assert queue.state("a") == "ready"


def test_a_task_that_would_expire_before_its_start_is_not_stored(queue: Queue) -> None:
    before = snapshot(queue)
    for start, expiry in ((0, 0), (0, -5), (50, 50), (50, 49)):
        assert queue.enqueue("ada", "a", start_at=START + start, expires_at=START + expiry) == ["expired"]
    assert snapshot(queue) == before
    assert queue.enqueue("ada", "a", start_at=START, expires_at=START + 1) == ["ok"]
    assert queue.enqueue("ada", "b", start_at=START + 50, expires_at=START + 51) == ["ok"]


def test_the_record_keeps_the_window_the_tenant_and_the_payload(queue: Queue) -> None:
    queue.enqueue("ada", "a", payload=b"\x00\xffpayload", expires_in=900, max_attempts=7)
    record = queue.claim()[0].record
    header = unpack("HEADER", record)
    assert (header.version, header.max_attempts, header.enqueued_at) == (1, 7, START)
    assert (header.start_at, header.expires_at, header.tenant) == (0, START + 900, "ada")
    assert record[header.end :] == b"\x00\xffpayload"


@pytest.mark.parametrize(
    ("start", "end"), [({}, 100), ({"delay": 50}, 150), ({"start_at": START + 70}, 170), ({"start_at": START - 30}, 70)]
)
def test_an_end_may_count_from_the_start(queue: Queue, start: dict[str, Any], end: int) -> None:
    assert queue.enqueue("ada", "a", after_start=100, **start) == ["ok"]
    queue.advance(end - 1)
    queue.tick()
    lease = queue.claim()[0]
    assert unpack("HEADER", lease.record).expires_at == START + end
    queue.end("release", lease)
    queue.advance(1)
    assert queue.claim() == []
    assert queue.dead()[0].reason == "expired"


def test_a_start_so_long_ago_that_the_window_is_over_is_refused(queue: Queue) -> None:
    assert queue.enqueue("ada", "a", "b", after_start=100, start_at=START - 100) == ["expired", "expired"]
    assert queue.enqueue("ada", "a", after_start=100, start_at=START - 99) == ["ok"]


def test_max_attempts_is_the_queues_unless_the_task_says_otherwise(queue: Queue) -> None:
    queue.configure(max_attempts=3)
    queue.enqueue("ada", "a")
    queue.enqueue("ada", "b", max_attempts=9)
    assert [lease.max_attempts for lease in queue.claim(2)] == [3, 9]


def test_time_and_random_values_are_the_callers_only_behind_the_test_gate(queue: Queue) -> None:
    queue.client.delete(queue.key("test"))
    refused(queue, "forbidden now", "enqueue", "ada", "a", "", "")
    queue.uses_store_time = True
    refused(queue, "forbidden now", "enqueue", "ada", "a", "", "", random_values=b"\0" * 8)
    assert queue.enqueue("ada", "a") == ["ok"]


def test_without_a_given_time_the_store_tells_it_and_it_never_goes_back(queue: Queue) -> None:
    queue.uses_store_time = True
    seconds, _ = queue.client.time()
    queue.enqueue("ada", "a")
    assert abs(queue.queue_state()["now"] - seconds * 1000) < 60_000
    queue.uses_store_time, queue.now, told = False, seconds * 1000 - 50_000, queue.queue_state()["now"]
    queue.enqueue("ada", "b", delay=1)
    assert queue.queue_state()["now"] == told
    assert queue.tasks("b")[0].at == queue.queue_state()["now"] + 1


def test_tenants_have_the_names_that_products_give_them(queue: Queue) -> None:
    tenants = ["org_2AbC", "a", "Ada.Lovelace@example.com", "+45-1.2_3", "x" * 128]
    for tenant in tenants:
        assert queue.enqueue(tenant, f"{tenant}/1", f"{tenant}/2", delay=10) == ["ok", "ok"]
    queue.advance(10)
    queue.tick()
    for lease in queue.claim(5):
        assert queue.end("nack", lease, delay=0) == "ok"
    assert [queue.tenant(tenant).ready for tenant in tenants] == [2] * 5
