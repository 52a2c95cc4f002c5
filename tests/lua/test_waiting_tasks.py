"""All waiting tasks of one tenant: found page by page, by age and error, and cancelled."""

from __future__ import annotations

from typing import Any

import pytest

from fairq.model.queue.limits import BATCH_BYTES, bytes_of

from .calls import Queue
from .keyspace import Keyspace


def test_a_filter_is_by_age_and_by_error(queue: Queue) -> None:
    queue.enqueue("ada", "old", "broken")
    queue.end("nack", queue.claim(2)[1], 60_000, "no such host: a.b%c")
    queue.advance(1000)
    queue.enqueue("ada", "new")
    assert queue.waiting(older=1000) == ["broken"]
    queue.end("release", queue.claim()[0])
    assert sorted(queue.waiting(older=1000)) == ["broken"]
    assert queue.waiting(error="a.b%") == ["broken"]
    assert queue.waiting(error="A.B") == []
    assert queue.waiting(error="host", older=1001) == []
    assert queue.purge(error="host") == 1
    assert queue.state("broken") == "cancelled"


def test_what_comes_while_a_walk_is_under_way_is_left(queue: Queue) -> None:
    queue.enqueue("ada", *(f"a{n}" for n in range(300)))
    page = queue.waiting_page()
    assert (page.looked, page.waiting) == (len(page.ids), 300)
    assert page.cursor
    queue.advance(1)
    queue.enqueue("ada", *(f"b{n}" for n in range(300)))
    ids, cursor = set(page.ids), page.cursor
    while cursor:
        page = queue.waiting_page(cursor=cursor)
        ids, cursor = ids.union(page.ids), page.cursor
    assert ids == {f"a{n}" for n in range(300)}


@pytest.mark.parametrize("where", [{}, {"priority": 7}, {"group": "g"}, {"delay": 1000}, {"batch": "b"}])
def test_a_thousand_go_without_a_trace(queue: Queue, where: dict[str, Any]) -> None:
    if "batch" in where:
        queue.open_batch("b", max_running=3)
    for n in range(0, 1000, 100):
        queue.enqueue("ada", *(f"a{m}" for m in range(n, n + 100)), **where)
    assert queue.purge() == 1000
    left = {name.partition(":")[0] for name in Keyspace(queue).names}
    assert not left & {"ready", "delayed", "priorities", "group", "turns", "pending", "task_options"}
    queue.advance(120_000)  # in which their ids are remembered
    assert queue.tenant("ada").bytes == (bytes_of("b", BATCH_BYTES) if "batch" in where else 0)


def test_a_hundred_priorities_and_many_groups_are_walked_in_few_calls(queue: Queue) -> None:
    for n in range(100):
        queue.enqueue("ada", f"p{n}", priority=n)
    for n in range(500):
        queue.enqueue("ada", f"g{n}", group=f"group {n}")
    calls, cursor, ids = 0, "", set[str]()
    while cursor or not calls:
        page = queue.waiting_page(cursor=cursor)
        calls, cursor, ids = calls + 1, page.cursor, ids.union(page.ids)
    assert len(ids) == 600
    assert calls < 25
    assert queue.purge() == 600
    Keyspace(queue).check()
