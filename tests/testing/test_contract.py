"""What code does with a client, at the service and in memory: the same under asyncio, under trio and for threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio.from_thread
import pytest
from attrs import frozen

import fairq
from fairq.errors import (
    BadRequest,
    BatchClosed,
    FairqError,
    Forbidden,
    NoResult,
    NotFound,
    NotYet,
    TaskFailed,
    TenantsRefused,
    TooLarge,
)
from fairq.model.tasks import NewTask
from tests.client.conftest import certificate, plain_logs, server_store, service
from tests.client.runtimes import Api, Service, on_all
from tests.server.harness import PRODUCER, WORKER, tenant
from tests.store.cases import raises_for

__all__ = ["certificate", "plain_logs", "server_store", "service"]

Handler = Callable[[fairq.Task], Any]


@frozen
class Ground:
    """A tenant's client, a producer's, and what has the worker do all that there is."""

    ada: Any
    shop: Any
    drain: Callable[[], Coroutine[Any, Any, None]]


Grounds = Callable[[Api, Handler], AbstractAsyncContextManager[Ground]]


@pytest.fixture(params=["service", "memory"])
def grounds(request: pytest.FixtureRequest) -> Grounds:
    """Open the service, or that in memory, with a handler of the queue `emails`, for one task at a time."""

    def app_of(handler: Handler, url: str = "ws://127.0.0.1:1") -> fairq.Worker:
        app = fairq.Worker(url, WORKER, 1, name="worker-1")
        app.task("emails")(handler)
        return app

    @asynccontextmanager
    async def in_memory(api: Api, handler: Handler) -> AsyncIterator[Ground]:
        async with api.in_memory(app_of(handler), tenant="ada") as memory:
            yield Ground(memory, memory.as_producer(), memory.drain)

    @asynccontextmanager
    async def at_the_service(api: Api, handler: Handler) -> AsyncIterator[Ground]:
        url = served.url
        async with api.open_client(url, token=tenant("ada")) as ada, api.open_client(url, token=PRODUCER) as shop:
            yield Ground(ada, shop, partial(api.work, app_of(handler, url)))

    if request.param == "memory":
        return in_memory
    served: Service = request.getfixturevalue("service")
    return at_the_service


class Mill:
    """A handler that does what the payload says, and notes it."""

    def __init__(self) -> None:
        self.ran: list[Any] = []
        self.names: dict[Any, str] = {}

    async def __call__(self, task: fairq.Task) -> Any:
        self.ran.append(task.payload)
        self.names[task.payload] = task.name
        if task.payload == "reject":
            raise fairq.Reject("bad address")
        if task.payload == "again" and task.attempt == 1:
            raise fairq.Retry("busy", delay=0)
        return task.payload


def handler_of(mill: Mill) -> Handler:
    """A function that a worker takes for a handler."""

    async def run(task: fairq.Task) -> Any:
        return await mill(task)

    return run


async def error_of(call: Awaitable[Any]) -> tuple[type[FairqError], str | None]:
    """Make a call that fails; returns what it raises, and the field that this names."""
    with pytest.raises(FairqError) as caught:
        await call
    return type(caught.value), caught.value.field


def counts(state: Any) -> tuple[Any, ...]:
    """A batch's state, and how many tasks: in all, waiting, running, done, dead, cancelled, expired."""
    ended = (state.done, state.dead, state.cancelled, state.expired)
    return state.state, state.total, state.waiting, state.running, *ended


async def states(tasks: list[Any]) -> list[str]:
    return [(await task.state()).state for task in tasks]


@on_all
@pytest.mark.parametrize(("queue", "why"), [("emails", "invalid expires_at"), ("images", "not enqueued: the task")])
async def test_an_attempt_has_failed_whose_link_comes_too_late(
    api: Api, grounds: Grounds, queue: str, why: str
) -> None:
    async def handle(task: fairq.Task) -> None:
        task.then("emails", "stored with the other one or not at all")
        task.then(queue, 1, expires_at=1.0)

    async with grounds(api, handle) as ground:
        task = await ground.ada.enqueue("emails", 1, max_attempts=1)
        await ground.drain()
        state = await task.state()
    assert (state.state, state.reason, state.attempt) == ("dead", "exhausted", 1)
    assert state.error.startswith(f"the server refused its links: {why}")


