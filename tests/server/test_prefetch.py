"""A worker that is gone had begun the oldest of its tasks; the others lose no attempt."""

from __future__ import annotations

from typing import Any

import pytest

from fairq.model.tasks import Lease, Settlement
from fairq.server.engine.dispatch.worker_account import Terms, WorkerAccount
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


def account_of(credit: int, prefetch: int, *places: str) -> WorkerAccount:
    """Make an account to which tasks were pushed one by one, each named by its queue and id."""
    account = WorkerAccount(prefetch=prefetch)
    account.set_credit(credit)
    for place in places:
        push(account, place)
    return account


def push(account: WorkerAccount, place: str, lease: int = 1) -> None:
    account.lease(place[0], [Lease(place[1:], lease, 1, 5, "acme", 10, 0, 0, b"{}")], 10.0, 0.0)


def waiting(account: WorkerAccount) -> set[str]:
    """Name the tasks that had not begun."""
    return {"".join(place) for place in account.not_begun()}


def test_the_tasks_pushed_last_had_not_begun() -> None:
    assert waiting(account_of(4, 3, "qa", "qb", "qc", "qd")) == {"qb", "qc", "qd"}
    assert waiting(account_of(2, 0, "qa", "qb")) == set(), "without prefetch"


def test_tasks_of_several_queues_begin_in_the_order_of_their_pushes() -> None:
    assert waiting(account_of(4, 2, "qa", "pb", "pc", "qd")) == {"pc", "qd"}


def test_the_next_begins_when_one_is_settled() -> None:
    account = account_of(3, 2, "qa", "qb", "qc")
    account.end("q", [Settlement("extend", "b", 1), Settlement("ack", "a", 1)])
    push(account, "qd")
    assert waiting(account) == {"qc", "qd"}


@pytest.mark.parametrize("prefetch", [0, 2])
def test_leases_that_were_not_pushed_here_had_begun(prefetch: int) -> None:
    """One that another connection had, one whose settlement failed, and one that was renewed too late."""
    account = account_of(3, prefetch, "qa", "qb", "qc")
    account.drop(("q", "a"))
    account.add(("q", "a"), 1, Terms(10.0), 0.0)
    assert waiting(account) == ({"qc"} if prefetch else set())


def test_a_task_that_is_pushed_again_comes_last() -> None:
    account = account_of(2, 1, "qa", "qb")
    push(account, "qa", lease=2)
    assert waiting(account) == {"qa"}
