"""A queue's last hours, as any server shows them to operators; and how servers add to it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import redis

from fairq.errors import Unavailable
from fairq.model.history import MAX_NAMED, NAMED, OTHERS, STEPS, Row, Slot
from fairq.model.tasks import NewTask
from fairq.server.engine.stats.history import read_history, summed
from fairq.server.engine.stats.recorder import Recorder
from fairq.server.run import Served
from fairq.store import keys
from fairq.store.opening import open_store
from fairq.store.store import Store
from tests import clusters

from .harness import OPERATOR, WORKER, Raw, noted_calls, raw, running, tenant


async def ask(operator: Raw, **body: Any) -> Any:
    """Ask for the history of the queue."""
    return await operator.ask("history", queue="q", **body)


async def test_what_happened_is_reported_once_it_was_added(
    served: Served, ada: Raw, operator: Raw, worker: Raw
) -> None:
    assert (await ask(operator))["times_ms"] == []
    await worker.attach("q")
    await ada.enqueue("q", ["a", "b", "c"])
    await worker.settle("q", "ack", *await worker.pushed())
    await worker.settle("q", "nack", *await worker.pushed(), error="broken")
    await worker.pushed()
    await served.app.recorder.flush()
    for period, (step_s, _) in STEPS.items():
        found = await ask(operator, period=period)
        assert found["step_ms"] == step_s * 1000
        totals = {name: found["totals"][name] for name in ("enqueued", "started", "done", "failed", "dead")}
        assert totals == {"enqueued": 3, "started": 3, "done": 1, "failed": 1, "dead": 0}
        for name in totals:
            assert sum(found["queue"][name]) == totals[name]
        (row,) = found["tenants"]
        assert (row["tenant"], sum(row["started"]), row["totals"]["failed"]) == ("ada", 3, 1)
        assert row["totals"]["delivered_part"] == 1.0
        assert found["totals"]["p99_ms"] is not None
        columns = [*found["queue"].values(), *(row[name] for name in row if name not in ("tenant", "totals"))]
        assert {len(column) for column in columns} == {len(found["times_ms"])}


async def test_any_server_tells_what_all_have_counted(server_store: str) -> None:
    async with (
        running(server_store) as one,
        running(server_store) as two,
        raw(one, tenant("ada")) as ada,
        raw(two, tenant("bob")) as bob,
        raw(one, OPERATOR) as operator,
        raw(two, OPERATOR) as other,
    ):
        await ada.enqueue("q", ["a"])
        await bob.enqueue("q", ["a", "b"])
        await one.app.recorder.flush()
        await two.app.recorder.flush()
        found = [await ask(each) for each in (operator, other)]
    for each in found:
        assert each["totals"]["enqueued"] == 3
        assert {row["tenant"]: row["totals"]["enqueued"] for row in each["tenants"]} == {"ada": 1, "bob": 2}


async def test_a_server_that_stops_adds_what_it_has_counted(server_store: str) -> None:
    async with running(server_store) as one, raw(one, tenant("ada")) as ada:
        await ada.enqueue("q", ["a"])
        await one.app.drain(0.1)
    async with running(server_store) as two, raw(two, OPERATOR) as operator:
        assert (await ask(operator))["totals"]["enqueued"] == 1


async def test_a_call_that_fails_is_reported_and_not_repeated(
    served: Served, monkeypatch: pytest.MonkeyPatch, ada: Raw, operator: Raw
) -> None:
    async def away(*_: Any) -> bool:
        raise Unavailable("the store is away")

    recorder, counts = served.app.recorder, served.app.recorder.counts
    await ada.enqueue("q", ["a"])
    counts.of("q").of("ada").started += 7
    with monkeypatch.context() as patch:
        patch.setattr(Store, "add_history", away)
        await recorder.flush()
    assert recorder.dropped == 7
    await recorder.flush()
    assert (await ask(operator))["times_ms"] == []
    await ada.enqueue("q", ["b"])
    await recorder.flush()
    found = (await ask(operator))["totals"]
    assert (found["enqueued"], found["started"]) == (2, 0), "the store counts what is enqueued"


async def test_a_queue_that_nobody_uses_costs_no_calls(server_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = noted_calls(monkeypatch, "add_history")
    monkeypatch.setattr("fairq.server.engine.stats.recorder.INTERVAL_S", 3600.0)
    async with running(server_store) as served, raw(served, tenant("ada")) as ada, raw(served, WORKER) as worker:
        await ada.enqueue("idle", ["a"])
        await worker.attach("q")
        await ada.enqueue("q", ["a"])
        (task,) = await worker.pushed()
        for _ in range(3):
            await served.app.recorder.flush()
        assert Counter(queue for queue, *_ in calls.args) == {"idle": 1, "q": 3}, "its task runs on"
        await worker.settle("q", "ack", task)
        for _ in range(3):
            await served.app.recorder.flush()
    assert Counter(queue for queue, *_ in calls.args)["q"] == 4


async def test_since_reads_only_what_is_new(served: Served, ada: Raw, operator: Raw) -> None:
    await ada.enqueue("q", ["a"])
    await served.app.recorder.flush()
    first = (await ask(operator))["times_ms"][0]  # all that was counted is there
    assert (await ask(operator, since_ms=first))["times_ms"][0] == first
    assert (await ask(operator, since_ms=first + 1))["times_ms"] == []


@pytest.mark.deep("kills")
async def test_in_a_cluster_the_history_is_in_the_slot_of_its_queue(cluster: clusters.Cluster) -> None:
    async with open_store(cluster.url) as store:
        recorder = Recorder(store, store.counts)
        for n in range(6):
            await store.enqueue(f"q-{n}", "ada", [NewTask("ada/a", b"1")])
        await recorder.flush()
        for n in range(6):
            assert (await read_history(store, f"q-{n}")).totals.enqueued == 1
            node = cluster.owner(keys.queue_prefix(f"q-{n}"))
            with redis.Redis(port=node.port) as client:
                assert len(list(client.scan_iter(f"{keys.queue_prefix(f'q-{n}')}:history*"))) == 4


def slot(number: int, **rows: tuple[int, float]) -> Slot:
    """Make an interval in which tenants started so many tasks, and were delivered so much."""
    made = [Row(name, 0, started, 0, 0, delivered, 1.0, {4: started}) for name, (started, delivered) in rows.items()]
    return Slot(number, 5, 4, 3, 2, 1, 0, made)


def test_columns_have_no_gaps_and_parts_are_of_all_that_was_given_in_each_interval() -> None:
    found = summed([slot(10, ada=(1, 30.0), bob=(3, 10.0)), slot(12, bob=(2, 5.0))], 10_000, 131_000, None, 1000.0)
    assert found.times_ms == [100_000, 110_000, 120_000, 130_000]
    assert (found.queue.started, found.queue.enqueued) == ([4, 0, 2, 0], [5, 0, 5, 0])
    ada, bob = found.tenants
    assert (ada.tenant, ada.delivered, ada.entitled) == ("ada", [0.75, None, 0.0, None], [0.025, None, None, None])
    assert (ada.free, bob.free) == ([0.725, None, 0.0, None], [0.225, None, 1.0, None])
    assert (bob.started, bob.delivered) == ([3, 0, 2, 0], [0.25, None, 1.0, None])
    assert (bob.totals.delivered, bob.totals.delivered_part) == (0.015, 0.3333)
    assert (bob.p50_ms, found.totals.started) == ([3, None, 3, None], 6)


def test_the_tenants_with_the_most_service_are_reported_and_the_others_as_one() -> None:
    many = slot(1, **{f"t{n:02}": (1, float(n)) for n in range(30)}, **{OTHERS: (9, 100.0)})
    found = summed([many], 10_000, 15_000)
    assert [row.tenant for row in found.tenants] == [*(f"t{n}" for n in range(29, 29 - NAMED, -1)), OTHERS]
    assert sum(row.started[0] for row in found.tenants) == found.totals.started == 39
    assert sum(row.delivered[0] or 0 for row in found.tenants) == pytest.approx(1, abs=0.001)
    named = summed([many], 10_000, 15_000, [f"t{n:02}" for n in range(MAX_NAMED)])
    assert [row.tenant for row in named.tenants] == [*(f"t{n:02}" for n in range(MAX_NAMED)), OTHERS]
    assert sum(row.started[0] for row in named.tenants) == 39
    nobody = summed([many], 10_000, 15_000, ["nobody"])
    assert [(row.tenant, row.started) for row in nobody.tenants] == [("nobody", [0]), (OTHERS, [39])]