@on_all
async def test_a_handler_gets_the_whole_task(api: Api, grounds: Grounds) -> None:
    seen, start_at = list[fairq.Task](), datetime.now(UTC).replace(microsecond=5000)

    async def handle(task: fairq.Task) -> None:
        seen.append(task)

    async with grounds(api, handle) as ground:
        payload = {"to": ["ada"], "n": 1.5}
        await ground.ada.enqueue("emails", payload, start_at=start_at, expires_in=60, max_attempts=3, id="a")
        await ground.drain()
    (got,) = seen
    assert (got.id, got.queue, got.tenant, got.attempt, got.max_attempts) == ("a", "emails", "ada", 1, 3)
    assert (got.payload, got.start_at) == (payload, start_at)
    assert abs(got.enqueued_at - datetime.now(UTC)) < timedelta(seconds=30)
    assert got.expires_at
    assert got.expires_at - got.enqueued_at == timedelta(seconds=60)


@on_all
async def test_results_come_or_say_why_not(api: Api, grounds: Grounds) -> None:
    async def handle(task: fairq.Task) -> Any:
        if task.payload == "reject":
            raise fairq.Reject("nothing to add")
        return object() if task.payload == "odd" else sum(task.payload)

    async with grounds(api, handle) as ground:
        kept, odd, rejected = await ground.ada.enqueue_many("emails", [[1, 2], "odd", "reject"], result_ttl=60)
        plain = await ground.ada.enqueue("emails", "odd")
        with pytest.raises(NotYet):
            await kept.result(timeout=0.05)
        await ground.drain()
        assert await kept.result(timeout=20) == await kept.result(int) == 3
        for kind, why in ((str, "the result is not str: expected text @ result"), (set[states], "cannot be converted")):  # type: ignore[valid-type]
            with raises_for("kind", match=why):
                await kept.result(kind)
        for task, why in ((odd, "the result is not JSON"), (rejected, "nothing to add")):
            with pytest.raises(TaskFailed, match=f"dead: rejected: {why}"):
                await task.result()
        assert await states([plain]) == ["done"]
        with pytest.raises(NoResult):
            await plain.result()


@on_all
async def test_events_tell_those_who_asked_from_where_the_reader_was(api: Api, grounds: Grounds) -> None:
    seen: list[Any] = []
    async with grounds(api, handler_of(Mill())) as ground:
        stream = ground.ada.events("emails")

        async def follow() -> None:
            seen.extend([await anext(stream) for _ in range(2)])

        await ground.ada.enqueue("emails", "plain")
        await ground.ada.enqueue_many("emails", ["again", "reject", "1"], ids=["a", "b", "c"], events=True)
        await api.together([follow, ground.drain])
        again = ground.ada.events("emails", after=stream.after)
        seen += [await anext(again) for _ in range(3)]
        assert [(event.id, event.event, event.task, event.attempt, event.detail) for event in seen] == [
            (1, "failed", "a", 1, "busy"), (2, "failed", "b", 1, "bad address"), (3, "dead", "b", 1, "rejected"),
            (4, "done", "c", 1, ""), (5, "done", "a", 2, ""),
        ]  # fmt: skip
        assert [event.id for event in (await ground.ada.read_events("emails", 1, count=1)).events] == [2]
        assert await error_of(ground.ada.read_events("emails", 9)) == (BadRequest, "after")
        assert await error_of(anext(ground.ada.events("emails", after=9))) == (BadRequest, "after")
        assert await error_of(ground.ada.read_events("emails", tenant="bob")) == (Forbidden, "tenant")


