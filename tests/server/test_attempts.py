"""The attempts that run and the last that ended, at all servers, as operators list them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fairq.model.attempts import AttemptFilter
from fairq.model.tasks import Action, Lease, Settlement
from fairq.server.run import Served
from fairq.store import attempts
from fairq.store.attempts import MAX_ENDED, MAX_ERROR, MAX_QUEUES, AttemptLog
from tests.store.waiting import wait_until

from .harness import OPERATOR, WORKER, Raw, Refused, raw, tenant
from .test_worker_registry import is_listed

ALL = AttemptFilter()


async def listed(operator: Raw, **which: Any) -> tuple[list[Any], list[Any]]:
    """Return the ids of running attempts, and the ids and states of ended ones."""
    answer = await operator.ask("attempts", queue="q", **which)
    return [each["id"] for each in answer["running"]], [(each["id"], each["state"]) for each in answer["ended"]]


async def leased(worker: Raw, client: Raw, *ids: str, **options: Any) -> dict[str, dict[str, Any]]:
    """Enqueue tasks that an attached worker gets; returns them by id."""
    await client.enqueue("q", list(ids), **options)
    return {task["id"]: task for task in await worker.pushed(len(ids))}


async def test_each_end_of_an_attempt_has_its_word_and_filters_find_it(one: Served, two: Served) -> None:
    async with raw(one, WORKER) as worker, raw(one, tenant("ada")) as ada, raw(two, OPERATOR) as operator:
        await worker.attach("q", credit=10, name="mill")
        await wait_until(lambda: is_listed(operator, "mill"))
        ids = ["done", "failed", "dead", "rejected", "released", "cancelled", "runs"]
        tasks = await leased(worker, ada, *(id for id in ids if id != "dead"), name="resize")
        tasks |= await leased(worker, ada, "dead", max_attempts=1)
        assert await ada.ask("cancel", queue="q", ids=["cancelled"]) == {"outcomes": ["running"]}
        while (await worker.receive())["type"] != "stop":
            pass
        await worker.settle("q", "ack", tasks["done"])
        await worker.settle("q", "nack", tasks["failed"], error="no route to \x1b[31mhost", delay_ms=60_000)
        await worker.settle("q", "nack", tasks["dead"], error="503")
        await worker.settle("q", "reject", tasks["rejected"], error="no such address")
        await worker.settle("q", "release", tasks["released"], delay_ms=60_000)
        await worker.settle("q", "release", tasks["cancelled"])
        answer = await operator.ask("attempts", queue="q")
        (runs,) = answer["running"]
        named = {"id": "ada/runs", "tenant": "ada", "name": "resize", "attempt": 1, "worker": "mill"}
        assert {key: runs[key] for key in named} == named
        assert (runs["state"], runs["server"], answer["unanswered"]) == ("running", one.app.name, [])
        assert [(each["id"].removeprefix("ada/"), each["state"]) for each in answer["ended"]] == [
            ("cancelled", "cancelled"), ("released", "released"), ("rejected", "dead"), ("dead", "dead"),
            ("failed", "failed"), ("done", "done"),
        ]  # fmt: skip
        assert await listed(operator, state="dead") == ([], [("ada/rejected", "dead"), ("ada/dead", "dead")])
        assert await listed(operator, state="running") == (["ada/runs"], [])
        assert await listed(operator, error="route") == ([], [("ada/failed", "failed")])
        assert await listed(operator, tenant="bob") == ([], [])
        assert (await listed(operator, name="resize"))[0] == ["ada/runs"]
        assert "ada/dead" not in dict((await listed(operator, name="resize"))[1])
        assert await listed(operator, count=1) == (["ada/runs"], [("ada/cancelled", "cancelled")])
        with pytest.raises(Refused, match=r"^bad_request state:"):
            await operator.ask("attempts", queue="q", state="leased")


async def test_a_lease_that_runs_out_is_lost(one: Served, two: Served) -> None:
    async with raw(one, WORKER) as worker, raw(one, tenant("ada")) as ada, raw(two, OPERATOR) as operator:
        await operator.ask("configure", queue="q", settings={"lease_ms": 200, "max_attempts": 1})
        await worker.attach("q", credit=1, name="mill")
        await leased(worker, ada, "a")

        async def is_lost() -> bool:
            return await listed(operator) == ([], [("ada/a", "lost")])

        await wait_until(is_lost)


async def test_a_server_without_workers_is_asked_too(one: Served, two: Served) -> None:
    async with raw(two, OPERATOR) as operator:
        async with raw(one, WORKER) as worker, raw(one, tenant("ada")) as ada:
            await worker.attach("q", credit=1)
            tasks = await leased(worker, ada, "a")
            await worker.settle("q", "ack", tasks["a"])

        async def has_left() -> bool:
            return not (await operator.ask("workers"))["workers"]

        await wait_until(has_left)
        for _ in range(20):
            assert await listed(operator) == ([], [("ada/a", "done")])


async def test_a_deleted_queue_leaves_nothing(worker: Raw, ada: Raw, operator: Raw) -> None:
    await worker.attach("q", credit=1)
    tasks = await leased(worker, ada, "a")
    await worker.settle("q", "ack", tasks["a"])
    assert (await listed(operator))[1]
    await operator.ask("delete_queue", queue="q", purge=True)

    async def is_forgotten() -> bool:
        return await listed(operator) == ([], [])

    await wait_until(is_forgotten)


def lease(id: str, number: int = 1, **more: Any) -> Lease:
    return Lease(id, number, 1, 3, "ada", 0, 0, 0, b"1", **more)


def test_a_flood_of_settlements_takes_bounded_memory() -> None:
    log = AttemptLog()
    for n in range(3 * MAX_QUEUES):
        log.settled(f"q{n}", [Settlement("reject", "ada/a", 1, error="e" * 4_000)], ["ok"])
    for n in range(3 * MAX_ENDED):
        log.settled("q", [Settlement("ack", f"ada/{n}", 1)], ["ok"])
    assert len(log._queues) == MAX_QUEUES
    assert [row.id for row in log.ended("q", ALL, 2)] == [f"ada/{3 * MAX_ENDED - n}" for n in (1, 2)]
    assert len(log.ended("q", ALL, 10 * MAX_ENDED)) == MAX_ENDED
    (row,) = log.ended(f"q{3 * MAX_QUEUES - 1}", ALL, 9)
    assert row.error == "e" * MAX_ERROR


def test_running_ones_are_bounded_and_those_extended_least_recently_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MAX_RUNNING", 3)
    log = AttemptLog()
    log.claimed("q", 0, 30_000, [lease(f"ada/{n}", n) for n in range(3)])
    log.settled("q", [Settlement("extend", "ada/0", 0)], ["ok"])
    log.claimed("q", 0, 30_000, [lease("ada/3", 3)])
    assert [row.id for row in log.running("q", ALL, 9)] == ["ada/0", "ada/2", "ada/3"]


def test_a_lease_that_ends_elsewhere_is_dropped_when_its_time_is_over() -> None:
    log = AttemptLog()
    log.claimed("q", 0, -2_000, [lease("ada/over")])
    assert log.running("q", ALL, 9) == []
    log.claimed("q", 0, 30_000, [lease("ada/new")])
    assert list(log._of("q").running) == ["ada/new"]


def test_what_another_server_gave_out_fails_and_is_not_called_dead() -> None:
    log = AttemptLog()
    log.settled("q", [Settlement("nack", "ada/a", 7, error="x"), Settlement("nack", "ada/b", 7)], ["ok", "stale"])
    (row,) = log.ended("q", ALL, 9)
    assert (row.state, row.attempt, row.name) == ("failed", 0, "")


def test_a_late_settlement_does_not_end_the_next_lease_of_the_task() -> None:
    log = AttemptLog()
    log.claimed("q", 0, 30_000, [lease("ada/a", 8)])
    log.settled("q", [Settlement("ack", "ada/a", 7)], ["stale"])
    assert [row.lease for row in log.running("q", ALL, 9)] == [8]
    assert log.ended("q", ALL, 9) == []


def test_a_settlement_whose_first_answer_was_lost_is_reported_once() -> None:
    log = AttemptLog()
    log.claimed("q", 0, 30_000, [lease("ada/a", 8, name="mail")])
    for _ in range(2):
        log.settled("q", [Settlement("ack", "ada/a", 8)], ["gone"])
    assert [(row.id, row.state, row.name) for row in log.ended("q", ALL, 9)] == [("ada/a", "done", "mail")]


@pytest.mark.parametrize(("action", "outcome", "lasts_s"), [("take", "ok 1 60000", 60), ("extend", "ok", 30)])
def test_a_lease_that_another_server_gave_out_runs_until_its_time_is_over(
    action: Action, outcome: str, lasts_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it has claimed nothing of the queue: leases last for 30 s, unless it knows better."""
    now, log = time.monotonic(), AttemptLog()
    log.settled("q", [Settlement(action, "ada/a", 7)], [outcome])
    for later_s, count in ((lasts_s, 1), (lasts_s + 2, 0)):
        monkeypatch.setattr(time, "monotonic", lambda at=now + later_s: at)
        assert len(log.running("q", ALL, 9)) == count
    log.settled("q", [Settlement("extend", "ada/a", 7)], ["ok"])
    monkeypatch.setattr(time, "monotonic", lambda: now + 2 * lasts_s)
    assert len(log.running("q", ALL, 9)) == 1
