"""Which worker holds a task, and which tasks a worker holds: any server knows, whichever it is attached to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
import trio

from fairq.errors import Unavailable
from fairq.model.tasks import leased_at_ms
from fairq.model.workers import LeaseKey
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.net.questions import Questions
from fairq.server.engine.net.worker_registry import _GATHER_S, _KEEP_MS
from fairq.server.run import Served
from fairq.store import keys
from fairq.store.workers import Workers
from tests import stores
from tests.store.waiting import wait_until

from .harness import OPERATOR, WORKER, Raw, raw, running, tenant
from .test_worker_registry import holding, is_listed

LUA = Path(__file__).parents[2] / "lua" / "tasks" / "leases.lua"


async def states(client: Raw, *ids: str, queue: str = "q") -> list[dict[str, Any]]:
    """Read the states of tasks."""
    rows: list[dict[str, Any]] = (await client.ask("tasks", queue=queue, ids=list(ids)))["tasks"]
    return rows


def silence(monkeypatch: pytest.MonkeyPatch, *servers: Served) -> None:
    """Let servers answer no question, as if they were stopped; others soon give up."""
    answer = Questions.on_question

    def on_question(self: Questions, *question: Any) -> None:
        if self.server not in [served.app.name for served in servers]:
            answer(self, *question)

    monkeypatch.setattr(Questions, "on_question", on_question)
    monkeypatch.setattr("fairq.server.engine.net.questions.ANSWER_S", 0.05)


def queue_row(rows: dict[str, Any], queue: str) -> dict[str, Any]:
    return next(row for row in rows["queues"] if row["queue"] == queue)


async def test_a_task_tells_its_worker_and_a_worker_its_tasks(one: Served, either: Served) -> None:
    async with (
        raw(one, WORKER) as worker,
        raw(either, OPERATOR) as operator,
        raw(either, tenant("ada")) as ada,
    ):
        numbers = await holding(one, worker, "a", "b", started=1, listed_by=operator)
        assert [row["worker"] for row in await states(operator, "ada/a", "ada/b")] == ["mill", "mill"]
        assert [row["worker"] for row in await states(ada, "a")] == ["mill"]
        answer = await operator.ask("worker_tasks", worker="mill")
        (row,) = answer["workers"]
        assert (row["worker"], row["server"], row["queues"], row["held"]) == ("mill", one.app.name, ["q"], 2)
        assert sorted((task["id"], task["queue"], task["tenant"], task["attempt"]) for task in answer["tasks"]) == [
            ("ada/a", "q", "ada", 1),
            ("ada/b", "q", "ada", 1),
        ]
        assert {task["leased_at_ms"] for task in answer["tasks"]} == {leased_at_ms(lease) for lease in numbers.values()}
        assert {(task["server"], task["attached_at_ms"]) for task in answer["tasks"]} == {
            (one.app.name, row["attached_at_ms"])
        }
        assert answer["unanswered"] == []


async def test_what_waits_or_has_ended_has_no_worker(one: Served, two: Served) -> None:
    async with raw(one, WORKER) as worker, raw(two, tenant("ada")) as ada, raw(two, OPERATOR) as operator:
        await holding(one, worker, "a", started=1, listed_by=operator)
        await ada.enqueue("q", ["later"], delay_ms=60_000)
        assert ["worker" in row for row in await states(ada, "a", "later", "none")] == [True, False, False]


async def test_the_worker_is_the_one_that_brought_the_lease_to_another_server(one: Served, two: Served) -> None:
    """Its claim's name is still that of the first server."""
    async with raw(one, WORKER) as first, raw(two, WORKER) as again:
        numbers = await holding(one, first, "a", started=1_000, name="mill")
        brought = {"queue": "q", "id": "ada/a", "lease": numbers["a"]}
        assert await again.attach("q", credit=1, name="mill", started_at_ms=1_000, leases=[brought]) == ["ok"]
        for served in (one, two):
            async with raw(served, OPERATOR) as operator:
                await wait_until(lambda: is_listed_at(operator, two))
                assert (await states(operator, "ada/a"))[0]["worker"] == "mill"
                answer = await operator.ask("worker_tasks", worker="mill")
                assert [row["server"] for row in answer["workers"]] == [two.app.name]
                assert [(task["id"], task["server"]) for task in answer["tasks"]] == [("ada/a", two.app.name)]
                await wait_until(lambda: runs_once_at(operator, two))