@on_all
async def test_a_batch_from_its_opening_to_its_end(api: Api, grounds: Grounds) -> None:
    mill = Mill()
    async with grounds(api, handler_of(mill)) as ground:
        batch = await ground.ada.open_batch("emails", id="b", max_running=2, on_complete="c", on_success="s")
        assert await ground.ada.open_batch("emails", id="b", max_running=7) == batch
        tasks = await batch.add_many(["1", "again", "3"], ids=["t1", "t2", "t3"], result_ttl=60)
        assert await states(tasks) == ["ready", "ready", "pending"]
        assert (await batch.add("1", id="t1")).is_duplicate
        assert counts(await batch.state()) == ("open", 3, 3, 0, 0, 0, 0, 0)
        await ground.drain()
        assert counts(await batch.state()) == ("open", 3, 0, 0, 3, 0, 0, 0)
        last = await batch.add("last", priority=1)
        with pytest.raises(NotYet):
            await batch.wait(timeout=0.01)
        await batch.close()
        await batch.close()
        assert counts(await batch.state()) == ("closed", 4, 1, 0, 3, 0, 0, 0)
        assert await error_of(batch.add("late")) == (BatchClosed, "batch")
        assert (await batch.add("last", id=last.id)).is_duplicate
        await ground.drain()
        state = await batch.wait(timeout=20)
        assert counts(state) == ("complete", 4, 0, 0, 4, 0, 0, 0)
        assert (state.id, state.tenant, state.max_running) == ("b", "ada", 2)
        assert 0 < state.created_at_ms <= state.completed_at_ms
        assert [each.state async for each in batch.watch(every=0.01)] == ["complete"]
        assert [await task.result(timeout=20) for task in tasks] == ["1", "again", "3"]
        assert await batch.cancel() == "complete"
    assert sorted(mill.ran[:4]) == ["1", "3", "again", "again"]
    assert mill.ran[4:] == ["last", "c", "s"]


@on_all
@pytest.mark.parametrize("runs", ["in the loop", "in a thread"])
async def test_callbacks_read_the_results_of_their_batch(api: Api, grounds: Grounds, runs: str) -> None:
    read: dict[str, Any] = {}

    async def collect(task: fairq.Task) -> None:
        rows: list[Any] = []
        try:
            while not rows or rows[-1][-1]:  # until the time of the last result is over
                rows = [(each.id, each.result, each.is_kept) async for each in task.batch_results()]
            read[task.payload] = rows
        except FairqError as error:
            read[task.payload] = type(error), error.field

    async def in_loop(task: fairq.Task) -> Any:
        await collect(task)
        return {"was": task.payload}

    def in_thread(task: fairq.Task) -> Any:
        anyio.from_thread.run(collect, task)
        return {"was": task.payload}

    async with grounds(api, in_loop if runs == "in the loop" else in_thread) as ground:
        batch = await ground.ada.open_batch("emails", on_complete="sum", on_success="cheer")
        await batch.add_many(["b", "a"], ids=["t2", "t1"], result_ttl=60, priority=9)
        await batch.add("no result", id="t3")
        await batch.add(None, id="t4", result_ttl=0.001)
        await ground.ada.enqueue("emails", "of no batch", id="t5", result_ttl=60)
        await ground.drain()
        await batch.close()
        await ground.drain()
    results = [("t2", {"was": "b"}, True), ("t1", {"was": "a"}, True), ("t4", None, False)]
    assert read["sum"] == read["cheer"] == results
    assert read["a"] == read["of no batch"] == (NotFound, "id")


@on_all
async def test_a_batch_with_a_dead_task_succeeds_never(api: Api, grounds: Grounds) -> None:
    mill = Mill()
    async with grounds(api, handler_of(mill)) as ground:
        callbacks = {"on_complete": "c", "on_success": "s", "on_death": "d"}
        names = {"on_complete_name": "sum", "on_success_name": "cheer", "on_death_name": "alarm é"}
        batch = await ground.ada.open_batch("emails", **callbacks, **names, events=True)
        await batch.add_many(["1", "reject", "reject"])
        await batch.close()
        await ground.drain()
        assert counts(await batch.wait(timeout=20)) == ("complete", 3, 0, 0, 1, 2, 0, 0)
        (event,) = (await ground.ada.read_events("emails")).events
        assert (event.event, event.batch, event.task, event.attempt) == ("batch_completed", batch.id, "", 0)
        assert (event.done, event.dead, event.cancelled, event.expired) == (1, 2, 0, 0)
    assert sorted(mill.ran) == ["1", "c", "d", "reject", "reject"]
    assert mill.names == {"1": "", "reject": "", "c": "sum", "d": "alarm é"}


