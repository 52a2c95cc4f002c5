"""Groups of one tenant through the SDK: they take turns, and so do its batches."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

import fairq
from fairq.errors import BadRequest
from fairq.server.run import Served
from tests.store.waiting import wait_until

from .harness import working
from .test_batch import Mill


async def run_all(served: Served, count: int) -> list[Any]:
    """Run so many tasks, four at once; returns their payloads in the order of their starts."""
    mill = Mill(served, 4)
    async with working(mill.app):
        await wait_until(partial(mill.has_run, count))
    return mill.ran


async def test_groups_take_turns_by_their_weights(served: Served, ada: fairq.Client) -> None:
    await ada.enqueue_many("emails", ["a"] * 60, group="a", group_weight=2)
    await ada.enqueue_many("emails", ["b"] * 20, group="b")
    await ada.enqueue_many("emails", ["loose"] * 20)
    ran = await run_all(served, 100)
    assert Counter(ran) == {"a": 60, "b": 20, "loose": 20}
    for name, due in (("a", 20), ("b", 10), ("loose", 10)):
        assert abs(ran[:40].count(name) - due) <= 4  # what four handlers at once may come out of order by


async def test_a_small_batch_does_not_wait_for_a_large_one(served: Served, ada: fairq.Client) -> None:
    """150 tasks, then 20, eight of each at once, four slots: 2 x 20 + 8 starts, and 8 more that run beside the last."""
    for name, count in (("large", 150), ("small", 20)):
        batch = await ada.open_batch("emails", max_running=8)
        await batch.add_many([name] * count)
        await batch.close()
    ran = await run_all(served, 170)
    last = max(n for n, payload in enumerate(ran) if payload == "small")
    assert last < 2 * 20 + 8 + 8


async def test_a_weight_without_a_group_is_refused(served: Served, ada: fairq.Client) -> None:
    with pytest.raises(BadRequest, match="group_weight is nothing without group or batch") as caught:
        await ada.enqueue("emails", 1, group_weight=2)
    assert caught.value.field == "group_weight"
    with pytest.raises(BadRequest, match="group_weight must be a number from") as caught:
        await ada.enqueue("emails", 1, group="a", group_weight=-1)
    with pytest.raises(BadRequest, match="group must be printable text of at most 128 bytes"):
        await ada.enqueue("emails", 1, group="é" * 65)
    task = await ada.enqueue("emails", 1, group="é" * 64, group_weight=None)
    assert (await ada.why("emails", task.id)).groups == 1


async def test_a_task_tells_its_place_among_groups(served: Served, ada: fairq.Client) -> None:
    tasks = await ada.enqueue_many("emails", range(5), group="a")
    await ada.enqueue_many("emails", range(5), group="b")
    why = await ada.why("emails", tasks[3].id)
    assert (why.ahead, why.is_ahead_exact, why.group_ahead, why.groups) == (6, True, 3, 2)
