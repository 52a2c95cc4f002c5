"""Workers by name: who came last has the name, and what older connections of it held is ready again at once."""

from __future__ import annotations

from math import inf
from typing import Any

import orjson
import pytest
import trio

from fairq.errors import Unavailable
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.net.worker_registry import WorkerRegistry
from fairq.server.run import Served
from fairq.store import keys
from fairq.store.connection import Connection as StoreConnection
from fairq.store.workers import Workers
from fairq.wire.terms import Role
from tests import stores
from tests.store.proxy import open_proxy
from tests.store.waiting import wait_until

from .harness import OPERATOR, WORKER, Raw, Refused, raw, tenant

SUPERSEDED = (4002, "a newer worker has this name")


async def holding(
    served: Served, worker: Raw, *ids: str, started: int, name: str = "mill", credit: int | None = None,
    listed_by: Raw | None = None,
) -> dict[str, int]:  # fmt: skip
    """Have a worker attach, be pushed tasks, for an hour, and be listed; returns the numbers of their leases."""
    await served.app.store.configure("q", {"lease_ms": 3_600_000})
    async with raw(served, tenant("ada")) as ada:
        await ada.enqueue("q", ids)
    await worker.attach("q", credit=credit or len(ids), name=name, started_at_ms=started)
    tasks = await worker.pushed(len(ids))
    assert len(tasks) == len(ids)
    if listed_by:
        await wait_until(lambda: is_listed(listed_by, name))
    return {task["id"]: task["lease"] for task in tasks}


async def test_a_restarted_worker_gets_at_once_what_its_dead_connection_holds(
    monkeypatch: pytest.MonkeyPatch, one: Served, either: Served
) -> None:
    """Nothing comes back from the dead one, not even an answer to the server's good-bye; and it had room for more."""
    for limit in ("server.engine.net.socket_connection.END_S", "server.engine.net.transport.CLOSE_S"):  # the answer
        monkeypatch.setattr(f"fairq.{limit}", 3600.0)
    async with (
        open_proxy(one.port) as proxy,
        raw(f"ws://127.0.0.1:{proxy.port}", WORKER) as dead,
        raw(either, WORKER) as heir,
    ):
        await holding(one, dead, "a", "b", started=1_000, credit=100)
        proxy.hold()
        await heir.attach("q", credit=5, name="mill", started_at_ms=2_000)
        tasks = await heir.pushed(2)
        assert sorted((task["id"], task["attempt"]) for task in tasks) == [("a", 2), ("b", 2)]
        assert await heir.settle("q", "ack", *tasks) == ["ok", "ok"]
        proxy.release()
        assert await dead.closed() == SUPERSEDED


async def test_what_is_held_comes_back_though_the_dead_connection_cannot_be_closed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "close", lambda *_: None)  # as while a send waits for a buffer that stays full
    async with raw(served, WORKER) as dead, raw(served, WORKER) as heir:
        await holding(served, dead, "a", started=1_000)
        await heir.attach("q", name="mill", started_at_ms=2_000)
        assert [task["id"] for task in await heir.pushed()] == ["a"]


async def test_a_worker_that_connects_again_keeps_the_leases_that_it_brings(one: Served, either: Served) -> None:
    """Its old connection stands half open; one of its tasks was pushed into that, and it has never heard of it."""
    async with raw(one, WORKER) as dead, raw(either, WORKER) as again:
        numbers = await holding(one, dead, "known", "unheard", started=1_000)
        known = {"queue": "q", "id": "ada/known", "lease": numbers["known"]}
        assert await again.attach("q", credit=5, name="mill", started_at_ms=1_000, leases=[known]) == ["ok"]
        assert await dead.closed() == SUPERSEDED
        (task,) = await again.pushed()
        assert (task["id"], task["attempt"]) == ("unheard", 2)
        assert await again.settle("q", "ack", {"full_id": "ada/known", "lease": numbers["known"]}, task) == ["ok", "ok"]


async def test_an_older_worker_is_refused_where_the_younger_is_attached(served: Served) -> None:
    async with raw(served, WORKER) as first, raw(served, WORKER) as young, raw(served, WORKER) as old:
        await first.attach("q", name="mill", started_at_ms=1_000)
        await young.attach("q", name="mill", started_at_ms=2_000)
        assert await first.closed() == SUPERSEDED
        with pytest.raises(Refused, match=r"^superseded worker:"):
            await old.attach("q", name="mill", started_at_ms=1_000)
        await young.quiet()


