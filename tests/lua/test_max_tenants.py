"""A queue has a bound on its tenants: what would make one more is refused, and those that it has go on."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from .calls import Queue, refused, snapshot


@pytest.fixture
def full(queue: Queue) -> Queue:
    """A queue that has as many tenants as it may have."""
    queue.enqueue("ada", "a1")
    queue.enqueue("bob", "b1")
    queue.configure(max_tenants=2)
    return queue


@pytest.mark.parametrize("given", [{}, {"delay": 50}, {"key": "k"}])
def test_a_task_makes_no_tenant_too_many(full: Queue, given: dict[str, Any]) -> None:
    before = snapshot(full)
    with pytest.raises(redis.ResponseError, match=r"^FAIRQ quota_exceeded max_tenants 60000"):
        full.enqueue("cyd", "c1", **given)
    assert snapshot(full) == before
    assert full.enqueue("bob", "b2", **given) == ["ok"]


def test_a_batch_or_a_schedule_makes_none(full: Queue) -> None:
    batch = (0, "", "", "", 0)
    refused(full, "quota_exceeded max_tenants", "open_batch", "cyd", "cyd/b", *batch)
    assert full.call("open_batch", "bob", "bob/b", *batch) == b"ok"


def test_one_that_goes_makes_room_for_another(full: Queue) -> None:
    full.call("cancel", "", "a1")
    assert full.call("drop_tenant", "ada") == [b"ok"]
    assert full.enqueue("cyd", "c1") == ["ok"]
    with pytest.raises(redis.ResponseError, match="max_tenants"):
        full.enqueue("ada", "a2")


def test_operators_may_make_more(full: Queue) -> None:
    assert full.call("set_weight", "cyd", 2000) == 1000
    assert full.enqueue("cyd", "c1") == ["ok"]


def test_a_lower_bound_takes_nothing_away(full: Queue) -> None:
    full.configure(max_tenants=1)
    assert full.enqueue("bob", "b2") == ["ok"]
    assert len(full.claim(3)) == 3
