"""No call is long: what one of them handles at most, and how many commands it runs, whatever a queue holds.

`python -m loadtest longest` measures the time; here things are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from .calls import CHANGES, CLAIMED_BY_RATE, LEASE_MS, Queue, leased_in, packed_template, settle_args, words
from .keyspace import Keyspace
from .test_repair import commands_run

PAGE = 1 << 20


def run_by(queue: Queue, call: Callable[[], object]) -> int:
    """Count the commands that a call runs, but for those that count."""
    idle = commands_run(queue)
    idle = commands_run(queue) - idle
    before = commands_run(queue)
    call()
    return commands_run(queue) - before - idle


def enqueue_each(queue: Queue, count: int, **options: Any) -> list[str]:
    """Give each of so many tenants a task; their ids."""
    for n in range(count):
        queue.enqueue(f"t{n}", f"task{n}", **options)
    return [f"task{n}" for n in range(count)]


@pytest.mark.parametrize("verb", ["cancel", "reschedule"])
def test_a_change_of_many_places_is_of_few_tasks(queue: Queue, verb: str) -> None:
    ids = enqueue_each(queue, CHANGES + 1)
    before = ["1000", "0"] if verb == "reschedule" else [""]
    with pytest.raises(Exception, match="bad_request ids"):
        queue.call(verb, *before, *ids)
    assert set(words(queue.call(verb, *before, *ids[1:]))) == {"ok"}


@pytest.mark.parametrize(
    ("action", "options", "at_once"),
    [
        ("ack", {}, 120),
        ("release", {}, 120),
        ("nack", {}, 37),
        ("reject", {}, 37),
        ("ack", {"events": 1}, 37),
        ("ack", {"result_ttl": 1000}, 37),
    ],
)
def test_a_settlement_leaves_what_is_too_much_for_one_call(
    queue: Queue, action: str, options: dict[str, Any], at_once: int
) -> None:
    queue.enqueue("ada", *(f"a{n}" for n in range(120)), **options)
    leases = queue.claim(120)
    args = settle_args((action, lease.id, lease.lease, "", "", "") for lease in leases)
    assert words(queue.call("settle", *args)) == ["ok"] * at_once
    assert queue.queue_state()["leased"] == 120 - at_once, "nothing has become of the rest"
    settlements = [(action, lease.id, lease.lease, "", "") for lease in leases[at_once:]]
    if settlements:
        assert set(queue.settle(*settlements)) == {"ok"}
    Keyspace(queue).check()


def test_a_claim_gives_the_last_tenant_more_than_its_share_in_the_same_round(queue: Queue) -> None:
    """The tenant's share of the slots has room for all of its tasks, then for half of them."""
    ran = []
    for weight in (200, 1000):
        other = Queue(queue.client, f"fq:{{{weight}/0}}")
        other.call("make_queue")
        other.call("set_weight", "ada", weight)
        other.enqueue("ada", "a1", "a2")
        other.enqueue("bob", *"bcdef")
        other.claim(2)
        ran.append(run_by(queue, partial(other.claim, 5)))
        assert other.queue_state()["leased"] == 7
    assert ran[1] <= ran[0]


def test_a_batch_that_is_cancelled_goes_a_few_tasks_at_a_time(queue: Queue) -> None:
    queue.open_batch("b")
    queue.enqueue("ada", *(f"a{n}" for n in range(200)), batch="b")
    queue.call("close_batch", "b", "cancel")
    assert queue.queue_state()["cancelled"] == CHANGES
    queue.tick(500)
    assert queue.queue_state()["cancelled"] == 2 * CHANGES


