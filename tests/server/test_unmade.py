"""Waits for queues that do not exist: a tenant has the server listen to some, and names cost others nothing."""

from __future__ import annotations

import pytest
import trio

from fairq.server import queues as module
from fairq.server.run import Served
from tests.store.waiting import wait_until

from .harness import raw, tenant
from .test_events import finish, waited_for


@pytest.mark.usefixtures("no_polls")
async def test_a_tenant_has_few_queues_listened_to_that_do_not_exist(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_UNMADE", 3)
    async with raw(served, tenant("ada")) as ada, raw(served, tenant("bob")) as bob, trio.open_nursery() as nursery:
        before = len(served.app.queues._channels)
        for n in range(8):
            await ada.ask("events", queue=f"none{n}", timeout_ms=1)
            await ada.ask("wait_tasks", queue=f"never{n}", ids=["t"], timeout_ms=1)
        assert len(served.app.queues._channels) == before + 3
        heard: list[int] = []

        async def wait() -> None:
            heard.append(len((await bob.ask("events", queue="q", timeout_ms=20_000))["events"]))

        nursery.start_soon(wait)
        await waited_for(served, "bob")
        await finish(served.app.store, "t", name="bob")
        await wait_until(lambda: heard == [1])