async def test_a_worker_that_restarts_where_the_clock_is_behind_supersedes_its_dead_connection(
    one: Served, either: Served
) -> None:
    async with raw(one, WORKER) as dead, raw(either, WORKER) as heir:
        await holding(one, dead, "a", started=2_000)
        await heir.attach("q", name="mill", started_at_ms=1_000)
        assert await dead.closed() == SUPERSEDED
        assert (await heir.pushed())[0]["attempt"] == 2


async def test_an_older_worker_is_closed_when_it_attaches_to_another_server(one: Served, two: Served) -> None:
    async with raw(one, WORKER) as young, raw(two, WORKER) as old:
        await two.app.store.workers.order_of_run("", "mill", 1_000)
        await holding(one, young, "a", started=2_000)
        await old.attach("q", name="mill", started_at_ms=1_000)
        assert await old.closed() == SUPERSEDED
        assert not young.pushes
        assert (await one.app.store.tasks("q", ["ada/a"]))[0].attempt == 1


@pytest.mark.parametrize("number", ["announced", "kept back, by a full store"])
async def test_a_late_announcement_does_not_end_the_connection_that_came_after_it(
    monkeypatch: pytest.MonkeyPatch, number: str, one: Served, two: Served
) -> None:
    """Nor does a second copy of it. Without a number it is the last word."""
    tell_workers, seen = Workers.tell, list[bytes]()

    async def note(self: Workers, message: bytes) -> None:
        seen.extend([message] if b'"attached"' in message else [])
        await tell_workers(self, message)

    monkeypatch.setattr(Workers, "tell", note)
    async with raw(one, WORKER) as dead, raw(two, WORKER) as again, raw(two, WORKER) as other:
        await holding(one, dead, "a", started=1_000)
        late = orjson.loads(seen[-1])
        await again.attach("q", name="mill", started_at_ms=1_000)
        assert await dead.closed() == SUPERSEDED
        (task,) = await again.pushed()
        await other.attach("q", name="other", started_at_ms=1_000)
        if number != "announced":
            del late["number"]
        await one.app.store.workers.tell(orjson.dumps(late))
        async with raw(one, WORKER) as heir:
            await heir.attach("q", name="other", started_at_ms=1_000)
        assert await other.closed() == SUPERSEDED, "the announcement after the late one"
        if number == "announced":
            assert await again.settle("q", "ack", task) == ["ok"]
            await again.quiet()
        else:
            assert await again.closed() == SUPERSEDED


async def test_a_full_store_numbers_no_attach(served: Served, server_store: str) -> None:
    store, client = served.app.store, stores.connect(server_store)
    assert [await store.workers.number_of_attach("", "mill") for _ in range(3)] == [1, 2, 3]
    assert 0 < client.pttl(keys.attaches_key("", "mill")) <= 7 * 86_400_000
    client.config_set("maxmemory", 1)
    try:
        assert await store.workers.number_of_attach("", "mill") == 0
        async with raw(served, WORKER) as one, raw(served, WORKER) as two:
            await one.attach("q", name="mill", started_at_ms=1_000)
            await two.attach("q", name="mill", started_at_ms=1_000)
            assert await one.closed() == SUPERSEDED
    finally:
        client.config_set("maxmemory", 0)
        client.close()


