"""What a server counts of what goes by: exact in sum, and bounded."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fairq.model.history import LAST_BUCKET, OTHERS, percentile_of
from fairq.model.tasks import Lease, Settlement
from fairq.store.counts import MAX_ADDED, MAX_TENANTS, Counts

TENANTS = st.integers(0, 600).map(lambda n: f"t{n}")


def bucket_of(waited_ms: int) -> int:
    """Return the first bucket that ends later, or the last."""
    return next((n for n in range(LAST_BUCKET) if waited_ms < 2 ** (n / 2)), LAST_BUCKET)


def lease(tenant: str, waited_ms: int = 0, attempt: int = 1) -> Lease:
    """Make a lease of a task that was ready so long ago (the claim comes at 10^9)."""
    return Lease(f"{tenant}/a", 1, attempt, 5, tenant, 10**9 - waited_ms, 0, 0, b"{}")


@given(st.lists(st.tuples(TENANTS, st.integers(0, 5), st.integers(0, 10**8)), max_size=1_000))
def test_sums_are_exact_however_many_tenants_there_are(events: list[tuple[str, int, int]]) -> None:
    counts, waits = Counts(), Counter[int]()
    for tenant, tasks, waited in events:
        counts.enqueued("q", tenant, tasks)
        counts.claimed("q", 10**9, [lease(tenant, waited), lease(tenant, attempt=2)])
        counts.settled("q", [Settlement("nack", f"{tenant}/a", 1), Settlement("ack", f"{tenant}/b", 1)], ["ok", "ok"])
        waits[bucket_of(waited)] += 1
    taken = counts.take("q")
    assert counts.queues == {}
    if not events:
        assert taken is None
        return
    assert taken is not None
    rows = taken.tenants
    assert len(rows.keys() - {OTHERS}) <= MAX_ADDED
    assert sum(row.enqueued for row in rows.values()) == sum(tasks for _, tasks, _ in events)
    assert sum(row.started for row in rows.values()) == 2 * len(events)
    assert sum(row.failed for row in rows.values()) == len(events)
    assert sum((Counter(row.waits) for row in rows.values()), Counter()) == +waits


def test_ten_thousand_tenants_are_counted_in_two_hundred_rows_and_the_large_ones_stay() -> None:
    counts = Counts()
    for n in range(10_000):
        counts.claimed("q", 10**9, [lease(f"t{n}"), *([lease(f"large-{n % 20}")] * 2)])
        assert len(counts.of("q").tenants) <= MAX_TENANTS + 1
    taken = counts.take("q")
    assert taken is not None
    assert {name: taken.tenants[name].started for name in taken.tenants if name.startswith("large")} == {
        f"large-{n}": 1_000 for n in range(20)
    }
    assert len(taken.tenants) <= MAX_ADDED + 1


def test_only_failures_that_the_store_took_count() -> None:
    counts = Counts()
    actions = ("ack", "nack", "reject", "release", "nack")
    settled = [Settlement(action, "ada/a", 1) for action in actions]  # type: ignore[arg-type]
    counts.settled("q", settled, ["ok"] * 4 + ["gone"])
    assert counts.of("q").tenants["ada"].failed == 2


@given(st.integers(0, 10**12))
def test_a_percentile_is_right_to_a_fifth(waited: int) -> None:
    found = percentile_of({bucket_of(waited): 1}, 50)
    assert found is not None
    if waited >= 2 ** (LAST_BUCKET / 2):
        assert found >= 2 ** ((LAST_BUCKET - 1) / 2)
    else:
        assert abs(found - waited) <= 0.2 * waited + 0.5


def test_percentiles_are_those_of_the_ranks() -> None:
    assert percentile_of({}, 50) is None
    waits = {bucket_of(0): 98, bucket_of(100): 1, bucket_of(10_000): 1}
    assert [percentile_of(waits, percent) for percent in (50, 98, 99)] == [0, 0, percentile_of({bucket_of(100): 1}, 50)]
