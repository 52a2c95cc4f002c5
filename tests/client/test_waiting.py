"""Tasks before their time, through the SDK: priorities, dedupe keys, cancel, reschedule, peek."""

from __future__ import annotations

from functools import partial

import fairq
from fairq.server.run import Served
from tests.server.harness import WORKER, raw
from tests.store.waiting import wait_until

from .harness import working
from .test_batch import Mill


async def test_equal_payloads_are_one_task_whatever_the_order_of_their_keys(served: Served, ada: fairq.Client) -> None:
    payloads = [{"a": 1, "b": [1]}, {"b": [1], "a": 1}, {"a": 1, "b": [2]}]
    first, second, third = await ada.enqueue_many("emails", payloads, dedupe_payload=True)
    assert (second.id, second.is_duplicate) == (first.id, True)
    assert not third.is_duplicate


async def test_a_delayed_task_is_started_now_or_later(served: Served, ada: fairq.Client) -> None:
    task = await ada.enqueue("emails", 1, delay=3600)
    assert await task.reschedule(delay=7200) == "ok"
    state = await task.state()
    assert state.state == "delayed"
    assert state.at_ms > 0
    async with raw(served, WORKER) as worker:
        await worker.attach("emails")
        assert await task.reschedule() == "ok"
        (pushed,) = await worker.pushed()
        assert pushed["id"] == task.id
    assert await ada.reschedule("emails", ["nobody"]) == ["gone"]


async def test_a_waiting_task_is_cancelled_for_the_new_one(served: Served, ada: fairq.Client) -> None:
    first = await ada.enqueue("emails", "old", dedupe_key="k", delay=3600)
    again = await ada.enqueue("emails", "new", dedupe_key="k", replace=True, delay=1800, expires_in=7200, priority=3)
    assert again.id != first.id
    assert (again.is_replaced, again.is_duplicate, first.is_replaced) == (True, False, False)
    assert ((await first.state()).state, (await again.state()).state) == ("cancelled", "delayed")
    await ada.enqueue("emails", "now", dedupe_key="k", replace=True)
    mill = Mill(served)
    async with working(mill.app):
        await wait_until(partial(mill.has_run, 1))
        assert mill.ran == ["now"]
        await wait_until(lambda: not mill.running)
    later = await ada.enqueue("emails", "later", dedupe_key="k", replace=True)
    assert not later.is_replaced


async def test_a_task_tells_its_place_among_groups(served: Served, ada: fairq.Client) -> None:
    tasks = await ada.enqueue_many("emails", range(5), group="a")
    await ada.enqueue_many("emails", range(5), group="b")
    why = await ada.why("emails", tasks[3].id)
    assert (why.ahead, why.is_ahead_exact, why.group_ahead, why.groups) == (6, True, 3, 2)
