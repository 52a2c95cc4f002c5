"""Groups inside a tenant take equal turns; each is first in, first out; others pay nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from .calls import CLAIMED, Queue, options
from .keyspace import Keyspace
from .test_bounded_calls import run_by


def put(queue: Queue, group: str, count: int, tenant: str = "ada", **asked: Any) -> list[str]:
    """Enqueue so many tasks of a group; their ids begin with its name."""
    known = sum(put.known.values())  # type: ignore[attr-defined]
    put.known[group] += count  # type: ignore[attr-defined]
    ids = [f"{group or 'loose'}-{known + n}" for n in range(count)]
    for start in range(0, count, 100):
        queue.enqueue(tenant, *ids[start : start + 100], group=group, **asked)
    return ids


@pytest.fixture(autouse=True)
def _no_ids_yet() -> None:
    put.known = Counter[str]()  # type: ignore[attr-defined]


def groups(queue: Queue, limit: int) -> list[str]:
    """Claim tasks; returns the groups that they are of."""
    return [lease.id.rpartition("-")[0] for lease in queue.claim(limit)]


def test_a_small_batch_is_done_long_before_the_large_one_that_came_first(queue: Queue) -> None:
    """400 tasks of one batch, then 20 of another, eight of each at once, four slots."""
    for name, count in (("large", 400), ("small", 20)):
        queue.open_batch(name, max_running=8)
        for start in range(0, count, 100):
            ids = [f"{name}-{n}" for n in range(start, min(start + 100, count))]
            queue.enqueue("ada", *ids, batch=name)
        queue.call("close_batch", name)
    starts, running = 0, queue.claim(4)
    while (progress := queue.batch("small")) and progress.state != "complete":
        starts += 1
        queue.end("ack", running.pop(0))
        running += queue.claim(1)
    assert starts <= 2 * 20 + 8


def test_a_group_that_comes_later_banks_nothing_and_waits_for_nobodys_backlog(queue: Queue) -> None:
    put(queue, "a", 300)
    assert set(groups(queue, 100)) == {"a"}
    put(queue, "b", 300)
    got = groups(queue, 20)
    assert Counter(got) == {"a": 10, "b": 10}
    put(queue, "c", 1)
    assert "c" in groups(queue, 3)


def test_groups_that_come_and_go_do_not_hold_up_one_that_waits(queue: Queue) -> None:
    put(queue, "z", 20)
    got = []
    for n in range(30):
        put(queue, f"a{n}", 2)
        got += groups(queue, 1)
    assert got.count("z") >= 2  # each of those that came first has its turn, and those that come now wait
    for n in range(30, 60):
        put(queue, f"a{n}", 1)
        got += groups(queue, 2)
    assert got.count("z") >= 4


def test_groups_buy_no_share(queue: Queue) -> None:
    queue.configure(share=1)
    for n in range(100):
        put(queue, f"g{n}", 2)
    queue.enqueue("bob", *(f"bob-{n}" for n in range(100)))
    assert abs(groups(queue, 100).count("bob") - 50) <= 2


def test_tenants_without_groups_pay_nothing(queue: Queue) -> None:
    """Not one command more, whatever the tenant's other tasks ask for, and though another tenant has groups."""

    def cost(name: str, **asked: Any) -> int:
        counts = [
            run_by(queue, lambda: queue.enqueue("bob", f"{name}-1", f"{name}-2", **asked)),
            run_by(queue, lambda: queue.settle(*(("ack", each.id, each.lease) for each in queue.claim(2)))),
        ]
        return sum(counts)

    queue.enqueue("ada", "a1", events=1, delay=100_000)  # so that what tasks ask for is read in any case
    plain, urgent = cost("plain"), cost("urgent", priority=1)
    for n in range(20):
        put(queue, f"g{n}", 1)
    queue.call("set_paused", "ada", 1)
    assert (cost("again"), cost("more", priority=1)) == (plain - 3, urgent), "bob was new"


@pytest.mark.parametrize("count", [3_000, pytest.param(100_000, marks=pytest.mark.deep("longest"))])
def test_a_claim_reads_no_more_of_many_groups_than_it_needs(queue: Queue, count: int) -> None:
    pipeline = queue.client.pipeline(transaction=False)
    for start in range(0, count, 100):
        parts = [part for n in range(start, start + 100) for part in (f"t{n}", options(group=f"g{n}"), b"{}")]
        pipeline.fcall(f"{queue._functions}enqueue", 1, queue.prefix, queue.now, b"", "ada", *parts)
    pipeline.execute()
    few = run_by(queue, lambda: queue.claim(CLAIMED))
    assert few <= 4 * CLAIMED + 60
    assert len(set(queue.peek("ada", 500))) == 500
    put(queue, "new", 1)
    assert run_by(queue, lambda: queue.cancel(f"t{count - 1}")) < 40
    assert queue.tenant("ada").ready == count - CLAIMED


def test_what_does_not_fit_into_a_reply_stays_first_of_its_group(queue: Queue) -> None:
    large = b"x" * 400_000
    parts = [part for n in range(8) for part in (f"{'ab'[n % 2]}{n}", options(group="ab"[n % 2]), large)]
    queue.call("enqueue", "ada", *parts)
    taken = []
    while leases := queue.claim(8):
        taken.append([lease.id for lease in leases])
        Keyspace(queue).check()
    assert taken[:2] == [["a0", "b1", "a2"], ["b3", "a4", "b5"]]
    assert sorted(taken[2]) == ["a6", "b7"]  # both groups had been emptied, and came anew


def test_groups_that_do_not_fit_into_a_reply_are_served_before_those_that_come_later(queue: Queue) -> None:
    coming, taken = [f"g{n}" for n in range(12)], list[str]()
    for n, group in enumerate(coming):
        queue.enqueue("ada", group, group=group, payload=b"x" * 600_000)
        if n % 2 and n > 3:
            taken += [lease.id for lease in queue.claim(10)]
    assert taken == coming[:8]
