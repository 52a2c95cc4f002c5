"""What operators change: weights, pauses, settings, dead letters."""

from __future__ import annotations

import pytest

from .calls import LEASE_MS, START, Queue, refused, snapshot

SETTINGS = {
    "share": (0, 1),
    "lease_ms": (100, 86_400_000),
    "max_attempts": (0, 1000),
    "retry_base_ms": (1, 86_400_000),
    "retry_cap_ms": (1, 604_800_000),
    "dead_keep_ms": (1000, 31_536_000_000),
    "dead_keep": (0, 10_000_000),
    "events_keep": (0, 1_000_000),
    "max_tenants": (1, 100_000_000),
    "reserve": (0, 90),
    "run_timeout_ms": (0, 604_800_000),
}


def test_set_weight_returns_the_weight_before(queue: Queue) -> None:
    assert queue.call("set_weight", "ada", 2500) == 1000
    assert queue.call("set_weight", "ada", 2500) == 2500
    assert queue.tenant("ada").weight == 2500


@pytest.mark.parametrize("tenant", ["", "ada"])
def test_pause_and_resume_say_how_it_was_before(queue: Queue, tenant: str) -> None:
    queue.enqueue("ada", "a")
    assert [queue.call(verb, tenant) for verb in ("pause", "pause", "resume", "resume")] == [0, 1, 1, 0]
    assert len(queue.claim()) == 1


def test_leases_and_enqueueing_go_on_while_paused(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b")
    lease = queue.claim()[0]
    queue.call("pause", "ada")
    assert queue.enqueue("ada", "c") == ["ok"]
    assert queue.end("ack", lease) == "ok"
    assert queue.tenant("ada").blocked == 1
    queue.call("resume", "ada")
    assert [lease.id for lease in queue.claim(5)] == ["b", "c"]


def test_a_lost_lease_of_a_paused_tenant_comes_back_and_waits(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    queue.claim()
    queue.call("pause", "ada")
    queue.advance(LEASE_MS)
    assert queue.tick().reaped == 1
    assert queue.claim() == []
    queue.call("resume", "ada")
    assert queue.claim()[0].id == "a"


def test_a_setting_takes_its_range_and_no_more(queue: Queue) -> None:
    for name, (lowest, highest) in SETTINGS.items():
        for value in (lowest, highest):
            queue.configure(**{name: value})
            assert queue.queue_state()[name] == value, name
        for wrong in (lowest - 1, highest + 1, lowest + 0.5, "nan", "", "much"):
            refused(queue, f"bad_request {name}", "configure", name, wrong)


def test_a_new_lease_time_holds_for_the_next_lease(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b")
    queue.claim()
    queue.configure(lease_ms=100)
    queue.claim()
    assert [known.at for known in queue.tasks("a", "b")] == [START + LEASE_MS, START + 100]


def test_replay_gives_a_fresh_set_of_attempts_at_the_end_of_the_list(queue: Queue) -> None:
    queue.enqueue("ada", "a", max_attempts=2)
    for _ in range(2):
        queue.end("nack", queue.claim()[0], 0)
    queue.enqueue("ada", "b")
    assert queue.call("replay", "a", "b", "nobody", "a") == [b"ok", b"gone", b"gone", b"gone"]
    assert queue.queue_state()["dead"] == queue.tenant("ada").dead == 0
    leases = queue.claim(2)
    assert [(lease.id, lease.attempt, lease.max_attempts) for lease in leases] == [("b", 1, 5), ("a", 3, 4)]
    queue.end("nack", leases[1], 0)
    assert queue.state("a") == "ready"
    queue.end("nack", queue.claim()[0])
    assert queue.dead()[0][2:4] == ("exhausted", 4)


def test_replay_of_an_expired_task_drops_the_window_and_keeps_the_payload(queue: Queue) -> None:
    queue.enqueue("ada", "a", payload=b"hello", expires_in=10)
    queue.advance(10)
    queue.tick()
    queue.call("replay", "a")
    queue.advance(1000)
    assert queue.tick().expired == 0
    assert queue.claim()[0].record.endswith(b"ada\0hello")


def test_replay_inside_the_window_keeps_it(queue: Queue) -> None:
    queue.enqueue("ada", "a", expires_in=100)
    queue.end("reject", queue.claim()[0])
    queue.call("replay", "a")
    queue.advance(100)
    assert queue.tick().expired == 1


def test_purge_forgets_dead_letters_only(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b")
    queue.end("reject", queue.claim()[0])
    assert queue.call("purge", "a", "b", "nobody") == [b"ok", b"gone", b"gone"]
    assert [known.state for known in queue.tasks("a", "b")] == ["unknown", "ready"]
    assert queue.enqueue("ada", "a") == ["ok"]


def test_purge_and_replay_twice_have_one_effect(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b")
    for lease in queue.claim(2):
        queue.end("reject", lease)
    assert queue.call("replay", "a") == [b"ok"]
    assert queue.call("purge", "b") == [b"ok"]
    before = {key: value for key, value in snapshot(queue).items() if not key.endswith(b":queue")}
    assert queue.call("replay", "a", "b") == queue.call("purge", "a", "b") == [b"gone", b"gone"]
    assert {key: value for key, value in snapshot(queue).items() if not key.endswith(b":queue")} == before