async def is_listed_at(operator: Raw, served: Served) -> bool:
    """Tell whether all listed workers are attached to one server, and some are."""
    return {row["server"] for row in (await operator.ask("workers"))["workers"]} == {served.app.name}


async def runs_once_at(operator: Raw, served: Served) -> bool:
    """Check that one attempt is listed, and tell whether it runs at the worker of a server."""
    (runs,) = (await operator.ask("attempts", queue="q"))["running"]
    assert (runs["id"], runs["attempt"]) == ("ada/a", 1)
    return (runs["worker"], runs["server"]) == ("mill", served.app.name)


async def test_an_old_holder_is_not_named_for_a_newer_lease(served: Served, worker: Raw) -> None:
    """The first worker has slept through its lease; the task has a new one, which no worker here holds."""
    numbers = await holding(served, worker, "a", started=1)
    held, newer = LeaseKey("q", "ada/a", numbers["a"]), LeaseKey("q", "ada/a", numbers["a"] + 1)
    assert await served.app.lease_holders.names([held, newer]) == {held: "mill"}


async def test_two_workers_of_one_name_are_distinguished(one: Served, two: Served) -> None:
    """They have no common start, so that neither takes the name from the other."""
    async with raw(one, WORKER) as here, raw(two, WORKER) as there, raw(two, OPERATOR) as operator:
        await holding(one, here, "a", started=0, name="mill")
        await holding(two, there, "b", started=0, name="mill")

        async def are_listed() -> bool:
            return len((await operator.ask("workers"))["workers"]) == 2

        await wait_until(are_listed)
        answer = await operator.ask("worker_tasks", worker="mill")
        assert sorted(row["server"] for row in answer["workers"]) == sorted([one.app.name, two.app.name])
        assert [(task["id"], task["server"]) for task in answer["tasks"]] == [
            ("ada/a", one.app.name),
            ("ada/b", two.app.name),
        ]
        first = await operator.ask("worker_tasks", worker="mill", count=1)
        assert [task["id"] for task in first["tasks"]] == ["ada/a"]


async def test_a_server_that_does_not_answer_leaves_its_workers_tasks_unknown(
    monkeypatch: pytest.MonkeyPatch, one: Served, two: Served
) -> None:
    async with raw(one, WORKER) as far, raw(two, WORKER) as near, raw(two, OPERATOR) as operator:
        await holding(one, far, "a", started=1, name="far", listed_by=operator)
        await holding(two, near, "b", started=1, name="near")
        silence(monkeypatch, one)
        assert [row.get("worker") for row in await states(operator, "ada/a", "ada/b")] == [None, "near"]
        answer = await operator.ask("worker_tasks", worker="far")
        assert [row["worker"] for row in answer["workers"]] == ["far"]
        assert (answer["tasks"], answer["unanswered"]) == ([], [one.app.name])
        assert (await operator.ask("attempts", queue="q"))["unanswered"] == [one.app.name]
        for queue, names in ("q", ["far"]), ("other", []):  # what a token of one queue may see
            found = await two.app.worker_registry.named("far", 1, [queue])
            assert [row.worker for row in found.workers] == names


async def test_states_that_are_read_at_the_same_time_share_questions(
    monkeypatch: pytest.MonkeyPatch, one: Served, two: Served
) -> None:
    questions: list[int] = []
    answer = Questions.on_question

    def count(self: Questions, asker: str, number: int, kind: str, asked: Any) -> None:
        questions.append(len(asked))
        answer(self, asker, number, kind, asked)

    async with raw(one, WORKER) as worker, raw(two, OPERATOR) as operator, trio.open_nursery() as nursery:
        ids = [f"id-{number}" for number in range(50)]
        await holding(one, worker, *ids, started=1, listed_by=operator)
        monkeypatch.setattr(Questions, "on_question", count)
        found = await two.app.store.tasks_and_leases("q", [f"ada/{id}" for id in ids])
        names: dict[LeaseKey, str] = {}

        async def look(state_id: str, lease: int) -> None:
            names.update(await two.app.lease_holders.names([LeaseKey("q", state_id, lease)]))

        async with trio.open_nursery() as looking:
            for state, lease in found:
                looking.start_soon(look, state.id, lease)
        assert set(names.values()) == {"mill"}
        assert len(names) == 50
        assert len(questions) <= 2
        nursery.cancel_scope.cancel()