def test_a_tick_does_as_much_when_everything_is_due_as_when_one_thing_is(queue: Queue) -> None:
    queue.configure(dead_keep_ms=1000)
    queue.bury("bob", *(f"dead{n}" for n in range(100)))
    queue.enqueue("cyd", *(f"lost{n}" for n in range(100)))
    queue.claim(100)
    queue.open_batch("b")
    queue.enqueue("ada", *(f"b{n}" for n in range(100)), batch="b")
    queue.enqueue("ada", *(f"gone{n}" for n in range(100)))
    queue.cancel(*(f"gone{n}" for n in range(100)))
    queue.call("close_batch", "b", "cancel")
    queue.enqueue("dan", *(f"due{n}" for n in range(100)), delay=10)
    queue.enqueue("eve", *(f"late{n}" for n in range(100)), expires_in=10)
    queue.advance(10 * LEASE_MS)
    before = queue.queue_state()
    ticked = queue.tick(36)
    after = queue.queue_state()
    # cancelling, dead letters, leases, delayed tasks, ends of windows, marks: a sixth of the limit each
    assert (ticked.promoted, ticked.expired, ticked.reaped, ticked.trimmed) == (6, 6, 6, 6)
    assert (after["cancelled"] - before["cancelled"], before["remembered"] - after["remembered"]) == (6, 12)
    while queue.tick(36).next_due == queue.now:
        pass
    state = queue.queue_state()
    assert (state["delayed"], state["leased"], state["remembered"]) == (0, 0, 136)


@pytest.mark.parametrize(("tenants", "each", "most"), [(1, 500, 28), (50, 50, 36), (500, 1, 55)])
def test_a_tick_of_a_herd_runs_few_commands(queue: Queue, tenants: int, each: int, most: int) -> None:
    """A caller may wait for it, so it is short however many tenants have the tasks."""
    for n in range(tenants):
        queue.enqueue(f"t{n}", *(f"t{n}-{k}" for k in range(each)), delay=10)
    queue.advance(10)
    for _ in range(3):
        assert run_by(queue, lambda: queue.tick(500)) <= most
        queue.advance(1)


def test_leases_that_ran_out_are_looked_for_in_so_many_bundles_only(queue: Queue) -> None:
    for n in range(30):
        queue.enqueue("ada", *(f"a{n}-{k}" for k in range(100)))
    lost = []
    for n in range(30):
        lease, *others = leased_in(queue.call("claim", f"w{n}", 100))
        queue.settle(*(("ack", each.id, each.lease) for each in others))
        lost.append(lease.id)
    queue.advance(LEASE_MS)
    assert [queue.tick(100).reaped for _ in range(3)] == [20, 10, 0], "a bundle has a hundred ids to look at"
    assert {queue.state(id) for id in lost} == {"ready"}


def test_a_feed_that_is_to_be_shorter_goes_a_few_events_at_a_time(queue: Queue) -> None:
    queue.enqueue("ada", *(f"a{n}" for n in range(61)), events=1)
    for lease in queue.claim(60):
        queue.end("ack", lease)
    queue.configure(events_keep=5)
    kept = []
    for _ in range(7):
        queue.enqueue("ada", "more", events=1)
        queue.cancel("more")
        queue.advance(200_000)
        queue.tick()
        kept.append(len(queue.events("ada", 0, 500).events))
    assert kept == [51, 42, 33, 24, 15, 6, 5]


