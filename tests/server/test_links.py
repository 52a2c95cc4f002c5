"""Links and handlers' tasks at the server: walls, refusals of the target, and servers that die in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from fairq.errors import Unavailable
from fairq.model.tasks import Link, NewTask, Settlement
from fairq.server.run import Served
from fairq.server.timers import outbox
from fairq.store import keys, library
from fairq.store.store import Store
from fairq.tokens import hash_token, make_token
from fairq.wire.terms import Role
from tests import stores
from tests.store.waiting import wait_until

from .harness import OPERATOR, WORKER, Raw, Refused, raw, running, tenant
from .test_delete import crowd

LINK = {"queue": "next", "id": "link", "payload": [1]}


async def leased(worker: Raw, ada: Raw, id: str = "a") -> dict[str, Any]:
    """Enqueue a task, and have it pushed to an attached worker."""
    await ada.enqueue("q", [id])
    (task,) = await worker.pushed()
    return task


def lease_of(task: dict[str, Any]) -> dict[str, Any]:
    """Name the lease of a pushed task."""
    return {"queue": "q", "id": task["full_id"], "lease": task["lease"]}


async def derive(worker: Raw, lease: dict[str, Any], **task: Any) -> list[str]:
    """Enqueue a task from a leased one."""
    new = {"id": "derived", "payload": 1, **task}
    outcomes: list[str] = (await worker.ask("enqueue_from", leases=[lease], queue="next", tasks=[new]))["outcomes"]
    return outcomes


async def wall(worker: Raw, lease: dict[str, Any]) -> None:
    """Check that nothing is enqueued from a lease."""
    with pytest.raises(Refused) as caught:
        await derive(worker, lease)
    assert (caught.value.code, caught.value.field) == ("forbidden", "leases")


async def test_a_worker_enqueues_for_leases_that_its_connection_holds_only(served: Served) -> None:
    with trio.fail_after(60):
        async with raw(served, WORKER) as mine, raw(served, WORKER) as other, raw(served, tenant("ada")) as ada:
            await mine.attach("q", credit=2, name="mine")
            task = await leased(mine, ada)
            await other.attach("q", credit=0, name="other")
            lease = lease_of(task)
            await wall(other, lease)
            await wall(mine, lease | {"lease": task["lease"] + 1})
            await wall(mine, lease | {"id": "bob/a"})
            await wall(mine, lease | {"queue": "next"})
            assert await derive(mine, lease) == ["ok"]
            assert await derive(mine, lease) == ["duplicate"]
            assert (await served.app.store.tasks("next", ["ada/derived"]))[0].tenant == "ada"
            await served.app.store.settle("q", [Settlement("reap", task["full_id"], task["lease"])])  # behind its back
            await wall(mine, lease)
            (again,) = await mine.pushed()
            await wall(mine, lease)
            assert await derive(mine, lease_of(again)) == ["duplicate"]
            assert await mine.settle("q", "ack", again) == ["ok"]
            await wall(mine, lease_of(again))
            assert (await served.app.store.queue("next")).enqueued == 1


async def test_a_retry_that_comes_long_after_the_task_it_made_has_ended_makes_no_second(served: Served) -> None:
    """The target has forgotten the id by then; the task that is tried again has not."""
    with trio.fail_after(60):
        async with raw(served, WORKER) as worker, raw(served, tenant("ada")) as ada:
            await worker.attach("q", credit=2)
            task = await leased(worker, ada)
            assert await derive(worker, lease_of(task)) == ["ok"]
            store = served.app.store
            (made,) = (await store.claim("next", "w", 1)).leases
            await store.settle("next", [Settlement("ack", made.id, made.lease)])
            await store.connection.call("HDEL", "fq:{next/0}:tasks", made.id)  # as when its mark has gone
            await worker.settle("q", "nack", task, delay_ms=0)
            (again,) = await worker.pushed()
            assert await derive(worker, lease_of(again)) == ["duplicate"]
            assert (await store.queue("next")).enqueued == 1


async def test_a_worker_of_some_queues_enqueues_and_links_to_those_only(served: Served) -> None:
    with trio.fail_after(60):
        async with raw(served, OPERATOR) as operator, raw(served, tenant("ada")) as ada:
            id, text = make_token(Role.WORKER)
            await operator.ask("create_token", id=id, role="worker", hash=hash_token(text), queues=["q"])
            async with raw(served, text) as worker:
                await worker.attach("q", credit=1)
                task = await leased(worker, ada)
                with pytest.raises(Refused) as caught:
                    await derive(worker, lease_of(task))
                assert (caught.value.code, caught.value.field) == ("forbidden", "queue")
                with pytest.raises(Refused) as caught:
                    await worker.settle("q", "ack", task, links=[LINK])
                assert (caught.value.code, caught.value.field) == ("bad_request", "links")
                with pytest.raises(Refused) as caught:
                    await worker.settle("q", "ack", task, links=[{**LINK, "id": task["id"], "queue": "q"}])
                assert (caught.value.code, caught.value.field) == ("bad_request", "links")
                assert await worker.settle("q", "ack", task, links=[{**LINK, "queue": "q"}]) == ["ok"]


async def test_one_request_enqueues_for_many_leases_and_refuses_tenants_apart(served: Served) -> None:
    with trio.fail_after(60):
        async with raw(served, WORKER) as worker, raw(served, tenant("ada")) as ada, raw(served, tenant("bob")) as bob:
            await worker.attach("q", "r", credit=9)
            one, two, theirs = await leased(worker, ada), await leased(worker, ada, "b"), await leased(worker, bob)
            await ada.enqueue("r", ["c"])
            (far,) = await worker.pushed()
            held = [lease_of(one), lease_of(two), {**lease_of(far), "queue": "r"}, lease_of(theirs), lease_of(theirs)]
            tasks = [{"id": id, "payload": 1} for id in ("x", "x", "y", "x", "x")]

            async def ask(held: list[dict[str, Any]]) -> tuple[list[str], dict[str, Any]]:
                body = await worker.ask("enqueue_from", queue="next", leases=held, tasks=tasks[: len(held)])
                return body["outcomes"], body.get("refusals", {})

            store = served.app.store
            assert await ask([*held[:3], {**held[3], "lease": 7}, held[4]]) == (
                ["ok", "duplicate", "ok", "refused", "refused"],
                {"bob": {"code": "forbidden", "field": "leases", "message": "this worker does not hold lease 7 of task "
                    "bob/a"}},
            )  # fmt: skip
            assert (await store.queue("next")).enqueued == 2
            assert await ask(held) == (["duplicate"] * 3 + ["ok", "duplicate"], {})
            for lease in (await store.claim("next", "w", 9)).leases:
                await store.settle("next", [Settlement("ack", lease.id, lease.lease)])
                await store.connection.call("HDEL", "fq:{next/0}:tasks", lease.id)  # as when its mark has gone
            assert await ask(held) == (["duplicate"] * 5, {}), "each of the leased tasks remembers its own"
            await store.settle("q", [Settlement("reap", two["full_id"], two["lease"])])  # behind its back
            outcomes, refusals = await ask(held)
            assert (outcomes, list(refusals)) == (["refused"] * 3 + ["duplicate"] * 2, ["ada"])


async def wait_delivered(store: Store, queue: str = "q") -> None:
    """Wait until no links of a queue are under way."""

    async def is_empty() -> bool:
        return not await store.connection.call("EXISTS", f"fq:{{{queue}/0}}:outbox")

    await wait_until(is_empty)


@pytest.mark.usefixtures("no_polls")
async def test_links_arrive_at_once_and_wake_a_worker_of_their_queue(served: Served) -> None:
    with trio.fail_after(60):
        async with raw(served, WORKER) as worker, raw(served, WORKER) as after, raw(served, tenant("ada")) as ada:
            await worker.attach("q", credit=1, name="one")
            await after.attach("next", credit=5, name="two")
            links = [LINK, {**LINK, "id": "late", "delay_ms": 50}, {**LINK, "id": "large", "payload": "x" * 60_000}]
            task = await leased(worker, ada)
            assert await worker.settle("q", "ack", task, links=links) == ["ok"]
            assert {task["full_id"] for task in await after.pushed(3)} == {"ada/link", "ada/late", "ada/large"}
            assert await worker.settle("q", "ack", task, links=links) == ["gone"]
            await wait_delivered(served.app.store)


DIES_AT = ("take_links", "enqueue", "close_links")


@pytest.mark.usefixtures("quick_floor")
@pytest.mark.parametrize("point", DIES_AT)
@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
async def test_a_server_that_dies_on_the_way_loses_and_doubles_no_link(
    server_store: str, monkeypatch: pytest.MonkeyPatch, point: str, is_done: bool
) -> None:
    """The call at which it dies may have been carried out, or not."""
    monkeypatch.setattr("fairq.server.timers.ticker._DISCOVER_S", 0.1)
    monkeypatch.setattr("fairq.server.timers.outbox.HOLD_MS", 200)
    dead = trio.Event()
    with trio.fail_after(60):
        async with running(server_store) as doomed:
            real: Callable[..., Awaitable[Any]] = getattr(Store, point)

            async def die(store: Store, *args: Any, **options: Any) -> Any:
                if store is not doomed.app.store or (point == "enqueue" and args[0] != "next"):
                    return await real(store, *args, **options)
                if is_done and not dead.is_set():
                    await real(store, *args, **options)
                dead.set()
                raise Unavailable("dead")

            monkeypatch.setattr(Store, point, die)
            if point == "enqueue":
                monkeypatch.setattr(Store, "close_links", dying_with(dead, doomed, Store.close_links))
            async with raw(doomed, WORKER) as worker, raw(doomed, tenant("ada")) as ada:
                await worker.attach("q", credit=1)
                task = await leased(worker, ada)
                await worker.settle("q", "ack", task, links=[LINK, {**LINK, "id": "second", "queue": "other"}])
                await dead.wait()
        async with running(server_store) as served:
            await wait_delivered(served.app.store)
            assert (await served.app.store.queue("q")).dead == 0
            for queue, id in (("next", "ada/link"), ("other", "ada/second")):
                assert (await served.app.store.queue(queue)).enqueued == 1
                assert [lease.id for lease in (await served.app.store.claim(queue, "w", 5)).leases] == [id]


def dying_with(dead: trio.Event, doomed: Served, real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Make a call that a dead server does not get through any more."""

    async def call(store: Store, *args: Any, **options: Any) -> Any:
        if store is doomed.app.store and dead.is_set():
            raise Unavailable("dead")
        return await real(store, *args, **options)

    return call