@on_all
async def test_what_is_cancelled_never_runs(api: Api, grounds: Grounds) -> None:
    mill = Mill()
    async with grounds(api, handler_of(mill)) as ground:
        batch = await ground.ada.open_batch("emails", id="b", max_running=1, on_complete="c", on_success="s")
        tasks = await batch.add_many(range(3), result_ttl=60, events=True, ids=["t0", "t1", "t2"])
        late = await batch.add(3, delay=3600)
        assert await tasks[0].cancel() == "ok"
        assert await states([*tasks, late]) == ["cancelled", "ready", "pending", "delayed"]
        assert await ground.ada.cancel("emails", ["t0", "t1", "none"]) == ["gone", "ok", "gone"]
        assert counts(await batch.state()) == ("open", 4, 2, 0, 0, 0, 2, 0)
        assert await batch.cancel() == "open"
        assert await batch.cancel() == "complete"
        assert counts(await batch.wait(timeout=20)) == ("complete", 4, 0, 0, 0, 0, 4, 0)
        assert await states([*tasks, late]) == ["cancelled"] * 4
        with pytest.raises(TaskFailed, match="cancelled"):
            await tasks[1].result(timeout=20)
        known = await ground.ada.enqueue("emails", "x", id="t1")
        assert (known.is_duplicate, known.duplicate_of_state) == (True, "cancelled")
        await ground.drain()
        found = [(event.event, event.task) for event in (await ground.ada.read_events("emails")).events]
        assert found == [("cancelled", "t0"), ("cancelled", "t1"), ("cancelled", "t2")]
    assert mill.ran == ["c"]


@on_all
async def test_batches_are_named_listed_and_missed(api: Api, grounds: Grounds) -> None:
    async with grounds(api, handler_of(Mill())) as ground:
        for id in ("b1", "b2", "b3"):
            await ground.ada.open_batch("emails", id=id)
        await ground.ada.batch("emails", "b2").close()
        assert {state.id async for state in ground.ada.batches("emails")} == {"b1", "b2", "b3"}
        assert [state.id async for state in ground.ada.batches("emails", state="complete")] == ["b2"]
        found = await ground.ada.read_batches("emails", ["b2", "none", "b1"])
        assert {id: state.state for id, state in found.items()} == {"b1": "open", "b2": "complete"}
        none = ground.ada.batch("emails", "none")
        for call in (none.state, none.close, none.cancel, none.wait):
            assert await error_of(call()) == (NotFound, "id")
        assert await error_of(none.add(1)) == (NotFound, "batch")
        assert await error_of(ground.ada.enqueue_many("emails", [1, 2], ids=["x", "y"], batch="none"))
        assert await states(await ground.ada.enqueue_many("emails", [1], ids=["x"])) == ["ready"]
        large = {"on_death": "x" * 65_535}
        assert await error_of(ground.ada.open_batch("emails", **large)) == (TooLarge, "on_death")


