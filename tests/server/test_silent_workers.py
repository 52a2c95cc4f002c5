"""Workers from which nothing comes: every server lists them and their tasks, until they are back or gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from fairq.server.engine.net import worker_registry
from fairq.server.engine.net.silent_workers import KEEP_S
from fairq.server.run import Served
from fairq.server.web.admin.health import Health
from fairq.server.web.admin.metrics import Metrics
from fairq.wire.terms import SILENT_S, TIMEOUT_S
from tests.store.waiting import wait_until

from .harness import OPERATOR, WORKER, Raw, lease_of, raw, tenant

LOST = "tasks of a silent worker were lost"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers look at once."""
    monkeypatch.setattr(worker_registry, "_RENEW_S", 0.02)


def let_pass(served: Served, seconds: float) -> None:
    """Have nothing come from the workers of a server for so long; their leases are as much nearer to their ends."""
    for connection in {*served.app.connections, *served.app.worker_registry.silent.kept}:
        if connection.queues:
            connection.session.last_received_at -= seconds
            connection.account.over_at -= seconds
            for terms in {*connection.account.terms.values()}:
                terms.over_at -= seconds
            connection.wake_writer()
            connection._woken.set()


async def row_of(operator: Raw, name: str = "mill") -> dict[str, Any]:
    """The worker of a name in the list of all; empty if it is not there."""
    rows = (await operator.ask("workers"))["workers"]
    return next((row for row in rows if row["worker"] == name), {})


async def wait_for_row(operator: Raw, is_it: Callable[[dict[str, Any]], object]) -> None:
    """Wait until the list of workers has it."""

    async def look() -> bool:
        return bool(is_it(await row_of(operator)))

    await wait_until(look)


async def hold(served: Served, worker: Raw, ids: list[str], lease_ms: int = 3_600_000) -> list[dict[str, Any]]:
    """Have a worker hold tasks, and be silent from then on."""
    await served.app.store.configure("q", {"lease_ms": lease_ms})
    async with raw(served, tenant("ada")) as ada:
        await ada.enqueue("q", ids)
    await worker.attach("q", "r", credit=10, name="mill", started_at_ms=1_000)
    tasks, began = await worker.pushed(len(ids)), trio.current_time()
    silent = served.app.worker_registry.silent
    await wait_until(lambda: silent._looked_at > began)  # what a worker lost before it was looked at is forgotten
    return tasks


async def test_a_silent_worker_is_reported_and_gets_no_tasks_until_it_is_heard_again(
    one: Served, either: Served
) -> None:
    with capture_logs() as lines:
        async with raw(one, WORKER) as worker, raw(either, OPERATOR) as operator:
            await hold(one, worker, ["a", "b"])
            await wait_for_row(operator, lambda row: row.get("silent_ms") == 0)
            let_pass(one, SILENT_S)
            await wait_for_row(operator, lambda row: row["silent_ms"] > 0)
            await wait_until(lambda: any(line["event"] == "worker is silent" for line in lines))
            (row,) = (await operator.ask("queues", queue="q"))["queues"]
            assert [(each["worker"], each["held"], each["lost"]) for each in row["silent"]] == [("mill", 2, 0)]
            why = await operator.ask("why", queue="q", id="ada/a")
            assert (why["state"], why["silent"][0]["worker"]) == ("leased", "mill")
            async with raw(one, tenant("ada")) as ada:
                await ada.enqueue("q", ["c"])
                why = await operator.ask("why", queue="q", id="ada/c")
                assert (why["state"], why["causes"][:1]) == ("ready", ["no_worker"])
                assert [each["worker"] for each in why["silent"]] == ["mill"]
                assert not worker.pushes
                await worker.send("ping")
                assert [task["id"] for task in await worker.pushed()] == ["c"]
    (begun,) = [line for line in lines if line["event"] == "worker is silent"]
    assert (begun["worker"], begun["holds"], begun["log_level"]) == ("mill", 2, "warning")


async def test_tasks_that_a_silent_worker_lost_are_counted(one: Served, operator: Raw) -> None:
    with capture_logs() as lines:
        async with raw(one, WORKER) as worker:
            await hold(one, worker, ["a", "b", "c"], lease_ms=round(1000 * SILENT_S) // 2)
            let_pass(one, SILENT_S)
            await wait_for_row(operator, lambda row: row.get("silent_ms") and (row["held"], row["lost"]) == (0, 3))
            await wait_until(lambda: sum(line["tasks"] for line in lines if line["event"] == LOST) == 3)


@pytest.mark.parametrize("end", ["it is back", "another has its name", "it is drained", "it is long ago"])
async def test_one_that_timed_out_stays_until_its_name_is_gone_for_good(end: str, one: Served, either: Served) -> None:
    async with raw(either, OPERATOR) as operator:
        async with raw(one, WORKER) as worker:
            tasks = await hold(one, worker, ["a", "b"])
            let_pass(one, TIMEOUT_S)
            await worker.closed()
        await wait_until(lambda: bool(one.app.worker_registry.silent.kept))
        await wait_until(lambda: either.app.queues.count_slots("q") == 0)
        await wait_for_row(operator, lambda row: row.get("silent_ms") and row["held"] == 2)
        running_ones = (await operator.ask("attempts", queue="q"))["running"]
        assert {each["worker"] for each in running_ones} == {"mill"}
        found = await operator.ask("worker_tasks", worker="mill")
        assert ([each["silent_ms"] > 0 for each in found["workers"]], len(found["tasks"])) == ([True], 2)
        (row,) = (await operator.ask("queues", queue="q"))["queues"]
        assert (row["workers"], [each["held"] for each in row["silent"]]) == (0, [2])
        page = (await Metrics(either.app, Health(either.app)).page()).decode()
        for line in ('fairq_workers_silent{queue="q"} 1.0', 'fairq_workers{queue="q"} 0.0'):
            assert line in page
        async with raw(either, WORKER) as again:
            match end:
                case "it is back":
                    leases = [lease_of(task) for task in tasks]
                    assert await again.attach("q", "r", name="mill", leases=leases, started_at_ms=1_000) == ["ok"] * 2
                    assert await again.settle("q", "ack", *tasks) == ["ok"] * 2
                case "another has its name":
                    await again.attach("q", "r", name="mill", started_at_ms=2_000)
                case "it is drained":
                    assert (await operator.ask("drain_worker", worker="mill"))["workers"] == 1
                case _:
                    let_pass(one, KEEP_S)
            await wait_until(lambda: not one.app.worker_registry.silent.kept)
            await wait_for_row(operator, lambda row: not row.get("silent_ms"))
            assert not one.app.leases.owners or either is one


async def test_a_server_that_knows_no_silence_is_understood(served: Served, operator: Raw) -> None:
    said = '{"server": "old", "slots": {"q": [2, 2.0]}}'
    served.app.worker_registry.on_announcement(said)
    (row,) = [*(await operator.ask("queues", queue="q"))["queues"], {"silent": []}][:1]
    assert row["silent"] == []
    assert served.app.queues.count_slots("q") == 2
