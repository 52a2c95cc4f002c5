"""The feed through the server: its tenant alone reads it, how long an answer waits, and no event is missed."""

from __future__ import annotations

import pytest
import trio

from fairq.model.checks import full_id
from fairq.model.events import EventPage
from fairq.model.tasks import NewTask, Settlement
from fairq.server.engine import queues as module
from fairq.server.engine.net.connection import MAX_LONG_ANSWERS
from fairq.server.run import Served
from fairq.store import keys
from fairq.store.store import Store
from tests import stores
from tests.store.waiting import wait_until

from .harness import WORKER, Raw, Refused, noted_calls, raw, running, tenant


async def finish(store: Store, *ids: str, name: str = "ada") -> None:
    """Have tasks of a tenant done that asked for events; nothing else may be ready."""
    await store.enqueue("q", name, [NewTask(full_id(name, id), b"1", events=True) for id in ids])
    done = [Settlement("ack", lease.id, lease.lease) for lease in (await store.claim("q", "w", len(ids))).leases]
    assert await store.settle("q", done) == ["ok"] * len(ids)


async def waited_for(served: Served, *names: str) -> None:
    """Wait until requests wait for the feeds of these tenants, and no other."""
    wanted = {keys.EVENT + name for name in names}
    await wait_until(
        lambda: "q" in served.app.queues.long_polls and served.app.queues.long_polls["q"]._watches.keys() == wanted
    )


async def test_an_event_too_old_is_refused_with_where_the_feed_goes_on(served: Served, ada: Raw, operator: Raw) -> None:
    await operator.ask("configure", queue="q", settings={"events_keep": 2})
    await finish(served.app.store, "a", "b", "c", "d", "e")
    with pytest.raises(Refused) as caught:
        await ada.ask("events", queue="q", after=2)
    assert (caught.value.code, caught.value.field) == ("too_old", "after")
    assert "event 4" in caught.value.frame["message"]
    assert [row["id"] for row in (await ada.ask("events", queue="q", after=3))["events"]] == [4, 5]
    assert [row["id"] for row in (await ada.ask("events", queue="q"))["events"]] == [4, 5]
    with pytest.raises(Refused) as caught:
        await ada.ask("events", queue="q", after=6, timeout_ms=1000)
    assert (caught.value.code, caught.value.field) == ("bad_request", "after")
    assert "newest event is 5" in caught.value.frame["message"]


async def test_an_answer_with_nothing_comes_when_the_time_is_up(served: Served) -> None:
    async with raw(served, tenant("ada")) as ada:
        assert (await ada.ask("events", queue="q", timeout_ms=50))["events"] == []
        assert (await ada.ask("events", queue="q"))["events"] == []
    await waited_for(served)


@pytest.mark.usefixtures("no_polls")
async def test_an_event_between_reading_and_waiting_is_not_missed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, pages = Store.events, []

    async def late(store: Store, queue: str, name: str, after: int, count: int) -> EventPage:
        page = await real(store, queue, name, after, count)
        pages.append(page)
        if len(pages) == 1:
            await finish(store, "a")
            (watch,) = served.app.queues.long_polls["q"]._watches[keys.EVENT + "ada"]
            await wait_until(lambda: bool(watch.heard))
        return page

    monkeypatch.setattr(Store, "events", late)
    async with raw(served, tenant("ada")) as ada:
        rows = (await ada.ask("events", queue="q", timeout_ms=60_000))["events"]
    assert [page.newest for page in pages] == [0, 1]
    assert [row["task"] for row in rows] == ["a"]


async def finish_when_waited_for(waiting: Served, finishing: Served) -> None:
    """Have a task done at one server when a request waits at another."""
    await waited_for(waiting, "ada")
    await finish(finishing.app.store, "a")


async def test_queues_for_which_nobody_waits_any_more_are_forgotten(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairq.server.engine.queues._FORGET_S", 0.01)
    async with running(server_store) as served, raw(served, tenant("ada")) as ada, raw(served, WORKER) as worker:
        await worker.attach("kept", credit=1)
        for n in range(20):
            await ada.ask("events", queue=f"q{n}", timeout_ms=1)
        await wait_until(lambda: not served.app.queues.long_polls)
        channels = [keys.ready_channel(name) for name in ("q0", "q19", "kept")]

        def one_is_heard() -> bool:
            with stores.connect(server_store) as plain:
                flat = plain.execute_command("PUBSUB", "SHARDNUMSUB", *channels)
            counts = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
            return counts == {channels[0].encode(): 0, channels[1].encode(): 0, channels[2].encode(): 1}

        await wait_until(one_is_heard)
        async with trio.open_nursery() as nursery:  # and one that was forgotten is heard again
            nursery.start_soon(finish_when_waited_for, served, served)
            page = await ada.ask("events", queue="q", timeout_ms=20_000)
        assert [row["task"] for row in page["events"]] == ["a"]


async def test_what_wakes_many_requests_of_a_client_has_few_of_them_read_at_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = noted_calls(monkeypatch, "events")
    async with raw(served, tenant("ada")) as ada:
        for ref in range(60):
            await ada.send("events", ref=ref, queue="q", timeout_ms=60_000)
        polls = served.app.queues.long_polls
        await wait_until(lambda: "q" in polls and len(polls["q"]._watches[keys.EVENT + "ada"]) == 60)
        await finish(served.app.store, "a")
        answers = [await ada.receive() for _ in range(60)]
    assert {len(answer["body"]["events"]) for answer in answers} == {1}
    assert 1 < reads.most <= MAX_LONG_ANSWERS


@pytest.mark.usefixtures("no_polls")
async def test_a_tenant_has_few_queues_listened_to_that_do_not_exist(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_UNMADE", 3)
    async with raw(served, tenant("ada")) as ada, raw(served, tenant("bob")) as bob, trio.open_nursery() as nursery:
        before = len(served.app.queues._channels)
        for n in range(8):
            await ada.ask("events", queue=f"none{n}", timeout_ms=1)
            await ada.ask("wait_tasks", queue=f"never{n}", ids=["t"], timeout_ms=1)
        assert len(served.app.queues._channels) == before + 3
        heard: list[int] = []

        async def wait() -> None:
            heard.append(len((await bob.ask("events", queue="q", timeout_ms=20_000))["events"]))

        nursery.start_soon(wait)
        await waited_for(served, "bob")
        await finish(served.app.store, "t", name="bob")
        await wait_until(lambda: heard == [1])