@on_all
async def test_a_producer_enqueues_for_many_tenants_and_follows_up(api: Api, grounds: Grounds) -> None:
    mill = Mill()
    async with grounds(api, handler_of(mill)) as ground:
        task = await ground.shop.enqueue("emails", "hi", tenant="Ada@acme", id="t", result_ttl=60)
        assert (task.id, task.is_duplicate) == ("Ada@acme/t", False)
        assert (await ground.shop.enqueue("emails", "hi", tenant="Ada@acme", id="t")).is_duplicate
        tasks = await ground.shop.enqueue_many(
            "emails", range(4), tenant=["ada", "bob", "ada", "eve"], ids=list("abcd")
        )
        assert [each.id for each in tasks] == ["ada/a", "bob/b", "ada/c", "eve/d"]
        assert (await ground.ada.tasks("emails", ["a"]))[0].state == "ready"
        assert [state.tenant for state in await ground.shop.tasks("emails", ["bob/b", "bob/none"])] == ["bob", ""]
        assert await tasks[3].cancel() == "ok"
        first = await ground.shop.enqueue("emails", 1, tenant="bob", dedupe_key="k")
        known = await ground.shop.enqueue("emails", 1, tenant="bob", dedupe_key="k")
        assert (known.id, known.duplicate_of_state) == (first.id, "ready")
        batch = await ground.shop.open_batch("emails", tenant="zoo", id="b", on_complete="after")
        assert batch.id == "zoo/b"
        assert [each.id.partition("/")[0] for each in await batch.add_many([7, 8])] == ["zoo", "zoo"]
        await batch.close()
        await ground.drain()
        assert counts(await batch.wait(timeout=20)) == ("complete", 2, 0, 0, 2, 0, 0, 0)
        assert [*(await ground.shop.read_batches("emails", ["zoo/b", "bob/b"]))] == ["zoo/b"]
        assert await task.result(timeout=20) == "hi"
    assert sorted(mill.ran, key=str) == [0, 1, 1, 2, 7, 8, "after", "hi"]


@on_all
async def test_a_tenant_that_is_refused_is_named_and_costs_the_others_nothing(api: Api, grounds: Grounds) -> None:
    async with grounds(api, handler_of(Mill())) as ground:
        for name in ("acme", "zoo"):
            await ground.shop.open_batch("emails", tenant=name, id="b")
        await ground.shop.batch("emails", "zoo/b").close()
        tasks = [NewTask(f"{name}/t{n}", b"1", batch="b") for n, name in enumerate(["acme", "zoo", "acme", "none"])]
        with pytest.raises(TenantsRefused, match=r"2 in all: zoo \(batch_closed\), none \(not_found\)") as caught:
            await ground.shop.enqueue_tasks("emails", tasks)
        error = caught.value
        refusals = {name: (type(refusal), refusal.field) for name, refusal in error.refusals.items()}
        assert refusals == {"zoo": (BatchClosed, "batch"), "none": (NotFound, "batch")}
        assert await error_of(ground.shop.enqueue("emails", 1, tenant="zoo", batch="b")) == (BatchClosed, "batch")
        assert [task and task.id for task in error.taken] == ["acme/t0", None, "acme/t2", None]
        assert (await ground.shop.batch("emails", "acme/b").state()).total == 2


@on_all
async def test_who_names_a_tenant_and_who_does_not(api: Api, grounds: Grounds) -> None:
    async with grounds(api, handler_of(Mill())) as ground:
        for name in ("ada", "bob"):
            assert await error_of(ground.ada.enqueue("emails", 1, tenant=name)) == (Forbidden, "tenant")
        assert await error_of(ground.shop.enqueue("emails", 1)) == (BadRequest, "tenant")
        assert await error_of(ground.shop.enqueue("emails", 1, tenant="a/b")) == (BadRequest, "tenant")
        assert await error_of(ground.shop.enqueue_many("emails", [1, 2], tenant=["a"])) == (BadRequest, "tenant")
        assert await error_of(ground.shop.tasks("emails", ["bare"])) == (BadRequest, "ids")
        assert (await error_of(ground.shop.read_events("emails")))[0] is Forbidden
        with pytest.raises(BadRequest):
            [state async for state in ground.shop.batches("emails")]


@on_all
async def test_nobody_chooses_an_id_that_handlers_enqueue_by(api: Api, grounds: Grounds) -> None:
    async with grounds(api, handler_of(Mill())) as ground:
        for id in ("from", "from-a"):
            assert await error_of(ground.ada.enqueue("emails", 1, id=id)) == (BadRequest, "id")
            assert await error_of(ground.shop.enqueue("emails", 1, id=id, tenant="ada")) == (BadRequest, "id")
            with pytest.raises(BadRequest):
                await ground.ada.open_batch("emails", id=id)
