"""A queue with partitions, as programs see it: one queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import redis
import trio

import fairq
from fairq.errors import Unavailable
from fairq.io.taskless import in_task
from fairq.model.checks import owner_of
from fairq.model.places import partition_of
from fairq.server.engine.net.questions import LAGS
from fairq.server.run import Served
from fairq.store import keys, library
from fairq.store.migrations import MIGRATIONS, NEW, Migration, migrate
from fairq.store.partitions import place_in, places_of
from fairq.store.registry import Registry
from fairq.store.store import Store
from tests.store.waiting import wait_until

from .harness import OPERATOR, PRODUCER, WORKER, Refused, lose, raw, running, tenant, url_of

Q, PARTITIONS = "imports", 5
TENANTS = [f"tenant-{n}" for n in range(12)]


def place_of_tenant(name: str) -> str:
    return place_in(places_of(Q, PARTITIONS), name)


async def make(served: Served) -> None:
    """Make the queue, with a tenant in each partition."""
    places = await served.app.store.registry.make(Q, "", partitions=PARTITIONS)
    assert {place_in(places, each) for each in TENANTS} == set(places)


async def test_a_worker_gets_the_tasks_of_all_partitions_each_once(served: Served) -> None:
    await make(served)
    ran: list[str] = []
    worker = fairq.Worker(url_of(served), WORKER, 3, name="w")

    @worker.task(Q)
    async def handle(task: fairq.Task) -> str:
        if task.payload == "again" and task.attempt == 1:
            raise fairq.Retry("once more", delay=0.05)
        ran.append(f"{task.tenant}/{task.id}")
        return f"did {ran[-1]}"

    async with (
        fairq.open_client(url_of(served), token=PRODUCER) as client,
        fairq.open_client(url_of(served), token=OPERATOR) as operator,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(worker.run)
        tasks = []
        for each in TENANTS:
            for payload, delay in (("now", 0.0), ("again", 0.0), ("later", 0.05)):
                tasks.append(await client.enqueue(Q, payload, tenant=each, result_ttl=60, delay=delay))
        results = [await task.result(timeout=20) for task in tasks]
        (row,) = (await operator.request("queues"))["queues"]
        nursery.cancel_scope.cancel()
    assert results == [f"did {task.id}" for task in tasks]
    assert Counter(ran) == Counter(task.id for task in tasks)
    assert (row["queue"], row["done"], row["ready"], row["leased"]) == (Q, len(tasks), 0, 0)


async def test_workers_that_came_before_the_queue_serve_its_partitions(one: Served, two: Served) -> None:
    """A server learns of the number of partitions from its own calls, or within seconds from the registry."""
    async with raw(one, WORKER) as near, raw(two, WORKER) as far, raw(two, tenant(TENANTS[0])) as producer:
        await near.attach(Q, "other")
        await far.attach(Q)
        await make(one)
        places = await one.app.store.registry.places(Q)
        assert set(one.app.queues.dispatchers) == {*places, Q, "other"}
        await producer.enqueue(Q, ["a", "b"])  # by which the other server learns it
        assert set(two.app.queues.dispatchers) == {*places, Q}
        for worker in (near, far):
            await worker.pushed()


@pytest.mark.usefixtures("no_polls")
async def test_a_worker_serves_the_partitions_while_a_claim_from_before_them_is_under_way(
    one: Served, two: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, begun, answered = Store.claim, trio.Event(), trio.Event()

    async def slow(self: Store, place: str, *args: Any, **options: Any) -> Any:
        if place == Q:
            begun.set()
            await in_task()
            await answered.wait()
        return await claim(self, place, *args, **options)

    monkeypatch.setattr(Store, "claim", slow)
    async with raw(two, WORKER) as worker, raw(two, tenant(TENANTS[0])) as producer:
        await worker.attach(Q)
        await begun.wait()
        await make(one)
        await producer.enqueue(Q, ["a"])  # by which the server learns the partitions
        await worker.settle(Q, "ack", *await worker.pushed())
        answered.set()
        await producer.enqueue(Q, ["b"])
        await worker.pushed()


@pytest.mark.usefixtures("no_polls")
async def test_requests_that_came_before_the_queue_hear_of_its_partitions(one: Served, two: Served) -> None:
    name = TENANTS[0]
    async with raw(two, tenant(name)) as waiting, raw(one, tenant(name)) as producer, raw(one, WORKER) as worker:
        await waiting.send("events", ref=101, queue=Q, timeout_ms=60_000)
        await wait_until(lambda: Q in two.app.queues.long_polls)
        await make(one)
        await two.app.store.registry.all_places()  # as the ticker does within seconds
        await worker.attach(Q)
        for ref, id in ((101, "a"), (102, "b")):
            await producer.enqueue(Q, [id], events=True)
            await worker.settle(Q, "ack", *await worker.pushed())
            answer = await waiting.receive()
            assert (answer["ref"], answer["body"]["events"][-1]["task"]) == (ref, id)
            await waiting.send("events", ref=102, queue=Q, after=answer["body"]["newest"], timeout_ms=60_000)


async def test_a_running_task_of_a_partition_can_be_cancelled(served: Served, redis_store: redis.Redis) -> None:
    await make(served)
    places = await served.app.store.registry.places(Q)
    async with raw(served, WORKER) as worker, raw(served, tenant(TENANTS[1])) as producer:
        await worker.attach(Q)
        channels = {keys.ready_channel(place).encode() for place in places}
        await wait_until(lambda: channels <= set(redis_store.execute_command("PUBSUB", "SHARDCHANNELS")))
        await producer.enqueue(Q, ["a"])
        await worker.pushed()
        answer = await producer.ask("cancel", queue=Q, ids=["a"])
        assert answer["outcomes"] == ["running"]
        frame = await worker.receive()
        assert (frame["type"], frame["queue"]) == ("stop", Q)


async def test_tenants_of_all_partitions_are_one_list(served: Served) -> None:
    await make(served)
    async with raw(served, PRODUCER) as producer, raw(served, OPERATOR) as operator:
        tasks = [{"tenant": each, "id": "a", "payload": 1} for each in TENANTS]
        await producer.ask("enqueue", queue=Q, tasks=tasks)
        await operator.ask("set_weight", queue=Q, tenant=TENANTS[3], weight=4)
        rows = (await operator.ask("tenants", queue=Q, count=100))["tenants"]
        assert [(row["tenant"], row["ready"], row["weight"]) for row in rows] == [
            (each, 1, 4 if each == TENANTS[3] else 1) for each in sorted(TENANTS)
        ]
        with pytest.raises(Refused, match=f"not_empty tenant: tenant {TENANTS[3]} in queue {Q} is not empty: 1 ready"):
            await operator.ask("drop_tenant", queue=Q, tenant=TENANTS[3])


async def test_a_worker_of_a_queue_that_is_made_anew_serves_its_new_partitions(served: Served) -> None:
    await make(served)
    async with raw(served, WORKER) as worker, raw(served, tenant(TENANTS[2])) as producer:
        await worker.attach(Q)
        registry = served.app.store.registry
        assert (await registry.delete(Q, purge=True)).outcome == "ok"
        await wait_until(lambda: Q not in registry.known)
        places = await registry.make(Q, "", partitions=2)
        await producer.enqueue(Q, ["a"])
        await worker.pushed()
        assert set(served.app.queues.dispatchers) >= set(places)


@pytest.mark.usefixtures("no_polls")
async def test_workers_at_another_server_serve_a_queue_that_is_made_anew_with_one_partition(
    one: Served, two: Served
) -> None:
    await make(one)
    await two.app.store.registry.places(Q)
    async with raw(two, WORKER) as worker, raw(one, tenant(TENANTS[0])) as producer:
        await worker.attach(Q)
        assert len(two.app.queues.dispatchers) == PARTITIONS
        await one.app.store.registry.delete(Q, purge=True)
        await wait_until(lambda: Q in two.app.queues.dispatchers)
        await producer.enqueue(Q, ["a"])
        await two.app.store.registry.all_places()  # as the ticker does within seconds
        await worker.pushed()


@pytest.mark.usefixtures("no_polls")
async def test_workers_that_wait_while_a_queue_is_deleted_serve_its_partitions_when_it_is_made_anew(
    redis_store: redis.Redis, one: Served, two: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(one)
    redis_store.mset({f"other:{n}": "" for n in range(1000)})  # so that the deletion does not end at once
    async with raw(two, WORKER) as worker, raw(one, tenant(TENANTS[0])) as producer:
        registry = one.app.store.registry
        assert (await registry.delete(Q, purge=True, seconds=0)).outcome == "more"
        await worker.attach(Q)
        dispatchers = two.app.queues.dispatchers
        await wait_until(lambda: len(dispatchers) > 1 and all(each.claiming.is_empty for each in dispatchers.values()))

        async def tell_nobody(registry: Registry, queue: str) -> None:
            registry.forget(queue)

        monkeypatch.setattr(Registry, "_tell", tell_nobody)
        assert (await registry.delete(Q, purge=True)).outcome == "ok"
        await make(one)
        await producer.enqueue(Q, ["a"])
        await worker.pushed()


async def test_what_a_place_was_charged_for_is_taken_back_from_it(served: Served) -> None:
    """Also when the server has forgotten the queue's places in between."""
    await make(served)
    async with raw(served, WORKER) as worker, raw(served, PRODUCER) as producer:
        await worker.attach(Q, credit=20)
        tasks = [{"tenant": each, "id": "a", "payload": 1} for each in TENANTS]
        await producer.ask("enqueue", queue=Q, tasks=tasks)
        pushed: list[Any] = []
        while len(pushed) < len(TENANTS):
            pushed += await worker.pushed()
        queues = served.app.queues
        running = {place: account.running for place, account in queues.accounts._queues.items()}
        places = await served.app.store.registry.places(Q)
        assert running == Counter(place_in(places, task["full_id"].partition("/")[0]) for task in pushed)
        served.app.store.registry.known.clear()
        await worker.settle(Q, "ack", *pushed)
        assert {account.running for account in queues.accounts._queues.values()} == {0}
        assert sum(map(queues.accounts.part, running)) == pytest.approx(1.0)


