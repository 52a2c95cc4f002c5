"""What /metrics tells of tenants: shares, backlogs and counts, bounded whatever tenants there are."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from fairq.errors import BadRequest
from fairq.model.checks import check_tenant
from fairq.model.history import OTHERS
from fairq.model.tasks import NewTask
from fairq.server.engine.stats.tallies import NAMED, QueueTally, Tallies
from fairq.server.engine.stats.tallies import QUEUES as TALLIED
from fairq.server.run import Served
from fairq.server.web.admin import metrics
from fairq.server.web.admin.tenant_metrics import OTHER, TENANTS, read_tenants, tell_counted
from fairq.store.counts import QueueCounts, TenantCounts
from fairq.store.partitions import place_in
from tests.server.harness import OPERATOR, PRODUCER, WORKER, raw, tenant
from tests.store.waiting import wait_until

from .test_health import asked, values
from .test_metrics import anew

__all__ = ["anew"]


async def test_tenants_tell_their_counts_their_shares_and_their_waits(admin: Served, client: httpx.AsyncClient) -> None:
    async with (
        raw(admin, tenant("ada")) as ada,
        raw(admin, tenant("bob")) as bob,
        raw(admin, OPERATOR) as operator,
        raw(admin, WORKER) as worker,
    ):
        await operator.ask("set_weight", queue="q", tenant="bob", weight=2.5)
        await ada.enqueue("q", [f"a{n}" for n in range(40)])
        await bob.enqueue("q", [f"b{n}" for n in range(9)])
        await worker.attach("q", credit=4)
        tasks = {task["id"]: task for task in await worker.pushed(4)}
        first = next(task for id, task in tasks.items() if id.startswith("a"))
        await worker.settle("q", "nack", first, error="broken", delay_ms=3_600_000)
        await worker.pushed(1)
        await admin.app.recorder.flush()
        text = (await client.get("/metrics")).text
        page = values(text)
        assert page[("fairq_tenant_enqueued_total", "q", "ada")] == 40
        assert page[("fairq_tenant_enqueued_total", "q", "bob")] == 9
        started = [page[("fairq_tenant_started_total", "q", each)] for each in ("ada", "bob")]
        assert sum(started) == 5
        assert page[("fairq_tenant_failed_total", "q", "ada")] == 1
        assert page[("fairq_tenant_failed_total", "q", OTHER)] == 0
        assert page[("fairq_tenant_weight", "q", "bob")] == 2.5
        assert page[("fairq_tenant_ready", "q", "ada")] > 30
        assert (page[("fairq_tenant_noisy", "q", "ada")], page[("fairq_tenant_noisy", "q", "bob")]) == (1, 0)
        assert page[("fairq_tenant_share_ratio", "q", "ada")] > 0
        assert 0.5 <= page[("fairq_jain_index", "q")] <= 1
        assert page[("fairq_wait_seconds_count", "q")] == 5
        assert page[("fairq_wait_seconds_bucket", "+Inf", "q")] == 5
        assert page[("fairq_history_dropped_total",)] == 0


async def test_tenants_of_all_partitions_are_counted_as_those_of_one_queue(
    admin: Served, client: httpx.AsyncClient
) -> None:
    """Also when the traffic of a tenant is compared with that of others: it fades once in each round."""
    recorder, registry = admin.app.recorder, admin.app.store.registry
    tenants = [f"t{n}" for n in range(9)]
    places = await registry.make("many", "", partitions=3)
    assert {place_in(places, each) for each in tenants} == set(places)
    async with raw(admin, PRODUCER) as producer, raw(admin, WORKER) as worker:
        for n in range(2):
            for queue in ("many", "one"):
                tasks = [{"tenant": each, "id": f"{n}", "payload": 1} for each in tenants]
                await producer.ask("enqueue", queue=queue, tasks=tasks)
            await recorder.flush()
        many, one = (recorder.tallies.queues[queue].named for queue in ("many", "one"))
        assert {name: each.traffic for name, each in many.items()} == {name: each.traffic for name, each in one.items()}
        await worker.attach("many", credit=20)
        pushed = 0
        while pushed < 2 * len(tenants):
            pushed += len(await worker.pushed())
        await recorder.flush()
        page = values((await client.get("/metrics")).text)
        for name in ("enqueued", "started"):
            assert [page[f"fairq_tenant_{name}_total", "many", each] for each in tenants] == [2] * len(tenants)
        assert page["fairq_wait_seconds_count", "many"] == pushed
        await producer.ask("enqueue", queue="many", tasks=[{**each, "id": "n"} for each in tasks])
        assert (await registry.delete("many", purge=True)).outcome == "ok"
        await wait_until(lambda: "many" not in recorder.tallies.queues)
        assert not [place for place in {*recorder.counts.queues, *recorder._busy} if place.startswith("many")]


def test_waits_are_reported_in_the_buckets_they_lie_in() -> None:
    waits = {0: 1, 1: 1, 20: 3, 21: 1, 60: 2}  # up to 0 ms, 1 ms, below 1,024 ms, below 1,449 ms, days
    counts = QueueCounts()
    counts.of("ada").waits.update(waits)
    tallies = Tallies()
    tallies.add("q", counts)
    families = tell_counted(tallies.queues)
    found = {s.labels["le"]: s.value for f in families for s in f.samples if s.name == "fairq_wait_seconds_bucket"}
    assert (found["0.002"], found["0.512"], found["1.024"], found["2.048"], found["4194.304"]) == (2, 2, 5, 6, 6)
    assert found["+Inf"] == 8
    assert list(found.values()) == sorted(found.values())
    assert [float(edge) for edge in found] == sorted(map(float, found))


@settings(max_examples=15)
@given(some.data())
def test_rates_of_tallies_add_up_as_traffic_moves(data: some.DataObject) -> None:
    tally, last, enqueued, increases = QueueTally(), dict[str, int](), 0, 0
    names = [f"t{n}" for n in range(3 * NAMED)]
    for _ in range(data.draw(some.integers(1, 30))):
        counts = QueueCounts()
        for name in data.draw(some.lists(some.sampled_from([*names, OTHERS]), max_size=31, unique=True)):
            tasks = data.draw(some.sampled_from((0, 1, 10, 1_000)))
            counts.tenants[name] = TenantCounts(enqueued=tasks)
            enqueued += tasks
        tally.add(counts)
        now = {name: each.counts.enqueued for name, each in tally.named.items()} | {OTHER: tally.others.enqueued}
        assert len(now) <= NAMED + 1
        assert all(now[name] >= last[name] for name in now if name in last)
        increases += sum(value - last.get(name, 0) for name, value in now.items())
        last = now
    assert increases == enqueued


def test_tenants_with_much_traffic_take_the_places_of_those_with_little() -> None:
    tally = QueueTally()
    for names, tasks in ((range(100), 5), (range(100, 110), 50), (range(200, 300), 6)):
        counts = QueueCounts(tenants={f"t{n}": TenantCounts(enqueued=tasks) for n in names})
        tally.add(counts)
    assert {f"t{n}" for n in range(100, 110)} <= set(tally.named)


def test_of_ever_so_many_queues_those_without_traffic_are_forgotten() -> None:
    tallies = Tallies()
    for n in range(TALLIED + 50):
        tallies.add(f"q{n}", QueueCounts())
        tallies.add("busy", QueueCounts())
    assert len(tallies.queues) == TALLIED
    assert "busy" in tallies.queues
    tallies.forget("busy")
    assert "busy" not in tallies.queues


async def test_hundreds_of_tenants_make_the_page_no_longer(admin: Served, client: httpx.AsyncClient) -> None:
    async with raw(admin, WORKER) as worker:
        await worker.attach("q", credit=50)
        for n in range(300):
            await admin.app.store.enqueue("q", f"tenant-{n}", [NewTask(f"t{n}", b"1")])
        await admin.app.recorder.flush()
        text = (await client.get("/metrics")).text
        assert 100 < text.count("tenant=") <= (NAMED + 1) * 3 + TENANTS * 4


async def test_a_tenant_cannot_pass_for_the_others_or_break_the_page(admin: Served, client: httpx.AsyncClient) -> None:
    for name in ("other", "Other", "others", "+Inf", "a@b+c.d-e_f"):
        async with raw(admin, tenant(name)) as one:
            await one.enqueue("q", ["t"])
    await admin.app.recorder.flush()
    text = (await client.get("/metrics")).text
    lines = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines)), "Prometheus refuses a page with a series twice"
    assert values(text)[("fairq_tenant_enqueued_total", "q", "other")] == 1
    with pytest.raises(BadRequest):
        check_tenant(OTHER)


async def test_tenants_of_few_queues_are_reported_and_a_deleted_queue_breaks_nothing(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "TENANT_QUEUES", 2)
    async with (
        asked(server_store) as (served, client),
        raw(served, tenant("ada")) as ada,
        raw(served, OPERATOR) as operator,
    ):
        for name in "abc":
            await ada.enqueue(name, ["t"])
        await served.app.recorder.flush()
        page = values((await client.get("/metrics")).text)
        assert {key[1] for key in page if key[0] == "fairq_tenant_enqueued_total"} == {"a", "b"}
        assert {key[1] for key in page if key[0] == "fairq_tenant_weight"} == {"a", "b"}
        while (await operator.ask("delete_queue", queue="a", purge=True))["outcome"] == "more":
            pass
        assert (await read_tenants(served.app.store, "a")).states == []
        page = values((await client.get("/metrics")).text)
        assert {key[1] for key in page if key[0] == "fairq_tenant_enqueued_total"} == {"b", "c"}
