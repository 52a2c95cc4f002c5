"""The history of a queue: what is added to its rings, once, and what is read from them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping

import pytest
import redis

from fairq.model.history import OTHERS, STEPS, Slot
from fairq.store.records import pack_waits, unpack_slot

from .calls import START, Queue, snapshot
from .test_delete import crowd

RINGS = tuple(STEPS.values())
Row = tuple[int, int, int, bytes]  # of a tenant: tasks enqueued, started, failed; waiting times


def add(queue: Queue, rows: Mapping[str, Row], lost: int = 0) -> int:
    """Add what a server has counted; return how many tasks are leased."""
    return int(queue.call("add_history", lost, *(part for name, row in rows.items() for part in (name, *row))))


def row(enqueued: int = 0, started: int = 0, failed: int = 0, waits: Mapping[int, int] | None = None) -> Row:
    return (enqueued, started, failed, pack_waits(Counter(waits or {})))


def read(queue: Queue, step: int = 10, last: int = -1, count: int = 240) -> list[Slot]:
    """Read the intervals of a ring."""
    return [unpack_slot(packed) for packed in queue.call("history", step, last, count)[2:]]


def rows_of(queue: Queue) -> list[dict[str, float]]:
    """Read what tenants were given in each interval of the first ring."""
    return [{row.tenant: row.delivered for row in slot.rows} for slot in read(queue)]


def test_what_a_server_counts_is_added_to_all_rings(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b")
    queue.enqueue("bob", "c")
    leases = queue.claim(3)
    queue.advance(500)
    queue.end("ack", leases[0])
    assert add(queue, {"ada": row(2, 2, 1, {3: 1, 5: 1}), "bob": row(1, 1, 0, {0: 1})}, lost=4) == 2
    for step, _ in RINGS:
        (slot,) = read(queue, step)
        assert slot.number == queue.now // 1000 // step
        assert (slot.enqueued, slot.done, slot.dead, slot.lost) == (3, 1, 0, 4)
        rows = {row.tenant: row for row in slot.rows}
        assert (rows["ada"].enqueued, rows["ada"].started, rows["ada"].failed) == (2, 2, 1)
        assert (rows["ada"].waits, rows["bob"].waits) == ({3: 1, 5: 1}, {0: 1})
        assert sum(row.done for row in slot.rows) == 1
        assert sum(row.delivered for row in slot.rows) == 1500  # three tasks for half a second


def test_a_call_that_is_repeated_counts_twice_what_the_server_saw_and_nothing_else(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    for _ in range(2):
        add(queue, {"ada": row(1)})
    (slot,) = read(queue)
    assert (slot.enqueued, slot.rows[0].enqueued) == (1, 2)


@pytest.mark.parametrize("share", [0, 1])
def test_tenants_that_are_named_by_turns_are_counted_once_and_at_once(queue: Queue, share: int) -> None:
    queue.configure(share=share)
    names = [f"t{n:02}" for n in range(40)]
    ids = itertools.count()
    for number in range(1, 5):
        for name in names:
            queue.enqueue(name, f"id-{next(ids)}", f"id-{next(ids)}")
        leases = queue.claim(80)
        queue.advance(10)
        for lease in leases:
            queue.end("ack", lease)
        named = names[20:] if number % 2 else names[:20]
        add(queue, {**{name: row(2, 2) for name in named}, OTHERS: row(40, 40)})
        rows = [row for slot in read(queue) for row in slot.rows]
        assert sum(row.started for row in rows) == 80 * number
        for what in ("done", "delivered", "entitled"):
            truth = sum(getattr(share, what) for share in queue.tenants().values())
            assert sum(getattr(row, what) for row in rows) == pytest.approx(truth)
        queue.advance(9_990)
    last = read(queue)[-1]
    unit = 1 if share else 10
    assert sum(row.delivered for row in last.rows) == pytest.approx(80 * unit), "late or not, what the queue gave"
    assert len([row for row in last.rows if row.tenant]) == 20


def test_a_tenant_that_was_not_named_for_long_is_credited_at_most_what_the_queue_gave_since(queue: Queue) -> None:
    queue.configure(share=1)
    for n in range(100):
        queue.enqueue("ada", f"a-{n}")
    add(queue, {"ada": row(100)})
    for _ in range(10):
        queue.claim(5)
        queue.advance(60_000)
        add(queue, {OTHERS: row(0, 5)})
    queue.enqueue("bob", "b-1", "b-2", "b-3", "b-4")
    queue.claim(8)
    bob = queue.tenants()["bob"].delivered
    assert 0 < bob < 8
    add(queue, {"ada": row(0, 5), "bob": row(4, 3)})
    (slot,) = read(queue, count=1)
    assert {row.tenant: row.delivered for row in slot.rows} == {OTHERS: 5, "ada": 8 - bob, "bob": bob}


def test_a_tenant_that_comes_back_is_named_at_once_while_all_are(queue: Queue) -> None:
    queue.configure(share=1)
    queue.enqueue("ada", "a1")
    queue.claim()
    add(queue, {"ada": row(1, 1)})
    for _ in range(2, 5):
        queue.advance(600_000)
        add(queue, {})
    queue.enqueue("ada", "a2")
    queue.claim()
    add(queue, {"ada": row(1, 1)})
    assert rows_of(queue) == [{"ada": 1}, {}, {}, {"ada": 1}]


def test_thousands_of_tenants_in_an_interval_take_as_many_bytes_as_twenty_one(queue: Queue) -> None:
    for number in range(100):
        some = {f"tenant-{number}-{n}": row(1, 1 + n % 3, 0, {n % 8: 1}) for n in range(25)}
        add(queue, {**some, OTHERS: row(0, 7)})
    for step, _ in RINGS:
        (slot,) = read(queue, step)
        assert len(slot.rows) == 21
        assert sum(row.enqueued for row in slot.rows) == 2_500
        assert sum(row.started for row in slot.rows) == 100 * (7 + sum(1 + n % 3 for n in range(25)))
        assert sum(sum(row.waits.values()) for row in slot.rows) == 2_500
        assert all(row.started == 3 for row in slot.rows if row.tenant), "those with the most traffic are kept"
    assert queue.client.hkeys(queue.key("history_last")) == [b"queue"], "none of them has an account"


def test_tenants_that_are_remembered_are_bounded_and_begin_anew(queue: Queue) -> None:
    queue.configure(share=1, max_tenants=2_000)
    names = [f"t{n}" for n in range(1_110)]
    for name in names:
        queue.enqueue(name, name)
    queue.claim(500)
    sizes = []
    for number in range(40):
        add(queue, {name: row(1) for name in names[number * 30 % 1_110 :][:30]})
        queue.advance(60_000)
        sizes.append(queue.client.hlen(queue.key("history_last")))
    assert 900 < max(sizes) <= 1_060
    assert sizes[-1] < 300
    found = sum(row.delivered for slot in read(queue, 60) for row in slot.rows)
    assert found == sum(share.delivered for share in queue.tenants().values()) == 500


def test_those_that_got_the_most_are_named(queue: Queue) -> None:
    queue.configure(share=1)
    for n in range(22):
        queue.enqueue(f"t{n}", *(f"t{n}/{k}" for k in range(n + 1)))
    queue.claim(300)
    add(queue, {f"t{n}": row(n + 1) for n in range(22)})
    assert rows_of(queue) == [{OTHERS: 1 + 2} | {f"t{n}": n + 1 for n in range(2, 22)}]


def test_what_only_the_others_row_has_is_not_repeated(queue: Queue) -> None:
    queue.configure(share=1)
    queue.enqueue("ada", "a", "b", "c")
    queue.claim(2)
    add(queue, {})
    queue.claim(1)
    add(queue, {"ada": row(0, 1)})
    assert rows_of(queue) == [{OTHERS: 3, "ada": 0}]


def test_a_lost_lease_is_reported_for_no_longer_than_it_is_charged(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    queue.claim()
    queue.advance(40_000)
    assert queue.tick().reaped == 1
    add(queue, {"ada": row(1, 1)}, lost=1)
    assert rows_of(queue) == [{"ada": queue.tenant("ada").delivered}]


def test_all_of_it_expires_by_itself(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    add(queue, {"ada": row(1)})
    names = ("history:10", "history:60", "history:900", "history_last")
    for share in (0, 1):  # what is shared changes, too
        queue.configure(share=share)
        ttl_s = [queue.client.ttl(queue.key(name)) for name in names]
        assert ttl_s == [pytest.approx(expected, abs=5) for expected in (3_600, 86_400, *[14 * 86_400] * 2)]


def test_a_ring_keeps_no_more_than_its_period(queue: Queue) -> None:
    for _ in range(400):
        add(queue, {"ada": row(1)})
        queue.advance(10_000)
    assert queue.client.hlen(queue.key("history:10")) == 360
    newest = queue.now // 10_000
    kept = [slot.number for last in (newest, newest - 240) for slot in read(queue, 10, last)]
    assert sorted(kept) == list(range(newest - 360, newest))


def test_tasks_that_run_on_are_counted_though_nothing_starts(queue: Queue) -> None:
    queue.configure(lease_ms=3_600_000)
    queue.enqueue("ada", "long")
    queue.claim()
    add(queue, {"ada": row(1, 1)})
    for _ in range(2, 8):
        queue.advance(10_000)
        add(queue, {})
    assert rows_of(queue) == [{"ada": 0}, *[{"ada": 10_000}] * 6]


def test_after_a_change_of_what_is_shared_an_interval_may_be_reported_of_the_others(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b", "c")
    lease = queue.claim()[0]
    queue.advance(5_000)
    queue.end("ack", lease)
    add(queue, {"ada": row(2, 1)})
    queue.configure(share=1)
    for _ in range(2):
        queue.advance(10_000)
        queue.claim()
        add(queue, {"ada": row(0, 1)})
    assert rows_of(queue) == [{"ada": 5_000}, {"ada": 0, OTHERS: 1}, {"ada": 1}]


def test_totals_of_a_queue_that_was_never_counted_are_not_taken_for_new(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b")
    queue.advance(600_000)
    add(queue, {})
    queue.enqueue("ada", "c")
    add(queue, {"ada": row(1)})
    (slot,) = read(queue)
    assert (slot.enqueued, slot.rows[0].enqueued) == (1, 1)


def test_a_clock_that_goes_back_spoils_no_interval(queue: Queue) -> None:
    queue.advance(86_400_000)
    add(queue, {"ada": row(1)})
    queue.advance(-86_400_000)
    add(queue, {"ada": row(2)})
    for step, _ in RINGS:
        (slot,) = read(queue, step)
        assert (slot.number, slot.rows[0].enqueued) == (START // 1000 // step, 2)


def test_history_is_no_reason_to_keep_a_queue_and_goes_with_it(queue: Queue) -> None:
    add(queue, {"ada": row(1)})
    assert queue.call("forget_queue", 0, 0, "", 1) == b"ok"
    assert list(queue.client.scan_iter(queue.key("*"))) == [queue.key("test").encode()]


@pytest.mark.parametrize("name", ["unmade", "deleting", "repairing"])
def test_a_queue_that_is_not_there_or_busy_with_itself_takes_none(queue: Queue, name: str) -> None:
    if name == "unmade":
        queue.client.delete(queue.key("queue"))
    elif name == "deleting":
        crowd(queue)
        queue.call("delete_queue", "any")
    else:
        for n in range(700):
            queue.enqueue("ada", f"id-{n}")
        assert queue.call("repair", "")[0] == b"more"
    before = snapshot(queue)
    with pytest.raises(redis.ResponseError, match=f"^FAIRQ {name} queue"):
        add(queue, {"ada": row(1)})
    assert snapshot(queue) == before


def test_the_time_of_a_lost_lease_is_taken_back(queue: Queue) -> None:
    queue.enqueue("ada", "a")
    queue.claim()
    queue.enqueue("bob", "b")
    (lease,) = queue.claim()
    for _ in range(4):
        add(queue, {name: row(0, 1) for name in ("ada", "bob")})
        queue.advance(9_000)
        queue.end("extend", lease)
    queue.call("tick", 100)
    assert queue.tenants()["ada"].leased == 0, "the worker was silent, and its lease is over"
    add(queue, {})
    for name, state in queue.tenants().items():
        found = sum(row.delivered for slot in read(queue) for row in slot.rows if row.tenant == name)
        assert found == pytest.approx(state.delivered), name