def test_long_templates_fire_a_page_at_a_time(queue: Queue) -> None:
    task = packed_template(payload=b"x" * (PAGE // 2))
    for n in range(4):
        queue.call("schedule", "ada", f"s{n}", queue.now + 1000, 1, b"any bytes", task)
    queue.advance(1000)

    def fire() -> list[str]:
        rows = [row for row in queue.call("schedules", "", "", 0, 500)[1:]]
        return words(queue.call("fire", *(word for row in rows for word in (row[0], row[1], queue.now + 9000))))

    assert fire() == ["ok", "ok", "later", "later"]
    assert fire()[:2] == ["ok", "ok"], "the rest is still due"
    assert queue.queue_state()["ready"] == 4


def test_long_results_come_a_page_at_a_time(queue: Queue) -> None:
    queue.enqueue("ada", *"abcd", result_ttl=10**6)
    queue.settle(*(("ack", lease.id, lease.lease, "", "r" * (PAGE // 2)) for lease in queue.claim(4)))
    assert list(map(len, queue.call("results", *"abcd"))) == [PAGE // 2] * 2


def test_a_rate_for_all_is_set_without_looking_at_who_is_out_of_tokens(queue: Queue) -> None:
    queue.claimed = CLAIMED_BY_RATE
    queue.set_limits("", rate=0.001, burst=1)
    enqueue_each(queue, 300)
    for n in range(300):
        queue.enqueue(f"t{n}", f"more{n}")
    assert len(queue.claim(300)) == 300
    assert queue.claim(10) == []
    parked = queue.client.zrange(queue.key("parked"), 0, -1, withscores=True)
    assert len(parked) == 300
    assert run_by(queue, lambda: queue.set_limits("", rate=0)) < 30
    assert queue.client.zrange(queue.key("parked"), 0, -1, withscores=True) == parked
    while queue.tick().next_due == queue.now:
        pass
    assert (queue.client.zcard(queue.key("parked")), len(queue.claim(300))) == (0, 300)


def test_a_claim_buries_so_many_late_tasks_of_one_tenant_and_leaves_the_rest(queue: Queue) -> None:
    queue.enqueue("ada", *(f"a{n}" for n in range(300)), expires_in=10)
    queue.enqueue("ada", "fresh")
    queue.advance(10)
    for calls in range(1, 4):
        assert leased_in(queue.call("claim", "w1", 150)) == []
        assert queue.queue_state()["dead"] == 64 * calls
    assert [lease.id for lease in leased_in(queue.call("claim", "w1", 150))] == ["fresh"]
    assert queue.queue_state()["dead"] == 256
    Keyspace(queue).check()


def test_a_claim_from_tenants_with_a_rate_leaves_what_is_too_much_for_one_call(queue: Queue) -> None:
    queue.call("set_limits", "", "rate", 1, "burst", 1)
    ids = enqueue_each(queue, 100)
    first = leased_in(queue.call("claim", "w1", 150))
    assert len(first) == 60
    assert queue.queue_state()["hungry"] == 0, "waiting servers learn that there is more"
    rest = leased_in(queue.call("claim", "w2", 150))
    assert sorted(lease.id for lease in first + rest) == sorted(ids)


def test_a_claim_from_tenants_with_groups_leaves_what_is_too_much_for_one_call(queue: Queue) -> None:
    for n in range(100):
        queue.enqueue(f"t{n}", *(f"{n}-{each}" for each in "abc"), group="g")
    first = leased_in(queue.call("claim", "w1", 150))
    assert len(first) == 60
    assert queue.queue_state()["hungry"] == 0, "waiting servers learn that there is more"
    assert len(leased_in(queue.call("claim", "w2", 150))) == 60


def test_a_claim_from_one_tenant_with_groups_is_as_long_as_any(queue: Queue) -> None:
    queue.enqueue("ada", *(f"a{n}" for n in range(200)), group="g")
    assert len(leased_in(queue.call("claim", "w1", 150))) == 150


def test_a_forgotten_tenant_costs_few_commands(queue: Queue) -> None:
    enqueue_each(queue, 100)
    queue.settle(*(("ack", lease.id, lease.lease) for lease in queue.claim(100)))
    seen: list[object] = []
    run = run_by(queue, lambda: seen.extend(queue.call("forget_tenants", "0", 100, 0, "")))
    assert seen[1] == 100  # the cursor before it: of a scan that may not have noticed that nothing is left
    assert run < 500


def test_the_end_of_a_reserve_does_not_wait_until_the_idle_are_freed(queue: Queue) -> None:
    queue.configure(reserve=10)
    for n in range(130):  # the store frees a short set at once
        queue.enqueue(f"t{n}", f"first{n}", f"second{n}")
    queue.settle(*(("ack", lease.id, lease.lease) for lease in queue.claim(130, slots=300)))
    queue.client.config_set("lazyfree-lazy-user-del", "no")  # as on Redis
    before = freed_in_the_background(queue)
    queue.configure(reserve=0)
    assert freed_in_the_background(queue) == before + 1


def freed_in_the_background(queue: Queue) -> int:
    """Count the values that the store has freed beside its calls, or is about to."""
    memory = queue.client.info("memory")
    return int(memory["lazyfreed_objects"] + memory["lazyfree_pending_objects"])
