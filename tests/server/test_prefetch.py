"""A worker that is gone had begun the oldest of its tasks; the others lose no attempt: see test_worker_account.py."""

from __future__ import annotations

from typing import Any

from fairq.server.run import Served
from tests.store.waiting import wait_until

from .harness import WORKER, Raw, raw, running, tenant
from .test_reconnect import LONG, end_grace


async def states(served: Served, *ids: str) -> dict[str, str]:
    """Read what became of ada's tasks: those that had one attempt are dead if it counted."""
    found = await served.app.store.tasks("q", [f"ada/{id}" for id in ids])
    return {id: state.state for id, state in zip(ids, found, strict=True)}


async def take(worker: Raw, ada: Raw, *ids: str) -> list[dict[str, Any]]:
    """Have tasks with one attempt pushed to a worker."""
    await ada.enqueue("q", ids, max_attempts=1)
    return await worker.pushed(len(ids))


async def test_a_worker_that_breaks_off_had_begun_the_oldest(server_store: str) -> None:
    async with running(server_store, reconnect_grace=LONG) as served, raw(served, tenant("ada")) as ada:
        async with raw(served, WORKER) as worker:
            await worker.attach("q", credit=3, prefetch=2)
            for credit in (4, 1, 3):
                await worker.ask("credit", credit=credit)
            await take(worker, ada, "a", "b", "c")
        await wait_until(lambda: bool(served.app.leases.kept))
        await end_grace(served)
        assert await states(served, *"abc") == {"a": "dead", "b": "dead", "c": "ready"}


async def test_a_superseded_worker_had_begun_the_oldest(served: Served, ada: Raw) -> None:
    async with raw(served, WORKER) as old, raw(served, WORKER) as new:
        await old.attach("q", credit=3, prefetch=2, name="mill", started_at_ms=5)
        await take(old, ada, "a", "b", "c")
        await new.attach("q", credit=0, name="mill", started_at_ms=6)
        await wait_until(lambda: not any(each.account.held for each in served.app.connections))

        async def are_back() -> bool:
            return await states(served, *"abc") == {"a": "dead", "b": "ready", "c": "ready"}

        await wait_until(are_back)


async def test_the_tasks_of_a_worker_that_is_gone_keep_their_order(served: Served, ada: Raw) -> None:
    async with raw(served, WORKER) as worker:
        await worker.attach("q", credit=4, prefetch=3)
        await take(worker, ada, "a", "b", "c", "d")
    await ada.enqueue("q", ["e"])

    async def are_back() -> bool:
        return set((await states(served, *"bcd")).values()) == {"ready"}

    await wait_until(are_back)
    async with raw(served, WORKER) as next_one:
        await next_one.attach("q", credit=4, name="next")
        assert [each["id"] for each in await next_one.pushed(4)] == ["b", "c", "d", "e"]