@pytest.mark.parametrize("count", [1, 3])
async def test_settlements_leave_before_the_claims_that_take_their_slots(
    served: Served, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else these would find their tenants still at their limits."""
    await make(served)
    called: list[str] = []
    call = Store._call_at

    async def note(store: Store, prefix: str, verb: str, *args: Any, **options: Any) -> Any:
        called.append(verb)
        return await call(store, prefix, verb, *args, **options)

    async with raw(served, WORKER) as worker, raw(served, PRODUCER) as producer:
        await worker.attach(Q, credit=count)
        names = {place_of_tenant(each): each for each in TENANTS}
        pushed: list[Any] = []
        for id in "ab":
            tasks = [{"tenant": each, "id": id, "payload": 1} for each in list(names.values())[:count]]
            await producer.ask("enqueue", queue=Q, tasks=tasks)
            while len(pushed) < count:
                pushed += await worker.pushed()
        monkeypatch.setattr(Store, "_call_at", note)
        await worker.settle(Q, "ack", *pushed)
        await worker.pushed()
    verbs = [verb for verb in called if verb in ("settle", "claim")]
    assert verbs.index("claim") == count


async def test_the_tasks_of_other_partitions_are_among_what_a_task_waits_for(served: Served) -> None:
    whys = []
    for queue, partitions in (("one", 1), (Q, PARTITIONS)):
        places = await served.app.store.registry.make(queue, "", partitions=partitions)
        running = TENANTS[0]
        waiting = next(
            each for each in TENANTS[1:] if partitions == 1 or place_in(places, each) != place_in(places, running)
        )
        async with raw(served, PRODUCER) as producer, raw(served, WORKER) as worker:
            await worker.attach(queue)
            tasks = [{"tenant": running, "id": id, "payload": 1} for id in "abc"]
            await producer.ask("enqueue", queue=queue, tasks=tasks)
            await worker.settle(queue, "ack", *await worker.pushed())
            await worker.pushed()
            await producer.ask("enqueue", queue=queue, tasks=[{**tasks[0], "tenant": waiting}])
            whys.append(await producer.ask("why", queue=queue, id=f"{waiting}/a"))
    assert [(why["causes"], why["share"], why["slots"]) for why in whys] == [(["share"], 0.5, 1.0)] * 2
    assert all(why["starts_at_ms"] for why in whys), "it is known how long the queue's tasks take"


async def test_two_servers_share_the_partitions(server_store: str) -> None:
    async with running(server_store) as one, running(server_store) as two:
        await make(one)
        ran: list[str] = []
        async with (
            fairq.open_client(url_of(one), token=PRODUCER) as client,
            trio.open_nursery() as nursery,
        ):
            for n, served in enumerate((one, two)):
                worker = fairq.Worker(url_of(served), WORKER, 2, name=f"w{n}")

                @worker.task(Q)
                async def handle(task: fairq.Task) -> None:
                    ran.append(f"{task.tenant}/{task.id}")

                await nursery.start(worker.run)
            tasks = await client.enqueue_many(Q, range(60), tenant=[TENANTS[n % len(TENANTS)] for n in range(60)])
            await wait_until(lambda: len(ran) >= len(tasks))
            nursery.cancel_scope.cancel()
        assert Counter(ran) == Counter(task.id for task in tasks)


async def test_a_partitions_lag_is_counted_over_all_servers(server_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both workers run a task, of one partition or of two; the third is due a third of their time, and gets none."""

    async def are_listed() -> bool:
        return len(await one.app.store.workers.servers()) == 2

    async with running(server_store) as one, running(server_store) as two:
        places = await one.app.store.registry.make(Q, "", partitions=3)
        homes = {place_in(places, each): each for each in TENANTS}
        async with (
            raw(one, PRODUCER) as producer,
            raw(one, WORKER) as first,
            raw(two, WORKER) as second,
            raw(one, OPERATOR) as operator,
        ):
            await first.attach(Q, name="a")
            await second.attach(Q, name="b")
            began = trio.current_time()
            tasks = [{"tenant": each, "id": f"{n}", "payload": 1} for each in homes.values() for n in range(9)]
            await producer.ask("enqueue", queue=Q, tasks=tasks)
            ran = {place_in(places, owner_of(each["full_id"])) for w in (first, second) for each in await w.pushed()}
            for served in (one, two):
                await wait_until(lambda: len(served.app.queues.accounts.waiting(places)) == 3)  # noqa: B023
            await wait_until(are_listed)
            known = trio.current_time()
            await trio.sleep(0.2)
            sent = trio.current_time()
            (row,) = (await operator.ask("queues", queue=Q))["queues"]
            lags = {f"{Q}/{each['partition']}": each["lag_s"] for each in row["places"]}
            assert sum(lags.values()) == pytest.approx(0, abs=1e-6)
            (due, *_) = {round(lag, 6) for place, lag in lags.items() if place not in ran}
            assert 2 / 3 * (sent - known) <= due <= 2 / 3 * (trio.current_time() - began)
            assert all(lags[place] < 0 for place in ran)
            monkeypatch.delitem(two.app.questions.answers, LAGS)  # it is of an older version
            monkeypatch.setattr("fairq.server.engine.net.questions.ANSWER_S", 0.05)  # and so says nothing
            (row,) = (await operator.ask("queues", queue=Q))["queues"]
            assert {each["lag_s"] for each in row["places"]} == {None}


def take_away(served: Served, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """Let the store refuse all calls for the place of a tenant, as if its primary were away."""
    calls, away = served.app.store._call_at, place_in(places_of(Q, PARTITIONS), lost)

    async def call_at(prefix: str, *args: Any, **options: Any) -> Any:
        if prefix == keys.queue_prefix(away):
            raise Unavailable("no connection to the store")
        return await calls(prefix, *args, **options)

    monkeypatch.setattr(type(served.app.store), "_call_at", lambda _, *args, **options: call_at(*args, **options))


async def test_a_producer_enqueues_for_the_others_while_a_partition_is_away(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(served)
    lost, other = TENANTS[0], next(each for each in TENANTS if place_of_tenant(each) != place_of_tenant(TENANTS[0]))
    take_away(served, monkeypatch, lost)
    async with fairq.open_client(url_of(served), token=PRODUCER) as client, trio.open_nursery() as nursery:
        nursery.start_soon(partial(client.enqueue, Q, 1, tenant=lost, timeout=30))
        for _ in range(3):
            task = await client.enqueue(Q, 1, tenant=other, timeout=5)
            assert (await task.state()).state == "ready"
        with pytest.raises(Unavailable):
            await client.enqueue(Q, 1, tenant=lost, timeout=0.3)
        monkeypatch.undo()  # the primary is back, and the first call goes on


async def test_ends_of_tasks_are_shown_while_another_partition_is_away(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(served)
    lost, other = TENANTS[0], next(each for each in TENANTS if place_of_tenant(each) != place_of_tenant(TENANTS[0]))
    async with raw(served, PRODUCER) as producer:
        tasks = [{"tenant": each, "id": "a", "payload": 1} for each in (lost, other)]
        await producer.ask("enqueue", queue=Q, tasks=tasks)
        take_away(served, monkeypatch, lost)
        ids = [f"{lost}/a", f"{other}/a"]
        await producer.send("wait_tasks", ref=101, queue=Q, ids=ids, timeout_ms=60_000)
        await producer.send("cancel", ref=102, queue=Q, ids=ids[1:])
        frames = {frame["ref"]: frame for frame in (await producer.receive(), await producer.receive())}
        assert (frames[101]["type"], [row["id"] for row in frames[101]["tasks"]]) == ("ended", ids[1:])
        await producer.send("wait_tasks", ref=103, queue=Q, ids=ids)
        ended, error = await producer.receive(), await producer.receive()
        assert ([row["id"] for row in ended["tasks"]], error["code"]) == (ids[1:], "unavailable")


async def test_a_handler_enqueues_while_the_partition_of_another_tenants_task_is_away(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(served)
    lost, other = TENANTS[0], next(each for each in TENANTS if place_of_tenant(each) != place_of_tenant(TENANTS[0]))
    async with raw(served, PRODUCER) as producer, raw(served, WORKER) as worker:
        await worker.attach(Q, credit=2)
        for each in (lost, other):
            await producer.ask("enqueue", queue=Q, tasks=[{"tenant": each, "id": "a", "payload": 1}])
        pushed = await worker.pushed() + await worker.pushed()
        take_away(served, monkeypatch, lost)
        leases = [{"queue": Q, "id": task["full_id"], "lease": task["lease"]} for task in pushed]
        tasks = [{"id": "b", "payload": 1}] * 2
        body = await worker.ask("enqueue_from", queue=Q, tasks=tasks, leases=leases)
        assert body["outcomes"] == ["refused" if task["full_id"].startswith(f"{lost}/") else "ok" for task in pushed]
        assert {name: row["code"] for name, row in body["refusals"].items()} == {lost: "unavailable"}


async def test_operators_see_the_other_queues_while_a_partition_is_away(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make(served)
    async with raw(served, PRODUCER) as producer, raw(served, OPERATOR) as operator, raw(served, WORKER) as worker:
        await worker.attach(Q, "other", credit=1)
        for queue in (Q, "other"):
            await producer.ask("enqueue", queue=queue, tasks=[{"tenant": "ada", "id": "a", "payload": 1}])
        await worker.pushed()
        take_away(served, monkeypatch, TENANTS[0])
        away, other = (await operator.ask("queues"))["queues"]
        assert (away["queue"], away["is_unavailable"], len(away["away"]), away["slots"]) == (Q, False, 1, 1)
        assert (other["is_unavailable"], other["away"], other["ready"] + other["leased"]) == (False, [], 1)


async def _lease_ms(store: Store, place: str) -> Any:
    return (await store.queue(place)).settings.lease_ms


async def _rate(store: Store, place: str) -> Any:
    return (await store.limits(place, "")).rate


async def _hours(store: Store, place: str) -> Any:
    return [hours.text for hours in (await store.opening_hours(place, [""]))[1]]


async def _is_paused(store: Store, place: str) -> Any:
    return (await store.queue(place)).is_paused


async def _webhooks(store: Store, place: str) -> Any:
    return [each.url for each in await store.webhooks(place)]


async def fill(served: Served) -> None:
    await served.app.store.configure(Q, {"partitions": PARTITIONS})
    await make(served)
    async with raw(served, PRODUCER) as producer:
        tasks = [{"tenant": each, "id": "a", "payload": 1} for each in TENANTS]
        await producer.ask("enqueue", queue=Q, tasks=tasks)
        for queue in ("one", "two"):
            await producer.ask("enqueue", queue=queue, tasks=tasks[:2])


async def test_queues_are_listed_while_a_primary_is_away(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(served)
    away = place_of_tenant(TENANTS[0])
    here = [each for each in TENANTS if place_of_tenant(each) != away]
    async with raw(served, OPERATOR) as operator:
        before = (await operator.ask("queues"))["queues"]
        assert all(row["away"] == [] for row in before)
        lose(served, monkeypatch, away, "one", keys.REGISTRY)
        rows = {row["queue"]: row for row in (await operator.ask("queues"))["queues"]}
        primary = served.app.store.connection.nodes()[0].address.shown
        assert {name: row["away"] for name, row in rows.items()} == {
            Q: [{"partition": partition_of(away), "primary": primary}],
            "one": [{"partition": "", "primary": primary}],
            "two": [],
        }
        assert {name: (row["ready"], row["settings"]["partitions"]) for name, row in rows.items()} == {
            Q: (len(here), PARTITIONS), "one": (0, 1), "two": (2, 1),
        }  # fmt: skip
        assert [rows[name]["made_at_ms"] for name in rows] == [row["made_at_ms"] for row in before]
        assert [rows[name]["is_unavailable"] for name in (Q, "one", "two")] == [False, True, False]
        assert (rows["one"]["version"], rows["two"]["version"]) == ("", before[2]["version"])
        (row,) = (await operator.ask("queues", queue=Q))["queues"]
        assert partition_of(away) not in {each["partition"] for each in row["places"]}
        assert (len(row["places"]), len(row["away"])) == (PARTITIONS - 1, 1)
        with pytest.raises(Refused, match="unavailable"):
            await operator.ask("queues", queue="one")
        page = await operator.ask("tenants", queue=Q)
        assert [each["tenant"] for each in page["tenants"]] == sorted(here)
        assert page["away"] == rows[Q]["away"] == (await operator.ask("history", queue=Q))["away"]
        assert (await operator.ask("limits", queue=Q))["limits"]
        assert (await operator.ask("webhooks", queue=Q))["webhooks"] == []
        await operator.ask("report", queue=Q, tenant=here[0])
        for verb, of in (
            ("report", {"tenant": TENANTS[0]}), ("set_weight", {"tenant": TENANTS[0], "weight": 2}),
            ("set_paused", {"tenant": TENANTS[0], "paused": True}), ("why", {"id": f"{TENANTS[0]}/a"}),
            ("tasks", {"ids": [f"{here[0]}/a", f"{TENANTS[0]}/a"]}),
        ):  # fmt: skip
            with pytest.raises(Refused, match=f"unavailable.*partition {partition_of(away)} of {Q}: no connection"):
                await operator.ask(verb, queue=Q, **of)
        lose(served, monkeypatch, keys.SERVERS)
        assert [row["takers"] for row in (await operator.ask("queues"))["queues"]] == ["none", "", "none"]
        for verb in ("dead", "batches", "schedules"):
            assert (await operator.ask(verb, queue=Q))["away"] == rows[Q]["away"]
            assert not (await operator.ask(verb, queue=Q, tenant=here[0])).get("away")
            with pytest.raises(Refused, match=r"unavailable.*no connection"):
                await operator.ask(verb, queue=Q, tenant=TENANTS[0])
        monkeypatch.undo()
        assert (await operator.ask("queues"))["queues"] == before


async def test_what_all_partitions_have_is_read_from_the_first_that_answers(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(served)
    places = places_of(Q, PARTITIONS)
    async with raw(served, OPERATOR) as operator:
        await operator.ask("set_limits", queue=Q, limits={"rate": 7})
        await operator.ask("add_webhook", queue=Q, url="https://a.example/")
        lose(served, monkeypatch, *places[:4])
        assert (await operator.ask("limits", queue=Q))["limits"]["rate"] == 7
        assert len((await operator.ask("webhooks", queue=Q))["webhooks"]) == 1
        mine = next(each for each in TENANTS if place_of_tenant(each) == places[4])
        async with raw(served, tenant(mine)) as ada:
            assert (await ada.ask("limits", queue=Q))["holds"]["rate"] == 7
        lose(served, monkeypatch, *places)
        for verb in ("webhooks", "tenants", "history"):
            with pytest.raises(Refused, match="unavailable"):
                await operator.ask(verb, queue=Q)


CHANGES: list[tuple[str, dict[str, Any], Callable[[Store, str], Awaitable[Any]]]] = [  # and what a place then has
    ("configure", {"settings": {"lease_ms": 5_000}}, _lease_ms),
    ("set_limits", {"limits": {"rate": 7}}, _rate),
    ("set_opening_hours", {"opening_hours": "mon-fri 8:00-18:00 UTC"}, _hours),
    ("set_paused", {"paused": True}, _is_paused),
    ("add_webhook", {"url": "https://a.example/"}, _webhooks),
]


@pytest.mark.parametrize(("verb", "change", "read"), CHANGES, ids=[verb for verb, *_ in CHANGES])
async def test_a_change_of_the_whole_queue_begins_in_the_first_partition_and_goes_on_when_repeated(
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    change: dict[str, Any],
    read: Callable[[Store, str], Awaitable[Any]],
) -> None:
    await fill(served)
    store, places = served.app.store, places_of(Q, PARTITIONS)
    async with raw(served, OPERATOR) as operator:
        (row,) = (await operator.ask("queues", queue=Q))["queues"]
        held = await operator.ask("limits", queue=Q)
        versions = {
            "configure": row["version"],
            "set_limits": held["version"],
            "set_opening_hours": held["hours_version"],
        }
        if verb in versions:
            change = change | {"if_version": versions[verb]}
        before = await read(store, places[0])
        lose(served, monkeypatch, places[0])
        with pytest.raises(Refused, match="unavailable"):
            await operator.ask(verb, queue=Q, **change)
        monkeypatch.undo()
        assert [await read(store, place) for place in places] == [before] * PARTITIONS, "nothing was done"
        lose(served, monkeypatch, places[3])
        with pytest.raises(Refused, match=r"outcome_unknown.*repeat"):
            await operator.ask(verb, queue=Q, **change)
        monkeypatch.undo()
        after = await read(store, places[0])
        assert after != before
        assert [await read(store, place) for place in places] == [after, after, after, before, after]
        assert await read(store, Q) == after, "callers see what the first one has"
        await operator.ask(verb, queue=Q, **change)
        assert [await read(store, place) for place in places] == [after] * PARTITIONS


async def test_a_removal_of_a_webhook_that_broke_off_is_completed_by_the_next(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(served)
    hook = {"queue": Q, "url": "https://example.com/hook"}
    async with raw(served, OPERATOR) as operator:
        await operator.ask("add_webhook", **hook)
        lose(served, monkeypatch, places_of(Q, PARTITIONS)[3])
        with pytest.raises(Refused, match=r"outcome_unknown.*repeat"):
            await operator.ask("remove_webhook", **hook)
        monkeypatch.undo()
        assert [(await operator.ask("remove_webhook", **hook))["previous"] for _ in range(2)] == [True, False]


async def test_the_first_partition_decides_whether_a_change_is_based_on_the_current_version(served: Served) -> None:
    await fill(served)
    places = places_of(Q, PARTITIONS)
    async with raw(served, OPERATOR) as operator:
        (row,) = (await operator.ask("queues", queue=Q))["queues"]
        await served.app.store.configure(places[3], {"lease_ms": 9_000})  # a change that broke off, and is not repeated
        change = {"settings": {"max_attempts": 3}, "if_version": row["version"]}
        await operator.ask("configure", queue=Q, **change)
        assert {(await served.app.store.queue(place)).settings.max_attempts for place in places} == {3}
        with pytest.raises(Refused, match="stale_version"):
            await operator.ask("configure", queue=Q, settings={"max_attempts": 4}, if_version=row["version"])
        assert {(await served.app.store.queue(place)).settings.max_attempts for place in places} == {3}
        await operator.ask("configure", queue=Q, settings={"lease_ms": 30_000})
        assert {(await served.app.store.queue(place)).settings.lease_ms for place in places} == {30_000}


async def test_an_operator_chooses_the_number_of_partitions_of_a_new_queue(served: Served) -> None:
    async with raw(served, OPERATOR) as operator, raw(served, tenant("ada")) as ada:
        settings = {"partitions": 12, "lease_ms": 5_000}
        answer = await operator.ask("configure", queue=Q, settings=settings)
        assert answer["previous"] == {"partitions": 1, "lease_ms": 30_000}
        assert len(await served.app.store.registry.places(Q)) == 12
        assert (await operator.ask("configure", queue=Q, settings=settings))["previous"] == settings
        (row,) = (await operator.ask("queues", queue=Q))["queues"]
        places = await served.app.store.registry.places(Q)
        assert [f"{Q}/{each['partition']}" for each in row["places"]] == list(places)
        assert {each["primary"] for each in row["places"]} == {served.app.store.connection.nodes()[0].address.shown}
        assert {name: row["settings"][name] for name in settings} == settings
        await ada.enqueue("one", ["a"])
        for queue, partitions in ((Q, 6), (Q, 1), ("one", 2)):
            with pytest.raises(Refused, match=r"not_empty settings\.partitions.*fairq restore FILE"):
                await operator.ask("configure", queue=queue, settings={"partitions": partitions, "lease_ms": 100})
        assert (await operator.ask("configure", queue="one", settings={"partitions": 1}))["previous"] == {
            "partitions": 1
        }


async def test_a_queue_with_partitions_takes_no_reserve(served: Served) -> None:
    """Its primaries do not know which slots are kept. A queue is not made by a change that is refused."""
    async with raw(served, OPERATOR) as operator:
        for queue, settings in (("new", {"partitions": 3, "reserve": 20}), (Q, {"reserve": 1, "lease_ms": 5_000})):
            if queue == Q:
                await operator.ask("configure", queue=Q, settings={"partitions": 3, "reserve": 0})
            with pytest.raises(Refused, match=r"bad_request settings\.reserve.*has no reserve"):
                await operator.ask("configure", queue=queue, settings=settings)
        (row,) = (await operator.ask("queues"))["queues"]
        assert (row["queue"], row["settings"]["reserve"], row["settings"]["lease_ms"]) == (Q, 0, 30_000)
        await operator.ask("configure", queue="one", settings={"reserve": 20, "partitions": 1})


async def test_a_store_gets_a_new_version_with_its_first_partitions_and_no_older_server_then(
    served: Served, redis_store: redis.Redis
) -> None:
    async with raw(served, OPERATOR) as operator:
        assert redis_store.get(keys.DATA_VERSION) == str(NEW).encode()
        older = redis_store.pubsub()
        older.subscribe(f"{keys.VERSIONS}{NEW}")  # as a server of the build before does
        older.get_message(timeout=5)
        with pytest.raises(Refused, match=r"unavailable.*older version run"):
            await operator.ask("configure", queue=Q, settings={"partitions": 2})
        assert redis_store.get(keys.DATA_VERSION) == str(NEW).encode()
        assert (await operator.ask("queues"))["queues"] == []
        older.close()
        await wait_until(lambda: not redis_store.pubsub_channels(f"{keys.VERSIONS}{NEW}"))
        await operator.ask("configure", queue=Q, settings={"partitions": 2})
        assert redis_store.get(keys.DATA_VERSION) == str(library.DATA_VERSION).encode()


async def test_several_migrations_begin_when_all_servers_work_on_what_the_last_one_makes(
    served: Served, redis_store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then an older server shares the store, and the store can go back; one that was begun goes on."""
    (first,) = MIGRATIONS
    last = Migration(library.DATA_VERSION + 1, "for all", first.step)
    monkeypatch.setattr("fairq.store.migrations.MIGRATIONS", (first, last))
    store, version = served.app.store, library.DATA_VERSION
    assert await migrate(store, to=last.number) == "waits"  # for the server itself, which is of today
    assert redis_store.get(keys.DATA_VERSION) == str(NEW).encode()
    redis_store.set(keys.DATA_VERSION, f"{NEW}>{version}")
    assert await migrate(store, to=last.number) == "waits"
    assert redis_store.get(keys.DATA_VERSION) == str(version).encode()


async def test_a_partition_knows_by_each_claim_what_its_tenants_share(served: Served) -> None:
    await make(served)
    place, accounts = place_of_tenant(TENANTS[0]), served.app.queues.accounts
    async with raw(served, WORKER) as worker, raw(served, tenant(TENANTS[0])) as ada:
        await worker.attach(Q)
        for share in ("count", "time"):
            await served.app.store.configure(Q, {"share": share})
            await ada.enqueue(Q, [share])
            await worker.settle(Q, "ack", *await worker.pushed())
            assert accounts._queues[place].is_by_count == (share == "count")


async def test_a_server_serves_a_tenant_that_begins_to_wait_in_a_busy_partition_out_of_turn(served: Served) -> None:
    """Its partition has just had more than the others; the slot is charged, and the others have theirs next."""
    places = await served.app.store.registry.make(Q, "", partitions=3)
    homes = {place: [f"t{n}" for n in range(30) if place_in(places, f"t{n}") == place] for place in places}
    ahead, *others = places
    accounts = served.app.queues.accounts
    async with raw(served, WORKER) as worker, raw(served, PRODUCER) as producer:
        await worker.attach(Q, credit=1)
        for place in places:
            tasks = [{"tenant": homes[place][0], "id": f"a{n}", "payload": 1} for n in range(100)]
            await producer.ask("enqueue", queue=Q, tasks=tasks)

        async def next_place() -> str:
            (task,) = pushed = await worker.pushed()
            await worker.settle(Q, "ack", *pushed)
            return place_in(places, owner_of(task["full_id"]))

        while {await next_place() for _ in range(3)} != set(places):
            pass
        (running,) = await worker.pushed()
        weight = accounts._queues[ahead].competing
        for (
            place,
            account,
        ) in accounts._queues.items():  # as after leases of an hour, of which one place had half a one more
            account._mean, account._square = 3_600.0, 3_600.0**2
            account.vtime = 1_800.0 / account.weight if place == ahead else 0.0
        await producer.ask("enqueue", queue=Q, tasks=[{"tenant": homes[ahead][1], "id": "new", "payload": 1}])
        assert accounts._queues[ahead].competing == 2 * weight
        await worker.settle(Q, "ack", running)
        (task,) = pushed = await worker.pushed()
        assert task["id"] == "new"
        assert accounts._queues[ahead].running == 1
        await worker.settle(Q, "ack", *pushed)
        assert {await next_place(), await next_place()} <= set(others)


async def test_a_repair_passes_over_a_partition_that_is_away_and_names_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(served)
    places = places_of(Q, PARTITIONS)
    away = places[2]
    ready = {each: f"{keys.queue_prefix(place_of_tenant(each))}:ready:{each}" for each in TENANTS}
    call = served.app.store.connection.call
    for key in ready.values():
        await call("DEL", key)
    async with fairq.open_operator(url_of(served), token=OPERATOR) as operator:
        lose(served, monkeypatch, away)
        with pytest.raises(Unavailable, match=f"partition {partition_of(away)} of {Q} cannot be repaired: the"):
            await operator.repair_queue(Q)
        are_there = {each: await call("EXISTS", key) for each, key in ready.items()}
        assert are_there == {each: place_of_tenant(each) != away for each in TENANTS}
        lose(served, monkeypatch, *places)
        with pytest.raises(Unavailable, match=f"partition {partition_of(places[-1])} of {Q}: no connection"):
            await served.app.store.repair(Q, away={})
        monkeypatch.undo()
        assert (await operator.repair_queue(Q)).tasks == len(TENANTS)
        assert all([await call("EXISTS", key) for key in ready.values()])