@pytest.mark.usefixtures("quick_floor")
async def test_two_servers_deliver_each_link_once(server_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairq.server.timers.ticker._DISCOVER_S", 0.1)
    monkeypatch.setattr("fairq.server.timers.outbox.HOLD_MS", 1)  # both take all of them, again and again
    with trio.fail_after(60):
        async with (
            running(server_store) as one,
            running(server_store) as two,
            raw(one, WORKER) as worker,
            raw(two, tenant("ada")) as ada,
        ):
            await worker.attach("q", credit=30)
            await ada.enqueue("q", [f"t-{n}" for n in range(30)])
            tasks = await worker.pushed(30)
            for task in tasks:
                links = [{**LINK, "id": f"{task['id']}-{n}"} for n in range(5)]
                assert await worker.settle("q", "ack", task, links=links) == ["ok"]
            await wait_delivered(one.app.store)
            assert (await one.app.store.queue("next")).enqueued == 150


@pytest.mark.usefixtures("quick_floor")
async def test_what_the_target_never_takes_is_a_dead_letter_that_can_be_replayed(served: Served) -> None:
    with trio.fail_after(60):
        async with raw(served, WORKER) as worker, raw(served, tenant("ada")) as ada:
            await worker.attach("q", credit=1)
            task = await leased(worker, ada)
            await worker.settle("q", "ack", task, links=[{**LINK, "expires_at_ms": 5}])

            async def dead() -> list[dict[str, Any]]:
                rows: list[dict[str, Any]] = (await ada.ask("dead", queue="q"))["dead"]
                return rows

            while not (rows := await dead()):  # noqa: ASYNC110
                await trio.sleep(0.01)
            (row,) = rows
            assert (row["reason"], row["payload"]) == ("undelivered", [1])
            assert row["error"] == "queue next: it would expire before it may start"
            assert (await ada.ask("tasks", queue="q", ids=[row["id"]]))["tasks"][0]["state"] == "dead"
            assert (await ada.ask("dead", queue="q", reason="undelivered"))["dead"] == rows
            assert (await ada.ask("replay", queue="q", ids=[row["id"]]))["outcomes"] == ["ok"]
            while not await dead():  # noqa: ASYNC110
                await trio.sleep(0.01)
            assert (await ada.ask("purge", queue="q", ids=[row["id"]]))["outcomes"] == ["ok"]
            await wait_delivered(served.app.store)


@pytest.mark.usefixtures("quick_floor")
async def test_a_link_to_a_queue_that_is_being_deleted_arrives_when_it_is_made_anew(
    served: Served, server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairq.server.timers.outbox._BACKOFF_MS", 50)
    with trio.fail_after(60):
        store = served.app.store
        async with raw(served, WORKER) as worker, raw(served, tenant("ada")) as ada, raw(served, OPERATOR) as operator:
            await ada.enqueue("next", ["old"])
            crowd(stores.connect(server_store))
            await store.connection.call(*_fcall("delete_queue", "next", "any"))
            await worker.attach("q", credit=1)
            await worker.settle("q", "ack", await leased(worker, ada), links=[LINK])

            async def is_tried() -> bool:
                flat = (await store.connection.call("HGETALL", "fq:{q/0}:outbox"))[1::2]
                return bool(flat) and flat[0][:1] != b"\0"  # its attempts

            await wait_until(is_tried)
            await operator.ask("delete_queue", queue="next", purge=True)
            await wait_delivered(store)
            assert [lease.id for lease in (await store.claim("next", "w", 5)).leases] == ["ada/link"]


class Hang:
    """Has enqueueing to some queues hang until it is told to go on; counts the calls that hang, and their most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *queues: str) -> None:
        self.begun, self.go_on, self.count, self.most = trio.Event(), trio.Event(), 0, 0
        real = Store.enqueue

        async def enqueue(store: Store, queue: str, *args: Any, **options: Any) -> list[str]:
            if queue in queues and not self.go_on.is_set():
                self.begun.set()
                self.count += 1
                self.most = max(self.most, self.count)
                try:
                    await self.go_on.wait()
                finally:
                    self.count -= 1
            return await real(store, queue, *args, **options)

        monkeypatch.setattr(Store, "enqueue", enqueue)


@pytest.mark.usefixtures("no_polls")
async def test_ticks_and_other_deliveries_go_on_while_one_hangs(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DELIVER_S", "_DELIVER_S"):
        monkeypatch.setattr(f"fairq.server.timers.outbox.{name}", float("inf"), raising=False)
    hang = Hang(monkeypatch, "stuck")
    with trio.fail_after(60):
        async with raw(served, WORKER) as worker, raw(served, tenant("ada")) as ada, raw(served, tenant("bob")) as bob:
            await worker.attach("q", "next", credit=9)
            await worker.settle("q", "ack", await leased(worker, ada), links=[{**LINK, "queue": "stuck"}])
            await hang.begun.wait()
            await ada.enqueue("q", ["late"], delay_ms=20)
            (late,) = await worker.pushed()
            await worker.settle("q", "ack", late, links=[LINK])
            assert [task["id"] for task in await worker.pushed()] == ["link"]
            await worker.settle("q", "ack", await leased(worker, bob, "b"), links=[LINK])
            assert [task["full_id"] for task in await worker.pushed()] == ["bob/link"]
            assert hang.count == 1
            hang.go_on.set()
            await wait_delivered(served.app.store)
            assert (await served.app.store.queue("stuck")).enqueued == 1


@pytest.mark.usefixtures("quick_floor")
async def test_few_calls_wait_for_a_queue_that_hangs_and_the_rest_is_put_off(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "WAIT_S", 0.05)
    monkeypatch.setattr(outbox, "DELIVER_S", float("inf"))
    monkeypatch.setattr(outbox, "_BACKOFF_MS", 50)
    monkeypatch.setattr(outbox, "_BACKOFF_CAP_MS", 100)
    hang = Hang(monkeypatch, "stuck")
    with trio.fail_after(60):
        async with raw(served, WORKER) as worker:
            await worker.attach("q", credit=100)
            for n in range(20):
                async with raw(served, tenant(f"t-{n}")) as client:
                    task = await leased(worker, client)
                    links = [{**LINK, "queue": "stuck"}, {**LINK, "queue": "fine"}]
                    assert await worker.settle("q", "ack", task, links=links) == ["ok"]
            store = served.app.store

            async def are_put_off() -> bool:
                flat = (await store.connection.call("HGETALL", "fq:{q/0}:outbox"))[1::2]
                put_off = [packed for packed in flat if packed[:1] != b"\0"]
                return len(put_off) == 20 - outbox.CALLS_PER_TARGET

            await wait_until(are_put_off)
            assert (await store.queue("fine")).enqueued == 20
            assert hang.most == hang.count == outbox.CALLS_PER_TARGET
            hang.go_on.set()
            await wait_delivered(store)
            assert (await store.queue("stuck")).enqueued == 20
            await wait_until(lambda: served.app.deliverer.is_idle)


@pytest.mark.usefixtures("quick_floor")
async def test_no_more_is_taken_while_a_server_has_enough_in_hand(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a single link is enough; another queue's links then wait in the store until that one is put off."""
    monkeypatch.setattr(outbox, "MAX_BYTES", 1)
    monkeypatch.setattr(outbox, "AT_ONCE", 1)
    monkeypatch.setattr(outbox, "HOLD_MS", 200)
    monkeypatch.setattr(outbox, "DELIVER_S", float("inf"))
    hang = Hang(monkeypatch, "stuck")
    with trio.fail_after(60):
        async with raw(served, WORKER) as worker, raw(served, tenant("ada")) as ada:
            await worker.attach("q", credit=9)
            for n in range(3):
                links = [{**LINK, "id": f"l-{n}", "queue": "stuck" if n == 0 else "next"}]
                await worker.settle("q", "ack", await leased(worker, ada, f"a-{n}"), links=links)
                await hang.begun.wait()
            store = served.app.store
            assert (await store.queue("q")).links == 3
            hang.go_on.set()
            await wait_delivered(store)
            assert (await store.queue("next")).enqueued == 2


@pytest.mark.usefixtures("no_polls")
async def test_one_tenants_many_links_do_not_hold_up_anothers(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each take has some of both, though the first tenant's have waited for longer."""
    monkeypatch.setattr(outbox, "AT_ONCE", 4)
    real, taken = Store.take_links, list[list[str]]()

    async def take_links(store: Store, *args: Any) -> Any:
        links = await real(store, *args)
        taken.append([link.tenant for link in links])
        return links

    with trio.fail_after(60):
        async with raw(served, WORKER) as worker, raw(served, tenant("ada")) as ada, raw(served, tenant("bob")) as bob:
            await worker.attach("q", credit=9)
            many, one = await leased(worker, ada), await leased(worker, bob, "b")
            await served.app.store.settle("q", [_linked(many, 16), _linked(one, 1)])
            monkeypatch.setattr(Store, "take_links", take_links)
            served.app.ticker.tick_within("q", 0)
            await wait_delivered(served.app.store)
            assert sorted(taken[0]) == ["ada", "ada", "bob"]
            assert sum(map(len, taken)) == 17


def _linked(task: dict[str, Any], count: int) -> Settlement:
    owner = task["full_id"].partition("/")[0]
    links = tuple(Link("next", NewTask(f"{owner}/l-{n}", b"1")) for n in range(count))
    return Settlement("ack", task["full_id"], task["lease"], links=links)


def _fcall(verb: str, queue: str, *args: Any) -> tuple[Any, ...]:
    return "FCALL", library.function_name(verb), 1, keys.queue_prefix(queue), "", "", *args


@pytest.mark.usefixtures("quick_floor")
async def test_those_that_fit_are_delivered_though_others_do_not(served: Served) -> None:
    with trio.fail_after(60):
        store = served.app.store
        async with raw(served, WORKER) as worker, raw(served, tenant("ada")) as ada, raw(served, OPERATOR) as operator:
            await operator.ask("set_limits", queue="next", tenant="ada", limits={"queued": 2})
            await worker.attach("q", credit=1)
            links = [{**LINK, "id": f"l-{n}"} for n in range(5)]
            await worker.settle("q", "ack", await leased(worker, ada), links=links)

            async def has_some() -> bool:
                return (await store.queue("next")).ready == 2

            await wait_until(has_some)
            with pytest.raises(Refused) as caught:
                await operator.ask("delete_queue", queue="q")
            assert (caught.value.code, "3 links" in str(caught.value)) == ("not_empty", True)
            await operator.ask("set_limits", queue="next", tenant="ada", limits={"queued": None})
            await wait_delivered(store)
            assert (await store.queue("next")).enqueued == 5
