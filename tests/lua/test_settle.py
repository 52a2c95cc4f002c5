"""The verb `settle`: bounds of what is kept, and what walks do not come upon."""

from __future__ import annotations

import struct

import pytest

from .calls import FORMATS, LEASE_MS, Leased, Queue, settle_args


def leased(queue: Queue) -> Leased:
    """Enqueue a task and lease it."""
    queue.enqueue("ada", "a")
    return queue.claim()[0]


def set_attempts(queue: Queue, id: str, attempt: int, uncounted: int) -> None:
    """Have a leased task be at an attempt, as if so many before it did not count."""
    packed = queue.client.hget(queue.key("runs"), id)
    assert isinstance(packed, bytes)
    at = FORMATS["LEASE"].size - 4  # its last field is `attempt`, and a run goes on with `uncounted_attempts`
    queue.client.hset(queue.key("runs"), id, packed[:at] + struct.pack("<II", attempt, uncounted) + packed[at + 8 :])


@pytest.mark.parametrize("drawn", [0.0, 0.999])
def test_the_backoff_of_a_task_without_a_limit_stays_bounded(queue: Queue, drawn: float) -> None:
    """Also where two to the power of the attempts is no number any more."""
    queue.configure(retry_base_ms=1, retry_cap_ms=5)
    queue.enqueue("ada", "a", max_attempts=0)
    lease = queue.claim()[0]
    set_attempts(queue, "a", 1000, 0)
    for _ in range(50):
        answer = queue.call("settle", "nack", "a", lease.lease, "", "", "", random_values=struct.pack("<d", drawn))
        assert answer == [b"ok"]
        assert 1 <= queue.tasks("a")[0].at - queue.now <= 5
        queue.advance(5)
        queue.tick()
        lease = queue.claim()[0]
    assert lease.attempt == 1050


def test_errors_are_kept_up_to_2_kib_and_tracebacks_up_to_8(queue: Queue) -> None:
    queue.end("reject", leased(queue), "", "x" * 70_000, "x" * 8192 + "y")
    (letter,) = queue.dead()
    assert (letter.error, letter.traceback) == ("x" * 2048, "x" * 8192)


def test_two_hundred_and_fifty_thousand_releases_do_not_wrap_the_attempt(queue: Queue) -> None:
    """Attempts are 32 bits wide: a worker that gives everything back makes none count again."""
    leased(queue)
    set_attempts(queue, "a", 250_000, 249_999)
    queue.settle(("release", "a", 1))
    lease = queue.claim()[0]
    assert (lease.attempt, lease.max_attempts) == (250_001, 250_025)


def test_the_count_of_how_often_a_lease_was_taken_goes_round(queue: Queue) -> None:
    queue.enqueue("t", "a")
    (lease,) = queue.claim(1)
    outcomes = queue.settle(*[("take", "a", lease.lease)] * 256)
    assert [outcomes[0], *outcomes[253:]] == [f"ok {times} {LEASE_MS}" for times in (1, 254, 255, 1)]


def test_what_is_no_number_of_a_lease_opens_none(queue: Queue) -> None:
    queue.enqueue("t", "a")
    queue.claim(1)
    for fence in ("", "x", "1/", "/0", "1/x", "1.5/0", "-1/0", "1/0/0"):
        assert queue.settle(("ack", "a", fence)) == ["stale"], fence


def test_a_tenant_below_its_guarantee_is_served_next_as_soon_as_a_lease_ends(queue: Queue) -> None:
    queue.enqueue("ada", *(f"a{n}" for n in range(9)))
    queue.set_limits("ada", guaranteed=2)
    mine = queue.claim(3)
    queue.enqueue("bob", *(f"b{n}" for n in range(9)))
    queue.advance(1)
    queue.settle(*(("ack", each.id, each.lease) for each in mine[:2]))
    assert queue.client.lrange(queue.key("wake"), 0, -1)[-1] == struct.pack("<I", 1)


def test_a_tenant_with_nothing_running_is_noted_for_the_reserve(queue: Queue) -> None:
    queue.configure(reserve=50)
    queue.enqueue("ada", "a", "b")
    lease = queue.claim(1)[0]
    queue.advance(1)
    queue.settle(("ack", lease.id, lease.lease))
    assert queue.client.zrange(queue.key("idle"), 0, -1) == [struct.pack("<I", 1)]


def test_a_lease_that_ends_after_the_unit_of_service_has_changed_is_charged_from_then_on(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b")
    lease = queue.claim(1)[0]
    queue.advance(1000)
    queue.configure(share=1)
    queue.configure(share=0)
    queue.advance(7)
    queue.settle(("ack", lease.id, lease.lease))
    packed = queue.client.hget(queue.key("accounts"), struct.pack("<I", 1))
    assert isinstance(packed, bytes)
    account, _ = FORMATS["ACCOUNT"].unpack(packed)
    assert account["base"] == 7 / account["weight"]
    assert FORMATS["BOOKS"].unpack(account["books"])[0]["delivered"] == 7


@pytest.mark.parametrize("action", ["ack", "nack", "reject", "release"])
@pytest.mark.parametrize(
    ("ago", "charged"), [(9_900, 100), (10_000, 1), (11_000, 1), (1_001, 8_999), (1_000, 10_000), (-50, 10_000)]
)
def test_a_settlement_that_came_late_is_charged_up_to_when_it_was_sent(
    queue: Queue, action: str, ago: int, charged: int
) -> None:
    """The store stood still meanwhile. Clocks differ by less than a second."""
    lease = leased(queue)
    queue.advance(10_000)
    args = settle_args([(action, "a", lease.lease, "", "", "")])
    assert queue.call("settle", *args, "sent", queue.now - ago, random_values=struct.pack("<d", 0.5)) == [b"ok"]
    assert queue.tenant("ada").delivered == charged