async def test_names_that_are_too_many_for_a_round_are_left_out(
    monkeypatch: pytest.MonkeyPatch, one: Served, two: Served
) -> None:
    monkeypatch.setattr("fairq.server.engine.net.lease_holders.LEASES_PER_ROUND", 20)
    async with raw(one, WORKER) as worker, raw(two, OPERATOR) as operator:
        ids = [f"id-{number}" for number in range(30)]
        await holding(one, worker, *ids, started=1, listed_by=operator)
        assert not any("worker" in row for row in await states(operator, *(f"ada/{id}" for id in ids)))
        few = await states(operator, *(f"ada/{id}" for id in ids[:20]))
        assert {row["worker"] for row in few} == {"mill"}


async def test_rounds_of_questions_begin_some_time_apart(
    monkeypatch: pytest.MonkeyPatch, one: Served, two: Served
) -> None:
    monkeypatch.setattr("fairq.server.engine.net.lease_holders.ROUND_S", 3600)
    async with raw(one, WORKER) as worker, raw(two, OPERATOR) as operator:
        await holding(one, worker, "id-0", "id-1", started=1, listed_by=operator)
        assert [row["worker"] for row in await states(operator, "ada/id-0")] == ["mill"]
        with trio.move_on_after(0.3) as scope:
            await states(operator, "ada/id-1")
        assert scope.cancelled_caught, "the next question waits for its time"


async def test_a_request_that_is_cancelled_while_it_asks_leaves_the_others_their_answers(
    monkeypatch: pytest.MonkeyPatch, one: Served, two: Served
) -> None:
    async with raw(one, WORKER) as worker, raw(two, OPERATOR) as operator:
        numbers = await holding(one, worker, "a", started=1, listed_by=operator)
        lease = LeaseKey("q", "ada/a", numbers["a"])
        with trio.CancelScope() as scope:
            scope.cancel()
            await two.app.lease_holders.names([lease])
        assert scope.cancelled_caught
        assert await two.app.lease_holders.names([lease]) == {lease: "mill"}


async def test_a_worker_is_found_among_thousands(served: Served, worker: Raw, operator: Raw) -> None:
    """1,000 of them have its name; a page is bounded."""
    await holding(served, worker, "a", "b", started=0, name="mill")
    (connection,) = (each for each in served.app.connections if each.name == "mill")
    crowd = served.app.worker_registry._connections[connection.identity.token_id, "mill"]
    for number in range(1_000):
        other = Connection("test", connection.identity, connection.session, connection.handle_request)
        other.name, other.queues, other.attached_at_ms = "mill", ("q",), number
        other.account.held = {("q", f"ada/none-{number}"): number + 1}
        crowd.add(other)
    answer = await operator.ask("worker_tasks", worker="mill", count=500)
    assert [row["attached_at_ms"] for row in answer["workers"]] == list(range(500))
    assert answer["tasks"] == []  # the oldest leases are not in the store
    assert (await states(operator, "ada/a"))[0]["worker"] == "mill"
    crowd.intersection_update({connection})


async def test_a_list_is_kept_without_writing_it_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairq.server.engine.net.worker_registry._RENEW_S", 0.0)
    monkeypatch.setattr("fairq.server.engine.net.worker_registry._GATHER_S", 3600.0)  # the server itself writes none
    renewals, renew_workers, registry = 0, Workers.renew, served.app.worker_registry

    async def renew(self: Workers, *args: Any) -> bool:
        nonlocal renewals
        renewals += 1
        return await renew_workers(self, *args)

    monkeypatch.setattr(Workers, "renew", renew)
    async with raw(served, WORKER) as worker, trio.open_nursery() as nursery:
        await worker.attach("q", name="mill")
        await registry.write()
        nursery.start_soon(registry.renew)
        await wait_until(lambda: renewals > 2)  # none that began before the list was written is under way
        registry._changed, seen = trio.Event(), renewals
        await wait_until(lambda: renewals > seen + 2)
        nursery.cancel_scope.cancel()
    assert not registry._changed.is_set()


async def test_the_list_of_a_dead_server_expires_within_ten_seconds(served: Served, worker: Raw, operator: Raw) -> None:
    await worker.attach("q", name="mill")
    key = keys.workers_key(served.app.name)

    async def is_written() -> bool:
        return bool(await served.app.store.connection.call("EXISTS", key))

    await wait_until(is_written)
    assert await is_listed(operator, "mill")
    with stores.connect(served.store_url) as plain:
        left = plain.pttl(key)
    assert 0 < left <= _KEEP_MS
    assert _KEEP_MS / 1000 + _GATHER_S < 10


