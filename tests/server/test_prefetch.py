"""A worker that is gone had begun the oldest of its tasks; the others lose no attempt."""

from __future__ import annotations

from typing import Any

import pytest

from fairq.model.tasks import Lease
from fairq.server.dispatch.worker_account import Terms, WorkerAccount
from fairq.server.run import Served
from tests.store.waiting import wait_until

from .harness import WORKER, Raw, raw, running, tenant
from .test_reconnect import LONG, brought, end_grace


async def states(served: Served, *ids: str, queue: str = "q") -> dict[str, str]:
    """Read what became of ada's tasks: those that had one attempt are dead if it counted."""
    found = await served.app.store.tasks(queue, [f"ada/{id}" for id in ids])
    return {id: state.state for id, state in zip(ids, found, strict=True)}


async def take(worker: Raw, ada: Raw, *ids: str, queue: str = "q") -> list[dict[str, Any]]:
    """Have tasks with one attempt pushed to a worker."""
    await ada.enqueue(queue, ids, max_attempts=1)
    return await worker.pushed(len(ids))


async def is_gone(served: Served) -> None:
    """Wait until the leases of the worker whose connection broke are given back."""
    await wait_until(lambda: bool(served.app.leases.kept))
    await end_grace(served)


async def test_the_next_begins_when_one_is_settled(server_store: str) -> None:
    async with running(server_store, reconnect_grace=LONG) as served, raw(served, tenant("ada")) as ada:
        async with raw(served, WORKER) as worker:
            await worker.attach("q", credit=3, prefetch=2)
            first, second, _ = await take(worker, ada, "a", "b", "c")
            assert await worker.settle("q", "extend", first, second) == ["ok", "ok"]
            assert await worker.settle("q", "ack", first) == ["ok"]
            await take(worker, ada, "d")
        await is_gone(served)
        assert await states(served, *"bcd") == {"b": "dead", "c": "ready", "d": "ready"}


async def test_tasks_of_several_queues_begin_in_the_order_of_their_pushes(server_store: str) -> None:
    async with running(server_store, reconnect_grace=LONG) as served, raw(served, tenant("ada")) as ada:
        async with raw(served, WORKER) as worker:
            await worker.attach("p", "q", credit=4, prefetch=2)
            await take(worker, ada, "a")
            await take(worker, ada, "b", "c", queue="p")
            await take(worker, ada, "d")
        await is_gone(served)
        assert await states(served, *"ad") == {"a": "dead", "d": "ready"}
        assert await states(served, *"bc", queue="p") == {"b": "dead", "c": "ready"}


async def test_what_was_brought_from_another_connection_had_begun(server_store: str) -> None:
    async with running(server_store, reconnect_grace=LONG) as served, raw(served, tenant("ada")) as ada:
        async with raw(served, WORKER) as worker:
            await worker.attach("q", credit=2)
            tasks = await take(worker, ada, "a", "b")
        async with raw(served, WORKER) as worker:
            assert await worker.attach("q", credit=4, prefetch=3, leases=brought(*tasks)) == ["ok", "ok"]
            await take(worker, ada, "c", "d")
        await wait_until(lambda: len(served.app.leases.kept) == 2)
        await end_grace(served)
        assert await states(served, *"abcd") == {"a": "dead", "b": "dead", "c": "dead", "d": "ready"}


BEGUN: dict[str, tuple[int, int, tuple[int, ...], str, str]] = {
    # credit, prefetch, later credits -> tasks that had begun, and that had not
    "the tasks pushed last had not begun": (4, 3, (), "a", "bcd"),
    "without prefetch all had begun": (2, 0, (), "ab", ""),
    "more begin once the credit was raised": (3, 2, (4, 1, 3), "ab", "c"),
}


@pytest.mark.parametrize("case", BEGUN)
async def test_a_worker_that_breaks_off_had_begun_the_oldest(server_store: str, case: str) -> None:
    most, prefetch, credits, begun, waiting = BEGUN[case]
    async with running(server_store, reconnect_grace=LONG) as served, raw(served, tenant("ada")) as ada:
        async with raw(served, WORKER) as worker:
            await worker.attach("q", credit=most, prefetch=prefetch)
            for credit in credits:
                await worker.ask("credit", credit=credit)
            await take(worker, ada, *begun, *waiting)
        await is_gone(served)
        expected = dict.fromkeys(begun, "dead") | dict.fromkeys(waiting, "ready")
        assert await states(served, *begun, *waiting) == expected


async def test_a_superseded_worker_had_begun_the_oldest(served: Served) -> None:
    async with raw(served, tenant("ada")) as ada, raw(served, WORKER) as old, raw(served, WORKER) as new:
        await old.attach("q", credit=3, prefetch=2, name="mill", started_at_ms=5)
        await take(old, ada, "a", "b", "c")
        await new.attach("q", credit=0, name="mill", started_at_ms=6)
        await wait_until(lambda: not any(each.account.held for each in served.app.connections))

        async def are_back() -> bool:
            return await states(served, *"abc") == {"a": "dead", "b": "ready", "c": "ready"}

        await wait_until(are_back)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_leases_that_come_back_to_the_account_had_begun(prefetch: int) -> None:
    """One whose settlement failed does, and one that was renewed too late."""
    account = WorkerAccount(prefetch=prefetch)
    account.set_credit(3)
    account.lease("q", [Lease(id, 1, 1, 5, "acme", 10, 0, 0, b"{}") for id in "abc"], 10.0, 0.0)
    account.drop(("q", "a"))
    account.add(("q", "a"), 1, Terms(10.0), 0.0)
    assert account.not_begun() == ({("q", "c")} if prefetch else set())


def test_a_task_that_is_pushed_again_comes_last() -> None:
    account = WorkerAccount(prefetch=1)
    account.set_credit(2)
    tasks = [Lease(id, 1, 1, 5, "acme", 10, 0, 0, b"{}") for id in "ab"]
    account.lease("q", tasks, 10.0, 0.0)
    account.lease("q", [tasks[0]._replace(lease=2)], 10.0, 0.0)
    assert account.not_begun() == {("q", "a")}
