"""Replacing a waiting task by its dedupe key, through the SDK."""

from __future__ import annotations

from functools import partial

import pytest

import fairq
from fairq.errors import BadRequest, QuotaExceeded
from fairq.server.run import Served
from tests.server.harness import OPERATOR, url_of
from tests.store.waiting import wait_until

from .harness import working
from .test_batch import Mill


async def test_a_waiting_task_is_cancelled_for_the_new_one(served: Served, ada: fairq.Client) -> None:
    first = await ada.enqueue("emails", "old", dedupe_key="k", delay=3600)
    again = await ada.enqueue("emails", "new", dedupe_key="k", replace=True, delay=1800, expires_in=7200, priority=3)
    assert (again.id != first.id, again.is_replaced, again.is_duplicate, first.is_replaced) == (
        True,
        True,
        False,
        False,
    )
    assert ((await first.state()).state, (await again.state()).state) == ("cancelled", "delayed")
    await ada.enqueue("emails", "now", dedupe_key="k", replace=True)
    mill = Mill(served)
    async with working(mill.app):
        await wait_until(partial(mill.has_run, 1))
        assert mill.ran == ["now"]
        await wait_until(lambda: not mill.running)
    later = await ada.enqueue("emails", "later", dedupe_key="k", replace=True)
    assert not later.is_replaced


async def test_a_running_task_is_not_replaced(served: Served, ada: fairq.Client) -> None:
    first, mill = await ada.enqueue("emails", "old", dedupe_key="k"), Mill(served)
    mill.gate = type(mill.gate)()
    async with working(mill.app):
        await wait_until(lambda: mill.running == 1)
        again = await ada.enqueue("emails", "new", dedupe_key="k", replace=True)
        assert (again.id, again.is_replaced, again.is_duplicate) == (first.id, False, True)
        mill.gate.set()
        await wait_until(partial(mill.has_run, 1))
    assert mill.ran == ["old"]


async def test_replacing_needs_a_key_and_no_batch(ada: fairq.Client) -> None:
    for options in ({"replace": True}, {"replace": True, "dedupe_key": "k", "batch": "b"}):
        with pytest.raises(BadRequest) as caught:
            await ada.enqueue("emails", 1, **options)
        assert caught.value.field == "replace"
    with pytest.raises(BadRequest, match="schedule have no replace"):
        await ada.schedule("emails", "n", 1, every=60, dedupe_key="k", replace=True)


async def test_a_tenant_that_is_full_may_replace(served: Served, ada: fairq.Client) -> None:
    await ada.enqueue("emails", "old", dedupe_key="k")
    async with fairq.open_operator(url_of(served), token=OPERATOR) as boss:
        await boss.set_limits("emails", "ada", queued=1)
    with pytest.raises(QuotaExceeded):
        await ada.enqueue("emails", "more")
    assert (await ada.enqueue("emails", "new", dedupe_key="k", replace=True)).is_replaced