async def test_a_worker_attaches_though_its_attach_cannot_be_counted(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = StoreConnection.call

    async def fail(self: StoreConnection, *command: Any, **hold: Any) -> Any:
        if command[0] == "INCR":
            raise Unavailable("the node with that key is away")
        return await call(self, *command, **hold)

    monkeypatch.setattr(StoreConnection, "call", fail)
    async with raw(served, WORKER) as worker:
        await worker.attach("q", name="mill", started_at_ms=1_000)
        await worker.quiet()


async def test_two_that_attach_at_the_same_time_do_not_both_stay(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_workers, both = Workers.tell, trio.Event()
    waiting = 0

    async def together(self: Workers, message: bytes) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 2:
            both.set()
        await both.wait()
        await tell_workers(self, message)

    monkeypatch.setattr(Workers, "tell", together)
    await served.app.store.workers.order_of_run("", "mill", 1_000)
    async with raw(served, WORKER) as old, raw(served, WORKER) as young:

        async def attach(worker: Raw, started: int) -> None:
            await worker.attach("q", name="mill", started_at_ms=started)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(attach, old, 1_000)
            nursery.start_soon(attach, young, 2_000)
        assert await old.closed() == SUPERSEDED
        await wait_until(lambda: served.app.queues.offers()["q"].workers == 1)


OTHERS: list[tuple[dict[str, object], dict[str, object]]] = [
    ({"name": "mill"}, {"name": "mill"}),  # a client that does not say when it started takes no part
    ({"name": "mill"}, {"name": "mill", "started_at_ms": 5}),
    ({"name": "mill", "started_at_ms": 5}, {"name": "mill"}),
    ({"name": "mill", "started_at_ms": 5}, {"name": "mill-2", "started_at_ms": 6}),
]


async def test_others_keep_their_connections(served: Served) -> None:
    for first, second in OTHERS:
        async with raw(served, WORKER) as one, raw(served, WORKER) as two:
            await one.attach("q", **first)  # type: ignore[arg-type]
            await two.attach("q", **second)  # type: ignore[arg-type]
            await one.quiet()
            assert served.app.queues.offers()["q"].workers == 2, (first, second)
        await wait_until(lambda: not served.app.connections)


async def test_a_name_belongs_to_its_token(served: Served) -> None:
    async with raw(served, OPERATOR) as operator:
        tokens = [(await operator.create_token(Role.WORKER))[1] for _ in range(2)]
    async with raw(served, tokens[0]) as one, raw(served, tokens[1]) as two:
        await one.attach("q", name="mill", started_at_ms=1)
        await two.attach("q", name="mill", started_at_ms=2)
        await one.quiet()


async def test_of_two_attaches_under_way_on_a_connection_one_is_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, are_both = list[str](), trio.Event()

    async def wait_for_both(_: WorkerRegistry, _token: str, worker: str, *_more: Any) -> None:
        under_way.append(worker)
        if len(under_way) == 2:
            are_both.set()
        await are_both.wait()

    monkeypatch.setattr(WorkerRegistry, "take_name", wait_for_both)
    async with raw(served, WORKER) as worker:
        for ref in (901, 902):
            await worker.send("attach", ref=ref, worker="mill", queues=["q"], credit=1, started_at_ms=1)
        answers = [await worker.receive() for _ in range(2)]
    assert {each.get("message") for each in answers} == {None, "this connection is already attached"}


async def test_workers_that_left_are_forgotten(served: Served) -> None:
    async with raw(served, WORKER) as worker:
        await worker.attach("q", name="mill", started_at_ms=1)
    await wait_until(lambda: not served.app.connections)
    assert not served.app.worker_registry._connections


async def test_what_no_server_would_say_does_no_harm(served: Served, worker: Raw) -> None:
    async with raw(served, WORKER) as other:
        await worker.attach("q", name="mill", started_at_ms=1)
        await other.attach("q", name="other")
        served.app.questions.on_answer("other", served.app.name, 99, [])
        served.app.questions.on_answer("other", "third", 1, [])
        for message in (
            b"", b"[", b"1", b"{}", b'{"server":"x","attached":[1]}', b'{"server":"x","attached":5}',
            b'{"server":"x","question":[1]}', b'{"server":"x","question":[1,"no such kind",[]]}',
        ):  # fmt: skip
            await served.app.store.workers.tell(message)
        await served.app.store.workers.tell(b'{"server":"x","question":[1,"drain",["mill",9000]]}')  # it is late
        await served.app.store.workers.tell(b'{"server":"x","question":[2,"drain",["other",0]]}')
        assert (await other.receive())["type"] == "dismiss"
        assert {each.name: each.is_draining for each in served.app.connections} == {"mill": False, "other": True}
        await served.app.store.workers.tell(b'{"server":"x","question":[3,"drain",["mill",0]]}')
        assert (await worker.receive())["type"] == "dismiss"  # it is the last message that is heeded, and the first


async def test_a_drained_worker_finishes_what_it_holds_and_gets_nothing_more(
    one: Served, either: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        raw(one, WORKER) as worker,
        raw(one, WORKER) as other,
        raw(either, OPERATOR) as operator,
        raw(one, tenant("ada")) as ada,
    ):
        await worker.attach("q", credit=5, name="mill")
        await ada.enqueue("q", ["a"])
        (task,) = await worker.pushed()
        await wait_until(lambda: is_listed(operator, "mill"))
        monkeypatch.setattr("fairq.server.engine.net.worker_registry._now_ms", lambda: 1)  # the server's clock is slow
        for _ in range(2):
            assert (await operator.ask("drain_worker", worker="mill"))["workers"] == 1
        assert (await worker.receive())["type"] == "dismiss"
        await ada.enqueue("q", ["b"])
        await other.attach("q", name="mill-2")
        assert (await other.pushed())[0]["id"] == "b"
        assert await worker.settle("q", "ack", task) == ["ok"]
        assert not worker.pushes
        assert (await worker.closed())[0] == 1001
        assert (await operator.ask("drain_worker", worker="nobody"))["workers"] == 0


async def test_the_order_to_drain_is_repeated_where_it_was_not_heard(
    monkeypatch: pytest.MonkeyPatch, one: Served, two: Served
) -> None:
    """A worker of that name which attaches after the order stays."""
    monkeypatch.setattr("fairq.server.engine.net.questions.ANSWER_S", 0.05)
    async with raw(two, OPERATOR) as operator:
        heard, unheard = WorkerRegistry.on_announcement, trio.Event()

        def hear_later(worker_registry: WorkerRegistry, message: str) -> None:
            if worker_registry is one.app.worker_registry and '"drain"' in message:
                if not unheard.is_set():
                    return unheard.set()
                said = orjson.loads(message)
                said["question"][2][1] *= 1e6  # the order is old, however long this message was under way
                message = orjson.dumps(said).decode()
            return heard(worker_registry, message)

        monkeypatch.setattr(WorkerRegistry, "on_announcement", hear_later)
        async with raw(one, WORKER) as worker, raw(one, WORKER) as later:
            await worker.attach("q", name="mill")
            (connection,) = (each for each in one.app.connections if each.name == "mill")
            connection.attached_at = -inf
            await wait_until(lambda: is_listed(operator, "mill"))
            assert (await operator.ask("drain_worker", worker="mill"))["workers"] == 1
            await unheard.wait()
            await later.attach("q", name="mill")
            assert (await worker.receive())["type"] == "dismiss"
            assert (await worker.closed())[0] == 1001
            await later.quiet()


async def is_listed(operator: Raw, worker: str) -> bool:
    return worker in [row["worker"] for row in (await operator.ask("workers"))["workers"]]


async def test_all_servers_list_all_workers_and_forget_them(one: Served, two: Served) -> None:
    async with raw(two, OPERATOR) as operator:
        async with raw(one, WORKER) as far, raw(two, WORKER) as near:
            await holding(one, far, "a", "b", started=1, name="far")
            await near.attach("q", "r", credit=7, name="near")
            await wait_until(lambda: is_listed(operator, "far"))
            rows = {row["worker"]: row for row in (await operator.ask("workers"))["workers"]}
            assert (rows["near"]["queues"], rows["near"]["credit"], rows["near"]["held"]) == (["q", "r"], 7, 0)
            assert (rows["far"]["server"], rows["near"]["server"]) == (one.app.name, two.app.name)
            assert rows["far"]["queues"] == ["q"]
            assert not rows["far"]["is_draining"]

        async def is_empty() -> bool:
            return not (await operator.ask("workers"))["workers"]

        await wait_until(is_empty)


async def test_a_server_that_died_is_taken_off_the_list(served: Served) -> None:
    store = served.app.store
    await store.workers.write("dead", b'[["mill",["q"],1,0,5,false]]', 20)
    async with raw(served, OPERATOR) as operator:

        async def is_gone() -> bool:
            return not await is_listed(operator, "mill")

        await wait_until(is_gone)
    assert await store.connection.call("SMEMBERS", "fq:servers") == []


async def test_an_operator_of_some_queues_drains_nobody_and_sees_the_workers_of_those(served: Served) -> None:
    async with raw(served, OPERATOR) as operator:
        _, token = await operator.create_token(Role.OPERATOR, queues=["q"])
    async with raw(served, token) as limited, raw(served, WORKER) as one, raw(served, WORKER) as two:
        await one.attach("q", name="one")
        await two.attach("q", "r", name="two")
        assert [row["worker"] for row in (await limited.ask("workers"))["workers"]] == ["one"]
        assert (await limited.ask("worker_tasks", worker="one"))["workers"][0]["queues"] == ["q"]
        for verb, worker, code in (("worker_tasks", "two", "not_found"), ("drain_worker", "one", "forbidden")):
            with pytest.raises(Refused) as caught:
                await limited.ask(verb, worker=worker)
            assert caught.value.code == code
