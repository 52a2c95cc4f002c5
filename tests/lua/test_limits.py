"""Limits on tenants: they always hold, and no other tenant waits for them."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
import redis

from fairq.model.queue.limits import EVENT_COST, bytes_of

from .calls import LEASE_MS, Listener, Queue, counted, writes
from .keyspace import Keyspace

DAY = 86_400_000
UNSET = dict.fromkeys(("max_running", "guaranteed", "rate", "burst", "queued", "stored_bytes", "delayed", "dead"), -1.0)
NONE = dict.fromkeys(UNSET, 0.0) | {"queued": 1e7, "delayed": 1e7, "stored_bytes": 2.0**30}  # what holds by default


def leased(queue: Queue, tenant: str) -> int:
    """How many tasks of a tenant are leased."""
    return int(queue.tenant(tenant).leased)


def run(queue: Queue, ms: int, step: int = 1, limit: int = 100) -> list[int]:
    """Let time pass, with a tick and a claim at every step whose tasks are done at once; when each task started."""
    started = []
    for _ in range(0, ms, step):
        queue.advance(step)
        queue.tick()
        for lease in queue.claim(limit):
            started.append(queue.now)
            queue.end("ack", lease)
    return started


@pytest.mark.parametrize("whose", ["ada", ""])
def test_no_more_tasks_run_than_the_limit_allows(queue: Queue, whose: str) -> None:
    queue.set_limits(whose, max_running=3)
    queue.enqueue("ada", *(f"a{n}" for n in range(20)))
    running = queue.claim(10)
    assert len(running) == 3
    assert queue.claim(10) == []
    for n in range(10):
        queue.end("ack", running.pop(0))
        running += queue.claim(10)
        assert len(running) == leased(queue, "ada") == 3, n


def test_a_tenant_may_have_more_or_less_than_all_others(queue: Queue) -> None:
    queue.set_limits("", max_running=2)
    queue.set_limits("ada", max_running=0)
    queue.set_limits("bob", max_running=1)
    for name in ("ada", "bob", "cyd"):
        queue.enqueue(name, *(f"{name}{n}" for n in range(10)))
    queue.claim(30)
    assert [leased(queue, name) for name in ("ada", "bob", "cyd")] == [10, 1, 2]
    assert queue.set_limits("bob", max_running=-1) == UNSET | {"max_running": 1}
    queue.claim(30)
    assert leased(queue, "bob") == 2


@pytest.mark.parametrize("how", ["raised", "default", "ack", "nack", "release", "reap"])
def test_every_end_of_a_limit_brings_the_tenant_back_and_tells_the_hungry(queue: Queue, how: str) -> None:
    queue.set_limits("ada", max_running=1)
    queue.enqueue("ada", "a", "b")
    lease = queue.claim(5)[0]
    with Listener(queue) as listener:
        if how in ("raised", "default"):
            queue.set_limits("ada", max_running=2 if how == "raised" else -1)
        elif how == "reap":
            queue.advance(LEASE_MS)
            queue.tick()
        else:
            queue.end(how, lease, 0 if how == "nack" else "")
        assert listener.heard() == [b"1"]
    assert len(queue.claim(5)) == 1


def test_a_lowered_limit_takes_nothing_back(queue: Queue) -> None:
    queue.enqueue("ada", *(f"a{n}" for n in range(10)))
    running = queue.claim(5)
    queue.set_limits("ada", max_running=2)
    for lease in running[:3]:
        queue.end("ack", lease)
        assert queue.claim(5) == []
    queue.end("ack", running[3])
    assert len(queue.claim(5)) == 1


def test_a_lowered_limit_for_all_acts_on_those_who_wait(queue: Queue) -> None:
    for name in ("ada", "bob"):
        queue.enqueue(name, *(f"{name}{n}" for n in range(20)))
    queue.claim(10)
    queue.set_limits("", max_running=2)
    assert queue.claim(10) == []
    assert queue.queue_state()["leased"] == 10


@pytest.mark.parametrize(
    ("whose", "rate", "burst", "within_ms", "starts"),
    [("ada", 10, 5, 1000, 15), ("ada", 100, 0, 1000, 200), ("", 0.5, 1, 4000, 3), ("", 1000, 7, 200, 207)],
)
def test_a_tenant_starts_as_many_tasks_as_its_rate_and_burst_allow(
    queue: Queue, whose: str, rate: float, burst: int, within_ms: int, starts: int
) -> None:
    queue.enqueue("ada", *(f"a{n}" for n in range(400)))
    queue.set_limits(whose, rate=rate, burst=burst)
    started = run(queue, within_ms + 1, step=1 if within_ms < 1000 else 10)
    assert abs(len(started) - starts) <= max(1, rate // 50), "what comes in 20 ms comes together"
    for first, last in zip(started, started[burst or int(rate) :], strict=False):
        assert last - first >= 1000 / rate - 20 - 10, "never more at once than the burst"


def test_a_tenant_that_is_out_of_tokens_costs_nothing_and_the_others_go_on(queue: Queue) -> None:
    queue.set_limits("ada", rate=1, burst=2)
    queue.enqueue("ada", *(f"a{n}" for n in range(50)))
    queue.enqueue("bob", *(f"b{n}" for n in range(50)))
    assert len(queue.claim(30)) == 30
    assert (leased(queue, "ada"), leased(queue, "bob")) == (2, 28)
    assert (queue.tenant("ada").blocked, queue.tenant("ada").is_eligible) == (4, 0)
    assert queue.queue_state()["weight_sum"] == 1000


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


def test_a_hungry_server_is_told_when_tokens_come(queue: Queue) -> None:
    queue.set_limits("ada", rate=10, burst=1)
    queue.enqueue("ada", "a", "b")
    queue.claim(5)
    with Listener(queue) as listener:
        queue.advance(100)
        queue.tick()
        assert listener.heard() == [b"1"]


def test_what_does_not_start_spends_no_token(queue: Queue) -> None:
    queue.set_limits("ada", rate=1, burst=2)
    queue.enqueue("ada", "late1", "late2", "late3", expires_in=10)
    queue.enqueue("ada", "a", "b", "c")
    queue.advance(10)
    assert sorted(lease.id for lease in queue.claim(10)) == ["a", "b"]


def test_a_retry_is_a_start_like_any_other(queue: Queue) -> None:
    queue.set_limits("ada", rate=1, burst=1)
    queue.enqueue("ada", "a")
    queue.end("nack", queue.claim()[0], 0)
    assert queue.claim() == []
    queue.advance(1000)
    queue.tick()
    assert len(queue.claim()) == 1


@pytest.mark.parametrize("whose", ["ada", ""])
def test_a_higher_rate_acts_on_tenants_without_tokens(queue: Queue, whose: str) -> None:
    queue.set_limits(whose, rate=1 / 3600, burst=1)
    queue.enqueue("ada", "a", "b", "c", "d")
    assert len(queue.claim(5)) == 1
    queue.set_limits(whose, rate=10)
    queue.tick()
    queue.advance(100)
    queue.tick()
    assert len(queue.claim(5)) == 1
    queue.set_limits(whose, rate=0)
    queue.tick()
    assert len(queue.claim(5)) == 2


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


def test_slots_that_are_guaranteed_and_not_used_are_the_others(queue: Queue) -> None:
    queue.set_limits("ada", guaranteed=15)
    queue.enqueue("bob", *(f"b{n}" for n in range(50)))
    queue.enqueue("ada", "a1", "a2")
    assert len(queue.claim(20)) == 20
    assert (leased(queue, "ada"), leased(queue, "bob")) == (2, 18)


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


@pytest.mark.parametrize(
    ("limit", "value", "taken", "given"),
    [
        ("queued", 3, 3, {}), ("queued", 3, 3, {"delay": 50}), ("stored_bytes", 3 * counted("a0") + 1, 3, {}),
        ("delayed", 2, 2, {"delay": 50}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("whose", ["ada", ""])
def test_what_is_too_much_is_refused_as_a_whole(
    queue: Queue, whose: str, limit: str, value: int, taken: int, given: dict[str, Any]
) -> None:
    queue.set_limits(whose, **{limit: value})
    queue.enqueue("ada", *(f"a{n}" for n in range(taken)), **given)
    with pytest.raises(redis.ResponseError, match=rf"^FAIRQ quota_exceeded {limit} \d+"):
        queue.enqueue("ada", "one", **given)
    with pytest.raises(redis.ResponseError, match=rf"^FAIRQ quota_exceeded {limit} \d+"):
        queue.enqueue("bob", *(f"b{n}" for n in range(9)), **given) if not whose else queue.enqueue("ada", "x", **given)
    assert (queue.state("one"), queue.state("b0"), queue.tenant("ada").waiting_tasks) == ("unknown", "unknown", taken)
    assert queue.enqueue("ada", "a0", **given) == ["duplicate"], "what is there already asks for no room"


@pytest.mark.parametrize(
    ("limit", "end"),
    [
        ("queued", "lease"), ("queued", "cancel"), ("queued", "expire"),
        ("stored_bytes", "ack"), ("stored_bytes", "cancel"), ("stored_bytes", "purge"),
    ],
)  # fmt: skip
def test_room_comes_when_tasks_start_or_go(queue: Queue, end: str, limit: str) -> None:
    queue.set_limits("ada", **{limit: 2 if limit == "queued" else 2 * counted("a") - 1})
    queue.enqueue("ada", "a", expires_in=100)
    with pytest.raises(redis.ResponseError, match="quota_exceeded"):
        queue.enqueue("ada", "b", "c")
    if end in ("lease", "ack"):
        (lease,) = queue.claim()
        if end == "ack":
            queue.end("ack", lease)
    elif end == "cancel":
        queue.cancel("a")
    else:
        queue.advance(100)
        queue.tick()
        if end == "purge":
            queue.call("purge", "a")
    assert queue.enqueue("ada", "b") == ["ok"]


@pytest.mark.parametrize("state", ["ready", "leased", "dead"])
def test_bytes_count_wherever_the_task_is(queue: Queue, state: str) -> None:
    queue.set_limits("ada", stored_bytes=2 * counted("a") - 1)
    queue.enqueue("ada", "a")
    if state != "ready":
        (lease,) = queue.claim()
        if state == "dead":
            queue.end("reject", lease)
    assert queue.state("a") == state
    with pytest.raises(redis.ResponseError, match="quota_exceeded stored_bytes"):
        queue.enqueue("ada", "b")


LONG = dict.fromkeys(("key", "group", "name"), 250)
ALL_OPTIONS: dict[str, Any] = {"period": DAY, "result": DAY, "expires_in": DAY, "events": 1, "priority": 9}


def fill(queue: Queue, width: int, texts: dict[str, int], given: dict[str, Any]) -> int:
    """Enqueue tasks of one byte until they are refused; how many there are."""
    for n in itertools.count():
        try:
            own = {name: f"{n:0{size}}" for name, size in texts.items()}
            queue.enqueue("ada", f"{n:0{width}}", payload=b"1", **given, **own)
        except redis.ResponseError:
            return n
    raise AssertionError


@pytest.mark.one_store
@pytest.mark.parametrize("end", ["", "claim", "reject", "nack"])
@pytest.mark.parametrize(
    ("width", "texts", "given"), [(1, {}, {}), (250, {}, {"delay": 1}), (250, LONG, ALL_OPTIONS)], ids=str
)
def test_a_tenant_at_its_limit_takes_no_more_of_the_store(
    queue: Queue, width: int, texts: dict[str, int], given: dict[str, Any], end: str
) -> None:
    most = 200_000
    queue.set_limits("ada", stored_bytes=most)
    n = fill(queue, width, texts, given)
    queue.advance(1)
    queue.tick()
    for lease in queue.claim(n) if end else []:
        if end in ("reject", "nack"):
            queue.end(end, lease, DAY if end == "nack" else "")
    client: Any = queue.client
    taken = sum(client.memory_usage(key, samples=0) for key in client.keys("*"))
    assert most / 10 < taken < most, taken / n


def test_names_and_options_count(queue: Queue) -> None:
    def more(id: str, **given: Any) -> int:
        before = queue.tenant("ada").bytes
        queue.enqueue("ada", id, **given)
        return queue.tenant("ada").bytes - before

    queue.enqueue("ada", "first")
    plain = more("a")
    assert more("bb") == plain + 4
    assert more("c", name="four") == plain + 4
    asking = more("d", priority=1)
    assert asking > plain + 100
    assert more("e", key="key") == asking + 4 * 3
    assert more("f", key="k", group="group") == asking + 4 * 6
    assert more("g", key="held", period=5) == asking + 4 * 4 + bytes_of("held", len("g"))
    Keyspace(queue).check()


def test_what_failed_tasks_say_counts(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    before = queue.tenant("ada").bytes
    queue.end("nack", queue.claim()[0], 0, "error")
    assert queue.tenant("ada").bytes == before + 5
    queue.end("nack", queue.claim()[0], 0, "e")
    assert queue.tenant("ada").bytes == before + 1
    Keyspace(queue).check()
    queue.end("reject", queue.claim()[0], 0, "other")
    assert queue.tenant("ada").bytes == before
    Keyspace(queue).check()


def test_a_feed_counts_and_leaves_half_of_the_limit(queue: Queue) -> None:
    queue.set_limits("ada", stored_bytes=1000 + 2 * counted("b"))
    for n in range(3):
        queue.enqueue("ada", f"a{n}", events=1)
        queue.end("ack", queue.claim()[0])
    assert queue.tenant("ada").bytes == 3 * EVENT_COST
    queue.set_limits("ada", stored_bytes=4 * counted("b"))
    assert queue.enqueue("ada", "b", "c") == ["ok", "ok"]
    with pytest.raises(redis.ResponseError, match="quota_exceeded stored_bytes"):
        queue.enqueue("ada", "d")
    queue.configure(events_keep=1)
    queue.set_limits("ada", stored_bytes=0)
    queue.enqueue("ada", "e", events=1)
    (last,) = (lease for lease in queue.claim(5) if lease.id == "e")
    queue.end("ack", last)
    Keyspace(queue).check()


def test_tasks_that_wait_for_a_place_in_their_batch_count(queue: Queue) -> None:
    queue.set_limits("ada", queued=3)
    queue.open_batch("b", max_running=1)
    queue.enqueue("ada", "a", "b", "c", batch="b")
    with pytest.raises(redis.ResponseError, match="quota_exceeded queued"):
        queue.enqueue("ada", "d")


def test_what_comes_back_counts_again_and_is_never_refused(queue: Queue) -> None:
    queue.set_limits("ada", queued=1)
    queue.enqueue("ada", "a")
    first = queue.claim()[0]
    queue.enqueue("ada", "b")
    queue.end("nack", first, 0)
    assert (queue.tenant("ada").ready, queue.tenant("ada").bytes) == (2, 2 * counted("a"))
    with pytest.raises(redis.ResponseError, match="quota_exceeded queued"):
        queue.enqueue("ada", "c")


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


@pytest.mark.parametrize("whose", ["ada", ""])
def test_of_too_many_dead_letters_the_oldest_go(queue: Queue, whose: str) -> None:
    queue.set_limits(whose, dead=3)
    for n in range(6):
        queue.bury("ada", f"a{n}")
        queue.advance(1)
    queue.set_limits("bob", dead=0)
    queue.bury("bob", *(f"b{n}" for n in range(5)))
    assert [letter.id for letter in queue.dead(tenant="ada")] == ["a3", "a4", "a5"]
    assert queue.tenant("bob").dead == 5
    assert queue.state("a0") == "unknown"


def test_a_lowered_limit_of_dead_letters_is_reached_by_and_by(queue: Queue) -> None:
    queue.bury("ada", *(f"a{n}" for n in range(6)))
    queue.set_limits("ada", dead=2)
    for n in range(4):
        queue.bury("ada", f"b{n}")
    assert sorted(letter.id for letter in queue.dead()) == ["b2", "b3"]


def test_limits_are_told_and_taken_off_again(queue: Queue) -> None:
    assert queue.set_limits("ada", max_running=2, rate=0.5) == UNSET
    assert queue.set_limits("", queued=10) == NONE
    assert (queue.tenant("ada").limited, queue.queue_state()["limited"]) == (1, 1)
    assert queue.set_limits("ada", max_running=-1, rate=-1) == UNSET | {"max_running": 2, "rate": 0.5}
    assert queue.set_limits("", queued=-1) == NONE | {"queued": 10}
    assert (queue.tenant("ada").limited, queue.queue_state()["limited"]) == (0, 0)
    assert not queue.client.exists(queue.key("limits"))


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


def test_a_narrower_limit_for_all_and_limits_of_their_own_make_no_sweep(queue: Queue) -> None:
    queue.set_limits("", max_running=3)
    queue.set_limits("", max_running=2)
    queue.set_limits("ada", max_running=1)
    queue.set_limits("ada", max_running=-1)
    assert queue.queue_state()["sweeping"] == 0
