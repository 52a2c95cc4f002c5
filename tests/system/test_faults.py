"""Lost replies, stopped workers, drains, and stores that are late."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial

import pytest
import trio

import fairq
from fairq.errors import Unavailable
from tests import stores
from tests.server.harness import WORKER, raw
from tests.store.proxy import open_proxy
from tests.store.waiting import wait_until

from .harness import World, counts, operating, producing, wait_drained, wait_workers

pytestmark = pytest.mark.deep("kills")


async def test_replies_lost_between_server_and_store_make_no_second_task(
    world: World, durable_store: Callable[[], stores.LocalServer]
) -> None:
    """Enqueues, claims and settlements alike: the proxy takes whatever reply comes next."""
    store = durable_store()
    with trio.fail_after(90):
        async with open_proxy(store.port) as proxy:
            server = world.serve("--store", f"redis://127.0.0.1:{proxy.port}/0")
            url = await server.wait_url()
            world.work(url)
            async with producing(url) as producer, operating(url) as operator:
                # a claim whose reply is lost, and that is not asked for again, costs a lease: short, but not too short
                await operator.request("configure", {"queue": "q", "settings": {"lease_ms": 10_000}})
                assert await producer.enqueue("first")
                await world.wait_journal(lambda ran: len(ran) == 2)
                for number in range(10):
                    proxy.lose_next_reply()
                    assert await producer.enqueue(f"id-{number}")
                assert proxy.lost >= 5
                row = await wait_drained(operator, 60)
                assert (row["enqueued"], row["done"], row["dead"]) == (11, 11, 0)
                producer.check(world.journal())


async def test_the_ack_of_a_worker_that_slept_through_its_lease_is_refused(world: World) -> None:
    with trio.fail_after(60):
        url = await world.serve("--data-dir", world.directory / "data").wait_url()
        async with producing(url) as producer, operating(url) as operator:
            await operator.request("configure", {"queue": "q", "settings": {"lease_ms": 2000}})
            sleeper = world.work(url, name="sleeper", concurrency=1)
            await producer.enqueue("a", first="slept", then="seen")
            await world.wait_journal(lambda ran: len(ran) == 1)
            sleeper.send(signal.SIGSTOP)
            heir = world.work(url, name="heir", concurrency=1)
            await world.wait_journal(lambda ran: any(row.event == "start" and row.pid == heir.pid for row in ran))
            world.touch("slept")
            sleeper.send(signal.SIGCONT)
            await sleeper.wait_printed("lease lost|too late")
            attempt = world.journal("start")[-1].attempt  # 2, or more where the machine was too busy for leases of 2 s
            (state,) = (await operator.request("tasks", {"queue": "q", "ids": ["ada/a"]}))["tasks"]
            assert (state["state"], state["attempt"]) == ("leased", attempt)
            world.touch("seen")
            row = await wait_drained(operator)
            assert (row["done"], row["dead"]) == (1, 0)
            assert [(ran.id, ran.attempt) for ran in world.journal("end") if ran.pid != sleeper.pid] == [("a", attempt)]
            producer.check(world.journal(), may_repeat=lambda id: True)


async def test_a_lone_worker_that_slept_through_its_lease_goes_on_working(world: World) -> None:
    """Its own task comes back to it while the first run still stands there."""
    with trio.fail_after(60):
        url = await world.serve("--data-dir", world.directory / "data").wait_url()
        async with producing(url) as producer, operating(url) as operator:
            await operator.request("configure", {"queue": "q", "settings": {"lease_ms": 2000}})
            sleeper = world.work(url, name="sleeper", concurrency=3)
            await producer.enqueue("a", first=60, then=0)
            await world.wait_journal(lambda ran: len(ran) == 1)
            sleeper.send(signal.SIGSTOP)

            async def came_back() -> bool:
                return await attempt_of(operator, "a") >= 2

            await wait_until(came_back)
            sleeper.send(signal.SIGCONT)
            row = await wait_drained(operator)
            assert (row["done"], row["dead"]) == (1, 0)
            await producer.enqueue("b")
            await world.wait_journal(lambda ran: any(r.event == "end" and r.id == "b" for r in ran))
            assert [ran.attempt for ran in world.journal("end") if ran.id == "a"][-1] >= 2
            assert sleeper.process.poll() is None


async def test_a_worker_that_was_stopped_begins_nothing_that_came_meanwhile(world: World) -> None:
    with trio.fail_after(60):
        url = await world.serve("--data-dir", world.directory / "data").wait_url()
        async with producing(url) as producer, operating(url) as operator:
            await operator.request("configure", {"queue": "q", "settings": {"lease_ms": 3000}})
            heir = world.work(url, name="heir", concurrency=1)
            await producer.enqueue("a", first="heir is free")
            await world.wait_journal(lambda ran: len(ran) == 1)
            sleeper = world.work(url, name="sleeper", concurrency=2)
            await wait_workers(operator, 2)
            sleeper.send(signal.SIGSTOP)
            await producer.enqueue("b")
            brief = await producer.client.enqueue("q", {"first": 0, "then": 0}, id="brief", expires_in=2.5)
            await wait_until(partial(is_leased, brief))
            world.touch("heir is free")
            await world.wait_journal(lambda ran: any(row.event == "end" and row.id == "b" for row in ran))
            heir.send(signal.SIGTERM)
            await heir.wait()
            sleeper.send(signal.SIGCONT)
            await producer.enqueue("c")
            await world.wait_journal(lambda ran: any(row.event == "end" and row.id == "c" for row in ran))
            row = await wait_drained(operator)
            assert (row["done"], row["dead"], row["expired"]) == (3, 1, 1)
            assert [ran.id for ran in world.journal("start") if ran.pid == sleeper.pid] == ["c"]
            producer.check(world.journal())


async def is_leased(task: fairq.EnqueuedTask) -> bool:
    return (await task.state()).state == "leased"


async def attempt_of(operator: fairq.Client, id: str) -> int:
    """Read a task's attempt."""
    (state,) = (await operator.request("tasks", {"queue": "q", "ids": [f"ada/{id}"]}))["tasks"]
    attempt: int = state.get("attempt", 0)
    return attempt


