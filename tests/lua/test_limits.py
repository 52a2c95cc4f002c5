"""Limits on tenants: what they give over time, what they bound in the store, and many tenants at once."""

from __future__ import annotations

from collections import Counter

import pytest
import redis

from .calls import Queue, writes


def leased(queue: Queue, tenant: str) -> int:
    """How many tasks of a tenant are leased."""
    return int(queue.tenant(tenant).leased)


def run(queue: Queue, ms: int, step: int = 1, limit: int = 100) -> list[int]:
    """Let time pass; each step ticks, claims and ends tasks. Returns when each task started."""
    started = []
    for _ in range(0, ms, step):
        queue.advance(step)
        queue.tick()
        for lease in queue.claim(limit):
            started.append(queue.now)
            queue.end("ack", lease)
    return started


@pytest.mark.parametrize(
    ("name", "rate", "burst", "within_ms", "starts"),
    [("ada", 10, 5, 1000, 15), ("ada", 100, 0, 1000, 200), ("", 0.5, 1, 4000, 3), ("", 1000, 7, 200, 207)],
)
def test_a_tenant_starts_as_many_tasks_as_its_rate_and_burst_allow(
    queue: Queue, name: str, rate: float, burst: int, within_ms: int, starts: int
) -> None:
    queue.enqueue("ada", *(f"a{n}" for n in range(400)))
    queue.set_limits(name, rate=rate, burst=burst)
    started = run(queue, within_ms + 1, step=1 if within_ms < 1000 else 10)
    assert abs(len(started) - starts) <= max(1, rate // 50), "what comes in 20 ms comes together"
    for first, last in zip(started, started[burst or int(rate) :], strict=False):
        assert last - first >= 1000 / rate - 20 - 10, "never more at once than the burst"


def test_the_claim_and_the_tick_tell_when_tokens_come(queue: Queue) -> None:
    queue.set_limits("ada", rate=10, burst=1)
    queue.enqueue("ada", "a", "b", "c")
    assert queue.call("claim", "w", 1, random_values=b"\0" * 800)[4] == queue.now + 100
    assert queue.tick().next_due == queue.now + 100
    queue.advance(99)
    assert (queue.tick().next_due, queue.claim(5)) == (queue.now + 1, [])
    queue.advance(1)
    queue.tick()
    assert len(queue.claim(5)) == 1


def test_a_guaranteed_tenant_has_its_slots_as_soon_as_any_are_free(queue: Queue) -> None:
    for name in ("bob", "cyd"):
        queue.enqueue(name, *(f"{name}{n}" for n in range(200)))
    running = queue.claim(20)
    queue.set_limits("ada", guaranteed=5)
    queue.enqueue("ada", *(f"a{n}" for n in range(200)))
    for _ in range(12):
        queue.advance(10)
        queue.end("ack", running.pop(0))
        running += queue.claim(1)
    assert leased(queue, "ada") >= 5, "one of two free slots at least is its own"


@pytest.mark.parametrize(("guaranteed", "least", "most"), [(1, 2.5, 3.5), (6, 5, 6.5)])
def test_a_tenant_has_its_guarantee_or_its_share_whichever_is_more(
    queue: Queue, guaranteed: int, least: float, most: float
) -> None:
    queue.set_limits("ada", guaranteed=guaranteed)
    names = ("ada", "bob", "cyd")
    for name in names:
        queue.enqueue(name, *(f"{name}{n}" for n in range(200)))
    running, held = queue.claim(9), Counter[str]()
    for n in range(200):
        queue.advance(1)
        queue.end("ack", running.pop(0))
        running += queue.claim(1)
        if n >= 50:
            held.update(lease.id[:3] for lease in running)
    means = {name: slots / 150 for name, slots in held.items()}
    assert least <= means["ada"] <= most, means
    assert abs(means["bob"] - means["cyd"]) < 0.5, means


def test_the_refusal_says_when_to_come_again(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b")
    for rate, expected in ((0, 1000), (0.01, 60_000), (0.2, 5000)):
        queue.set_limits("ada", queued=2, rate=rate)
        with pytest.raises(redis.ResponseError, match=f"quota_exceeded queued {expected}( |$)"):
            queue.enqueue("ada", "c")


def test_delayed_tasks_are_refused_until_the_first_of_them_starts(queue: Queue) -> None:
    queue.set_limits("ada", delayed=1)
    queue.enqueue("ada", "a", delay=7000)
    with pytest.raises(redis.ResponseError, match="quota_exceeded delayed 7000"):
        queue.enqueue("ada", "b", delay=1)
    assert queue.enqueue("ada", "c") == ["ok"], "tasks that are ready are not bounded by it"


def test_too_large_a_guarantee_leaves_newly_active_tenants_their_turn(queue: Queue) -> None:
    queue.set_limits("greedy", guaranteed=20)
    queue.enqueue("greedy", *(f"g{n}" for n in range(100)))
    running = queue.claim(10)
    for quiet in ("q1", "q2", "q3"):
        queue.enqueue(quiet, quiet)
    started: list[str] = []
    for _ in range(10):  # tasks end one by one, so a claim takes one
        queue.end("ack", running.pop(0))
        running += queue.claim(1)
        started.append(running[-1].id)
    assert {"q1", "q2", "q3"} <= set(started[:8]), started


def test_limited_tenants_lose_their_slots_when_the_limit_for_all_is_lowered(queue: Queue) -> None:
    names = [f"t{n}" for n in range(5)]
    for name in names:
        queue.enqueue(name, *(f"{name}-{n}" for n in range(20)))
    queue.claim(30)
    queue.set_limits("", max_running=2)
    for _ in range(20):  # probes that miss take the slots of those whom they hit
        assert queue.claim(10) == []
    assert queue.queue_state()["hungry"] == 1
    before = writes(queue)
    assert queue.claim(10) == []
    assert writes(queue) == before, "nobody is in the draw: nothing is tried, and nobody is woken to try again"


@pytest.mark.parametrize("max_running", [0, 2])
def test_a_wider_limit_for_all_lets_everybody_in_with_the_next_ticks(queue: Queue, max_running: int) -> None:
    queue.set_limits("", max_running=1)
    names = [f"t{n}" for n in range(700)]
    for name in names:
        queue.enqueue(name, f"{name}/0", f"{name}/1")
    for _ in range(3):
        queue.claim(500)
    assert (queue.queue_state()["leased"], queue.claim(10)) == (700, [])
    queue.set_limits("", max_running=max_running)
    ticks = 0
    while queue.tick().next_due == queue.now:
        ticks += 1
        assert ticks < 100
    assert ticks >= 2, "a page of tenants each"
    assert queue.queue_state()["servable"] == 700
    assert {lease.id for _ in range(3) for lease in queue.claim(500)} == {f"{name}/1" for name in names}
    assert not queue.client.exists(queue.key("sweep"))


def test_a_sweep_keeps_what_the_end_of_a_lease_in_the_same_tick_gave_back(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    (lease,) = queue.claim(1)
    assert queue.cancel(lease.id) == ["running"]
    queue.set_limits("", max_running=5)
    queue.advance(60_000)
    queue.tick()
    assert (leased(queue, "ada"), queue.queue_state()["leased"]) == (0, 0)