async def test_a_server_that_slept_writes_its_list_again(server_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its list has expired meanwhile, a reader has removed its name, and the store is away at its first try."""
    renew, failures = Workers.renew, 0

    async def fail_first(self: Workers, *args: Any) -> bool:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise Unavailable("the store is away")
        return await renew(self, *args)

    monkeypatch.setattr(Workers, "renew", fail_first)
    monkeypatch.setattr("fairq.server.engine.net.worker_registry._RENEW_S", 0.01)
    async with (
        running(server_store) as one,
        running(server_store) as two,
        raw(one, WORKER) as worker,
        raw(two, OPERATOR) as operator,
    ):
        await worker.attach("q", name="mill")
        await wait_until(lambda: is_listed(operator, "mill"))
        await one.app.store.connection.call("DEL", keys.workers_key(one.app.name))
        await one.app.store.connection.call("SREM", keys.SERVERS, one.app.name)
        await wait_until(lambda: is_listed(operator, "mill"))


async def test_a_name_that_was_removed_while_the_list_was_written_comes_back(served: Served, worker: Raw) -> None:
    await worker.attach("q", name="mill")
    store, name = served.app.store, served.app.name

    async def is_there() -> bool:
        return name in await store.workers.servers()

    await wait_until(is_there)
    await store.connection.call("SREM", keys.SERVERS, name)
    assert await store.workers.renew(name, _KEEP_MS)
    assert await is_there()


async def test_the_time_of_a_lease_is_that_of_the_library(served: Served) -> None:
    assert "local FIRST_MS, PER_MS = 1735689600000, 32 " in LUA.read_text()
    async with raw(served, WORKER) as worker:
        numbers = await holding(served, worker, "a", started=1)
        now_ms = served.app.queues.dispatchers["q"].clock.now_ms
        assert abs(now_ms - leased_at_ms(numbers["a"])) < 60_000


async def test_a_queue_whose_tasks_no_worker_takes_is_reported(one: Served, two: Served) -> None:
    async with raw(one, tenant("ada")) as ada, raw(one, OPERATOR) as operator:
        await operator.ask("configure", queue="q", settings={"reserve": 0})
        assert queue_row(await operator.ask("queues"), "q")["takers"] == "", "it is empty"
        await ada.enqueue("q", ["a"], delay_ms=60_000)
        assert queue_row(await operator.ask("queues"), "q")["takers"] == "none"
        async with raw(two, WORKER) as worker, raw(two, OPERATOR) as near:
            await worker.attach("q", name="mill", credit=0)
            assert queue_row(await near.ask("queues"), "q")["takers"] == "some"
            await wait_until(lambda: is_listed(operator, "mill"))
            assert queue_row(await operator.ask("queues"), "q")["takers"] == "some"


async def test_a_draining_worker_takes_no_tasks(served: Served, worker: Raw, ada: Raw, operator: Raw) -> None:
    await holding(served, worker, "a", started=1, name="mill")
    await ada.enqueue("q", ["b"])
    assert queue_row(await operator.ask("queues"), "q")["takers"] == "some"
    await operator.ask("drain_worker", worker="mill")
    assert queue_row(await operator.ask("queues"), "q")["takers"] == "none"


async def test_unknown_is_not_reported_as_none(monkeypatch: pytest.MonkeyPatch, one: Served, two: Served) -> None:
    """A server does not answer."""
    async with (
        raw(one, WORKER) as far,
        raw(two, WORKER) as near,
        raw(two, tenant("ada")) as ada,
        raw(two, OPERATOR) as operator,
    ):
        await far.attach("r", name="far")
        await near.attach("s", name="near")
        await ada.enqueue("q", ["a"])
        await ada.enqueue("s", ["a"])
        await wait_until(lambda: is_listed(operator, "far"))
        assert queue_row(await operator.ask("queues"), "q")["takers"] == "none"
        with monkeypatch.context() as stopped:
            silence(stopped, one)
            rows = await operator.ask("queues")
        await ada.enqueue("s", ["b"])
        assert queue_row(rows, "q")["takers"] == "unknown"


async def test_slots_of_a_server_whose_list_is_missing_leave_it_unknown(
    served: Served, ada: Raw, operator: Raw
) -> None:
    """A full store takes no lists, but passes messages on."""
    await ada.enqueue("q", ["a"])
    for slots, found in ([2, 2.0], "unknown"), ([0, 0.0], "none"):
        said = {"server": "full", "slots": {"q": slots}}
        served.app.worker_registry.on_announcement(orjson.dumps(said).decode())
        assert queue_row(await operator.ask("queues"), "q")["takers"] == found