async def test_sigterm_lets_running_tasks_finish_and_gives_the_rest_back(world: World) -> None:
    with trio.fail_after(60):
        data = world.directory / "data"
        port = stores.free_port()
        server = world.serve("--data-dir", data, "--port", str(port), "--grace", "30")
        url = await server.wait_url()
        worker = world.work(url, concurrency=3)
        async with producing(url) as producer:
            for number in range(8):
                await producer.enqueue(f"id-{number}", first="draining", then=0)
            await world.wait_journal(lambda ran: len(ran) == 3)
            server.send(signal.SIGTERM)
            await server.wait_printed("draining")
            world.touch("draining")
            assert await server.wait() == 0
            assert {(ran.event, ran.attempt) for ran in world.journal()} == {("start", 1), ("end", 1)}
            assert len(world.journal("end")) == 3
            await world.serve("--data-dir", data, "--port", str(port)).wait_url()
            async with operating(url) as operator:
                row = await wait_drained(operator)
            assert (row["done"], row["dead"]) == (8, 0)
            assert len(world.journal("end")) == 8  # nothing ran again
            producer.check(world.journal())
        worker.send(signal.SIGTERM)
        assert await worker.wait() == 0


async def test_a_second_sigterm_ends_a_server_at_once(world: World) -> None:
    with trio.fail_after(60):
        server = world.serve("--data-dir", world.directory / "data", "--grace", "60")
        url = await server.wait_url()
        world.work(url, concurrency=1)
        async with producing(url) as producer:
            await producer.enqueue("a", first=60)
            await world.wait_journal(lambda ran: len(ran) == 1)
            server.send(signal.SIGTERM)
            await server.wait_printed("draining")
            await wait_until(lambda: says_that_it_stops(url))
            assert server.process.poll() is None
            server.send(signal.SIGTERM)
            await server.wait()


async def says_that_it_stops(url: str) -> bool:
    """Tell whether a server is there, and refuses connections since it is stopping."""
    try:
        async with raw(url, WORKER):
            return False
    except Unavailable as error:
        return "the server is stopping" in error.message


async def test_a_store_that_is_away_at_start_is_waited_for_with_a_message(
    world: World, durable_store: Callable[[], stores.LocalServer]
) -> None:
    store = durable_store()
    store.kill()
    with trio.fail_after(60):
        server = world.serve("--store", store.url, "--store-timeout", "30")
        await server.wait_printed("store unavailable")
        store.start()
        url = await server.wait_url()
        async with producing(url) as producer:
            assert await producer.enqueue("a")


async def test_a_store_that_stays_away_ends_the_start_with_code_2(world: World) -> None:
    with trio.fail_after(60):
        server = world.serve("--store", f"redis://:secret@127.0.0.1:{stores.free_port()}", "--store-timeout", "0.5")
        assert await server.wait() == 2
    last = server.printed.strip().splitlines()[-1]
    assert last.startswith("fairq: the store at redis://:***@127.0.0.1:")
    assert "0.5 s" in last
    assert "secret" not in server.printed
    assert "Traceback" not in server.printed


async def test_a_store_that_hangs_does_not_hang_its_clients(
    world: World, durable_store: Callable[[], stores.LocalServer]
) -> None:
    store = durable_store()
    with trio.fail_after(60):
        url = await world.serve("--store", store.url).wait_url()
        async with producing(url) as producer:
            assert await producer.enqueue("before")
            store_signal(store, signal.SIGSTOP)
            try:
                assert not await producer.enqueue("during", timeout=7)
            finally:
                store_signal(store, signal.SIGCONT)
            assert await producer.enqueue("during")
            async with operating(url) as operator:
                assert (await counts(operator))["enqueued"] == 2


def store_signal(store: stores.LocalServer, number: signal.Signals) -> None:
    """Send a signal to a store's process."""
    os.kill(store.pid, number)


async def test_a_worker_that_restarts_under_its_name_gets_at_once_what_its_dead_self_held(world: World) -> None:
    """The first is stopped as a machine is that loses its network: its connection stands, its lease is an hour long."""
    with trio.fail_after(60):
        url = await world.serve("--data-dir", world.directory / "data").wait_url()
        async with producing(url) as producer, operating(url) as operator:
            await operator.request("configure", {"queue": "q", "settings": {"lease_ms": 3_600_000}})
            dead = world.work(url, name="mill", concurrency=1)
            await producer.enqueue("a", first=30, then=0)
            await world.wait_journal(lambda ran: len(ran) == 1)
            dead.send(signal.SIGSTOP)
            world.work(url, name="mill", concurrency=1)
            ran = await world.wait_journal(lambda ran: [row.event for row in ran] == ["start", "start", "end"])
            assert [row.attempt for row in ran] == [1, 2, 2]
            dead.send(signal.SIGCONT)
            assert await dead.wait() == 1
            await dead.wait_printed("another worker attached|a worker that came later")
            await wait_workers(operator, 1)
            producer.check(world.journal())
