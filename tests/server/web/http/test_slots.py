"""The slots of workers over HTTP: those of claims that wait, and those in which tasks run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from fairq.model.tasks import Lease, Settlement
from fairq.server.engine.dispatch.worker_account import OVER_S
from fairq.server.engine.net.auth import Identity
from fairq.server.run import Served
from fairq.server.settings import Settings
from fairq.server.web.http.bounds import CALLER_S
from fairq.server.web.http.connections import make_connection
from fairq.server.web.http.workers import Claim, HttpWorker
from fairq.wire.terms import Role
from tests.server.harness import OPERATOR, WORKER, raw
from tests.store.waiting import wait_until

from .harness import api, check
from .test_leases import TASKS, claim, settle

LEASE = Lease("ada/1", 7, 1, 5, "ada", 0, 0, 0, b"1")


@pytest.mark.usefixtures("no_polls")
async def test_a_slot_in_which_a_task_runs_is_one_and_reserve_counts_it(served: Served) -> None:
    held: list[Any] = []
    async with (
        api(served) as ada,
        api(served, WORKER) as worker,
        raw(served, OPERATOR) as operator,
        trio.open_nursery() as nursery,
    ):

        async def hold() -> None:
            held.extend(await claim(worker))

        await operator.ask("configure", queue="q", settings={"reserve": 20})
        for _ in range(5):
            nursery.start_soon(hold)
        await wait_until(lambda: served.app.queues.count_slots("q") == 5)
        for n in range(4):  # one by one, so that fewer claims wait each time
            check(await ada.post(TASKS, json={"payload": n}), 201)
            await wait_until(lambda n=n: len(held) == n + 1)  # type: ignore[misc]
        assert served.app.queues.count_slots("q") == 5
        (listed,) = (await operator.ask("workers"))["workers"]
        assert (listed["credit"], listed["held"]) == (5, 4)
        for task in held:
            assert await settle(worker, task, "ack") == "ok"
        assert served.app.queues.count_slots("q") == 1
        nursery.cancel_scope.cancel()


async def test_attempts_over_http_are_listed(served: Served) -> None:
    async with api(served) as ada, api(served, WORKER) as worker, raw(served, OPERATOR) as operator:
        check(await ada.post(TASKS, json={"id": "a", "payload": 1, "name": "resize"}), 201)
        (task,) = await claim(worker)
        (runs,) = (await operator.ask("attempts", queue="q"))["running"]
        assert (runs["id"], runs["name"], runs["attempt"], runs["worker"]) == ("ada/a", "resize", 1, "")
        assert await settle(worker, task, "reject", error="no such size") == "ok"
        answer = await operator.ask("attempts", queue="q")
        assert answer["running"] == []
        assert [(row["id"], row["state"], row["error"]) for row in answer["ended"]] == [
            ("ada/a", "dead", "no such size")
        ]


def worker_with_lease() -> HttpWorker:
    """A worker over HTTP that holds a lease of 100 s."""
    app: Any = SimpleNamespace(
        settings=Settings(), queues=SimpleNamespace(credit_changed=lambda _: None), refusals=None
    )
    worker = make_connection(app, Identity(Role.WORKER), "test", None, HttpWorker)
    assert isinstance(worker, HttpWorker)
    worker.app = app
    worker._claims.append(Claim(3))
    worker.push("q", 100_000, [LEASE], 0, 0.0)
    return worker


def slots(worker: HttpWorker) -> tuple[int, int]:
    """The slots of a worker, and those that are busy."""
    return worker.account.credit, worker.account.busy


async def test_a_worker_stays_while_it_holds_a_lease_and_counts_it_until_its_time_is_over(
    autojump_clock: object,
) -> None:
    worker, began = worker_with_lease(), trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        await trio.sleep(CALLER_S + 1)
        assert (slots(worker), worker.closing) == ((1, 1), None)
    assert trio.current_time() == pytest.approx(began + 100 + OVER_S)
    assert slots(worker) == (0, 0)


async def test_a_lease_counts_until_it_has_ended_and_an_extended_one_goes_on(autojump_clock: object) -> None:
    worker, began, other = worker_with_lease(), trio.current_time(), Settlement("ack", LEASE.id, LEASE.lease + 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        await trio.sleep(50)
        worker.settled("q", [Settlement("extend", LEASE.id, LEASE.lease), other], ["ok", "stale"])
        assert slots(worker) == (1, 1)
    assert trio.current_time() == pytest.approx(began + 150 + OVER_S)
    worker.settled("q", [Settlement("extend", LEASE.id, LEASE.lease)], ["ok"])
    worker.settled("q", [Settlement("extend", LEASE.id, LEASE.lease + 1)], ["ok"])  # a later lease of the task
    assert slots(worker) == (1, 1)
    worker.settled("q", [other], ["ok"])
    assert (slots(worker), worker.holders) == ((0, 0), {})
