"""A queue that can do nothing for now keeps a worker that comes back out of none of its other queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fairq.errors import FairqError, NotFound, OutcomeUnknown, TooMany, Unavailable
from fairq.model.tasks import Taken
from fairq.server.run import Served
from fairq.store.store import Store
from tests.store.waiting import wait_until

from .harness import WORKER, Refused, lease_of, raw, running, tenant
from .test_reconnect import LONG, end_grace


async def broken(served: Served) -> tuple[dict[str, Any], dict[str, Any]]:
    """Have a worker take a task of the queue p and one of q, and its connection break."""
    async with raw(served, tenant("ada")) as ada, raw(served, WORKER) as worker:
        await worker.attach("p", "q", credit=2)
        await ada.enqueue("p", ["a"])
        (one,) = await worker.pushed()
        await ada.enqueue("q", ["a"])
        (other,) = await worker.pushed()
    await wait_until(lambda: not served.app.connections)
    return one, other


async def begin_repair(served: Served) -> int:
    """Repair the queue p as far as one call goes, of a queue with many tasks; returns the repair's number."""
    async with raw(served, tenant("ada")) as ada:
        await ada.enqueue("p", [f"later-{n}" for n in range(300)], delay_ms=3_600_000)
    step = await served.app.store.repair("p", seconds=0)
    assert step.outcome == "more"
    return int(step.number)


async def test_a_queue_under_repair_keeps_a_worker_out_of_no_other(server_store: str) -> None:
    async with running(server_store, reconnect_grace=LONG) as served:
        one, other = await broken(served)
        number = await begin_repair(served)
        async with raw(served, WORKER) as again, raw(served, tenant("ada")) as ada:
            leases = [lease_of(one, "p"), lease_of(other)]
            assert await again.attach("p", "q", credit=3, leases=leases) == ["ok", "ok"]
            await end_grace(served)
            assert await again.settle("q", "extend", other) == ["ok"]
            assert await again.settle("q", "ack", other) == ["ok"]
            await ada.enqueue("q", ["b", "c", "d"])
            assert len(await again.pushed(2)) == 2, "the lease of p counts as credit"
            with pytest.raises(Refused, match=r"^repairing "):
                await again.settle("p", "extend", one)
            assert (await served.app.store.repair("p", number)).outcome == "done"
            assert await again.settle("p", "extend", one) == ["ok"]
            assert await again.settle("p", "ack", one) == ["ok"]
        assert (await served.app.store.queue("p")).done == 1


async def test_the_next_extension_tells_that_the_lease_was_lost_meanwhile(server_store: str) -> None:
    async with running(server_store, reconnect_grace=LONG) as served, running(server_store) as elsewhere:
        one, _ = await broken(served)
        number = await begin_repair(served)
        async with raw(elsewhere, WORKER) as again:
            assert await again.attach("p", credit=1, leases=[lease_of(one, "p")]) == ["ok"]
            assert (await served.app.store.repair("p", number)).outcome == "done"
            await end_grace(served)  # the lease was not taken over, and its old server gives it back
            assert await again.settle("p", "extend", one) == ["stale"]
            (task,) = await again.pushed()
            assert (task["id"], task["attempt"]) == ("a", 2)
            assert await again.settle("p", "ack", one) == ["stale"]
            assert await again.settle("p", "ack", task) == ["ok"]


@pytest.mark.parametrize("error", [Unavailable, OutcomeUnknown, TooMany])
async def test_a_node_that_is_away_keeps_a_worker_out_of_no_other_queue(
    server_store: str, monkeypatch: pytest.MonkeyPatch, error: type[FairqError]
) -> None:
    async with running(server_store, reconnect_grace=LONG) as served:
        one, other = await broken(served)
        with monkeypatch.context() as patched:
            fail_queue(patched, error("the node is away"))
            async with raw(served, WORKER) as again:
                leases = [lease_of(one, "p"), lease_of(other)]
                assert await again.attach("p", "q", credit=2, leases=leases) == ["ok", "ok"]
                patched.undo()
                assert await again.settle("p", "extend", one) == ["ok"]
                assert await again.settle("p", "ack", one) == ["ok"]


async def test_what_trying_again_would_not_mend_is_refused(server_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(server_store, reconnect_grace=LONG) as served:
        one, other = await broken(served)
        fail_queue(monkeypatch, NotFound("no such thing"))
        async with raw(served, WORKER) as again:
            with pytest.raises(Refused, match=r"^not_found "):
                await again.attach("p", "q", credit=2, leases=[lease_of(one, "p"), lease_of(other)])


def fail_queue(monkeypatch: pytest.MonkeyPatch, error: FairqError) -> None:
    """Have leases of the queue p not be taken over."""
    take = Store.take

    async def fail(self: Store, queue: str, leases: Sequence[tuple[str, int]]) -> list[Taken]:
        if queue == "p":
            raise error
        return await take(self, queue, leases)

    monkeypatch.setattr(Store, "take", fail)


async def test_a_lease_that_was_taken_over_once_is_given_back_though_it_was_not_taken_again(server_store: str) -> None:
    async with running(server_store, reconnect_grace=LONG) as served:
        one, _ = await broken(served)
        async with raw(served, WORKER) as again:
            assert await again.attach("p", leases=[lease_of(one, "p")]) == ["ok"]
        await wait_until(lambda: not served.app.connections)
        number = await begin_repair(served)
        async with raw(served, WORKER) as again:
            assert await again.attach("p", leases=[lease_of(one, "p")]) == ["ok"]
        await wait_until(lambda: not served.app.connections)
        assert (await served.app.store.repair("p", number)).outcome == "done"
        await end_grace(served)
        (state,) = await served.app.store.tasks("p", ["ada/a"])
        assert (state.state, state.attempt) == ("ready", 1)


async def test_of_a_tasks_leases_only_the_last_one_is_kept_untaken(server_store: str) -> None:
    async with running(server_store, reconnect_grace=LONG) as served:
        one, _ = await broken(served)
        number = await begin_repair(served)
        async with raw(served, WORKER) as again:
            leases = [
                lease_of(one, "p"),
                lease_of(one | {"lease": 7}, "p"),
                lease_of({"full_id": "ada/b", "lease": 7}, "p"),
            ]
            assert await again.attach("p", credit=3, leases=leases) == ["ok", "stale", "ok"]
        await wait_until(lambda: not served.app.connections)
        async with raw(served, WORKER) as late:
            assert await late.attach("p", leases=[lease_of(one | {"lease": 7}, "p")]) == ["stale"], (
                "this server knows a later one"
            )
        assert (await served.app.store.repair("p", number)).outcome == "done"
