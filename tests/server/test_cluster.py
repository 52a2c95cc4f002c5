"""Servers on a cluster: their queues live on several primaries, and one may be on its way to another."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio

import fairq
from fairq.model.places import place_of
from fairq.store import keys
from fairq.store.partitions import place_in, places_of
from tests import clusters
from tests.store.waiting import wait_until
from tests.system.harness import open_world

from .harness import OPERATOR, PRODUCER, WORKER, raw, running, tenant

QUEUES = [f"queue-{number}" for number in range(6)]
TASKS = 30
pytestmark = pytest.mark.deep("kills")


def noting(ran: list[tuple[str, str]], queue: str) -> Callable[[fairq.Task], object]:
    """Make a handler that notes what it was given."""

    async def handle(task: fairq.Task) -> None:
        ran.append((queue, task.id))

    return handle


async def test_a_served_cluster_runs_each_task_once_also_while_a_slot_moves(
    cluster: clusters.Cluster, tmp_path: Path
) -> None:
    owners = {cluster.owner(keys.queue_prefix(queue)).port for queue in QUEUES}
    assert len(owners) == 3
    ran: list[tuple[str, str]] = []
    enqueued: list[tuple[str, str]] = []
    prefix = keys.queue_prefix(QUEUES[0])
    for node in cluster.nodes:
        node.client.config_resetstat()
    with open_world(tmp_path) as world:
        url = await world.serve("--store", cluster.url).wait_url()
        app = fairq.Worker(url, WORKER, 20, name="w")
        for queue in QUEUES:
            app.task(queue)(noting(ran, queue))
        async with (
            fairq.open_client(url, token=tenant("ada")) as ada,
            fairq.open_client(url, token=OPERATOR) as operator,
            trio.open_nursery() as nursery,
        ):
            await nursery.start(app.run)

            async def enqueue(queue: str) -> None:
                for number in range(TASKS):
                    task = await ada.enqueue(queue, number, delay=0.05 if number % 10 == 0 else 0)
                    enqueued.append((queue, task.id))

            async with trio.open_nursery() as producers:
                for queue in QUEUES:
                    producers.start_soon(enqueue, queue)
                await wait_until(lambda: len(ran) >= TASKS)
                cluster.move(prefix, cluster.other(cluster.owner(prefix)))
            await wait_until(lambda: len(ran) >= TASKS * len(QUEUES))
            rows = (await operator.request("queues"))["queues"]
            assert {row["queue"] for row in rows} == set(QUEUES)
            nursery.cancel_scope.cancel()
    assert sorted(ran) == sorted(enqueued)
    assert "CROSSSLOT" not in cluster.error_counts()


@pytest.mark.one_store
@pytest.mark.usefixtures("no_polls")
async def test_a_task_enqueued_at_one_server_wakes_a_worker_at_the_other_on_every_primary(
    cluster: clusters.Cluster,
) -> None:
    async with (
        running(cluster.url) as one,
        running(cluster.nodes[1].server.url) as two,
        raw(one, tenant("ada")) as ada,
        raw(two, WORKER) as worker,
    ):
        await worker.attach(*QUEUES, credit=1)
        for queue in QUEUES:
            channel = keys.ready_channel(queue)
            await wait_until(partial(cluster.is_heard, channel))
        for queue in QUEUES:
            await worker.quiet()  # it knows by now that there is nothing
            await ada.enqueue(queue, ["a"])
            (task,) = await worker.pushed()
            await worker.settle(queue, "ack", task)


async def test_links_reach_queues_of_other_primaries_also_while_a_slot_moves(
    cluster: clusters.Cluster, tmp_path: Path
) -> None:
    # another test may have moved a slot
    assert len({cluster.owner(keys.queue_prefix(queue)).port for queue in QUEUES}) >= 2
    ends: list[int] = []
    with open_world(tmp_path) as world:
        url = await world.serve("--store", cluster.url).wait_url()
        app = fairq.Worker(url, WORKER, 20, name="w")
        for queue, after in zip(QUEUES, [*QUEUES[1:], ""], strict=True):

            def handle(task: fairq.Task, after: str = after) -> None:
                if after:
                    task.then(after, task.payload)
                else:
                    ends.append(task.payload)

            app.task(queue)(handle)
        async with fairq.open_client(url, token=tenant("ada")) as ada, trio.open_nursery() as nursery:
            await nursery.start(app.run)
            await ada.enqueue_many(QUEUES[0], range(TASKS))
            await wait_until(lambda: len(ends) >= TASKS // 3)
            prefix = keys.queue_prefix(QUEUES[2])
            cluster.move(prefix, cluster.other(cluster.owner(prefix)))
            await ada.enqueue_many(QUEUES[0], range(TASKS, 2 * TASKS))
            await wait_until(lambda: len(ends) >= 2 * TASKS, 50)
            nursery.cancel_scope.cancel()
    assert sorted(ends) == list(range(2 * TASKS))


async def test_a_queue_with_partitions_goes_on_while_a_primary_stands_still(
    start_cluster: Callable[..., clusters.Cluster], tmp_path: Path
) -> None:
    """Its tenants wait meanwhile, and no task runs twice; the tenants of the other primaries do not wait."""
    cluster, ran = start_cluster(), list[tuple[str, int]]()
    places = places_of("imports", 12)
    home = {f"t{n}": cluster.owner(keys.queue_prefix(place_in(places, f"t{n}"))) for n in range(24)}
    assert len({node.port for node in home.values()}) == 3
    victim = cluster.nodes[0]
    with open_world(tmp_path) as world:
        url = await world.serve("--store", cluster.url).wait_url()
        app = fairq.Worker(url, WORKER, 10, name="w")

        @app.task("imports")
        async def handle(task: fairq.Task) -> None:
            await trio.sleep(0.02)
            ran.append((task.tenant, task.payload))

        async with (
            fairq.open_client(url, token=PRODUCER) as client,
            fairq.open_client(url, token=OPERATOR) as operator,
            trio.open_nursery() as nursery,
        ):
            await operator.request("configure", {"queue": "imports", "settings": {"partitions": 12}})
            for tenant_ in home:
                await client.enqueue_many("imports", range(TASKS), tenant=tenant_)
            await nursery.start(app.run)
            await wait_until(lambda: len(ran) >= 100)
            os.kill(victim.server.pid, signal.SIGSTOP)
            try:
                others = [tenant_ for tenant_, node in home.items() if node is not victim]
                await wait_until(lambda: sum(of in others for of, _ in ran) == TASKS * len(others), 50)
            finally:
                os.kill(victim.server.pid, signal.SIGCONT)
            await wait_until(lambda: len(ran) >= TASKS * len(home), 50)
            nursery.cancel_scope.cancel()
    assert sorted(ran) == sorted((tenant_, n) for tenant_ in home for n in range(TASKS))


async def test_operators_see_the_other_queues_while_a_primary_is_away(
    start_cluster: Callable[..., clusters.Cluster], tmp_path: Path
) -> None:
    cluster = start_cluster()
    dead = cluster.owner(keys.WORKERS)  # over which servers ask each other
    assert dead is not cluster.owner(keys.QUEUES)
    away = {queue for queue in QUEUES if cluster.owner(keys.queue_prefix(queue)) is dead}
    async with running(cluster.url) as served, raw(served, PRODUCER) as producer, raw(served, OPERATOR) as operator:
        for queue in QUEUES:
            await producer.ask("enqueue", queue=queue, tasks=[{"tenant": "ada", "id": "a", "payload": 1}])
        dead.server.kill()
        await wait_until(lambda: not served.app.store.connection.is_connected)
        rows = {row["queue"]: row for row in (await operator.ask("queues"))["queues"]}
        assert {queue for queue, row in rows.items() if row["is_unavailable"]} == away
        assert {queue: row["ready"] for queue, row in rows.items()} == {
            queue: int(queue not in away) for queue in QUEUES
        }


async def test_servers_ask_each_other_while_the_primary_of_their_lists_is_away(
    start_cluster: Callable[..., clusters.Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairq.server.engine.net.questions.ANSWER_S", 30.0)
    cluster = start_cluster()
    dead = cluster.owner(keys.SERVERS)
    queue = next(each for each in QUEUES if cluster.owner(keys.queue_prefix(each)) is not dead)
    async with (
        running(cluster.url) as near,
        running(cluster.url) as far,
        raw(near, PRODUCER) as producer,
        raw(near, OPERATOR) as operator,
        raw(far, WORKER) as worker,
    ):
        await worker.attach(queue, name="mill")
        tasks = [{"tenant": "ada", "id": id, "payload": 1} for id in "ab"]
        await producer.ask("enqueue", queue=queue, tasks=tasks)
        await worker.pushed()
        assert len((await operator.ask("queues"))["queues"]) == 1  # as it will be remembered
        await wait_until(lambda: near.app.worker_registry.elsewhere.servers() == {far.app.name})
        dead.server.kill()
        await wait_until(lambda: not near.app.store.connection.is_connected)
        (row,) = (await operator.ask("queues", queue=queue))["queues"]
        assert row["takers"] == "some"
        found = await operator.ask("worker_tasks", worker="mill")
        assert ([each["server"] for each in found["workers"]], found["unanswered"]) == ([far.app.name], [])
        assert [each["id"] for each in found["tasks"]] == ["ada/a"]
        assert (await operator.ask("report", queue=queue, tenant="ada"))["report"]["unanswered"] == 0
        assert [each["id"] for each in (await operator.ask("attempts", queue=queue))["running"]] == ["ada/a"]
        listed = await operator.ask("workers")
        assert (listed["workers"], listed["unanswered"]) == ([], [far.app.name])
        assert await near.app.worker_registry.drain("mill") == 1  # as a request it waits for the audit's primary
        assert (await worker.receive())["type"] == "dismiss"


async def test_queues_are_listed_while_any_primary_stands_still(
    start_cluster: Callable[..., clusters.Cluster], tmp_path: Path
) -> None:
    """Also the one that has the names of the queues. What does not answer is named, and its primary."""
    cluster = start_cluster()
    with open_world(tmp_path) as world:
        url = await world.serve("--store", cluster.url).wait_url()
        async with (
            fairq.open_client(url, token=PRODUCER) as client,
            fairq.open_operator(url, token=OPERATOR) as operator,
        ):
            await operator.configure("imports", partitions=12)
            for n in range(24):
                await client.enqueue("imports", 1, tenant=f"t{n}")
            for queue in QUEUES:
                await client.enqueue(queue, 1, tenant="ada")
            assert not any(row.away for row in await operator.queues())
            places = [*places_of("imports", 12), *QUEUES]
            for victim in cluster.nodes:
                lost = {place for place in places if cluster.owner(keys.queue_prefix(place)) is victim}
                os.kill(victim.server.pid, signal.SIGSTOP)
                try:
                    rows = {row.queue: row for row in await operator.queues()}
                    page = await operator.request("tenants", {"queue": "imports"})
                finally:
                    os.kill(victim.server.pid, signal.SIGCONT)
                assert rows.keys() == {"imports", *QUEUES}
                away = {place_of(name, each.partition) for name, row in rows.items() for each in row.away}
                assert away == lost
                assert all(str(victim.port) in each.primary for row in rows.values() for each in row.away)
                assert {name: row.ready for name, row in rows.items() if name in QUEUES} == {
                    name: int(name not in lost) for name in QUEUES
                }
                here = [f"t{n}" for n in range(24) if place_in(places_of("imports", 12), f"t{n}") not in lost]
                assert rows["imports"].ready == len(here)
                assert [row["tenant"] for row in page["tenants"]] == sorted(here)
                with trio.fail_after(30):
                    while any(row.away for row in await operator.queues()):
                        pass
