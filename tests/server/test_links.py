"""Links and handlers' tasks at the server: walls, refusals of the target, and a server that dies in between."""

from __future__ import annotations

from typing import Any

import pytest

from fairq.errors import Unavailable
from fairq.model.tasks import Settlement
from fairq.server.run import Served
from fairq.store import keys, library
from fairq.store.store import Store
from fairq.wire.terms import Role
from tests import stores

from .harness import WORKER, Raw, Refused, lease_of, raw
from .test_delete import crowd

LINK = {"queue": "next", "id": "link", "payload": [1]}


async def leased(worker: Raw, ada: Raw, id: str = "a") -> dict[str, Any]:
    """Enqueue a task, and have it pushed to an attached worker."""
    await ada.enqueue("q", [id])
    (task,) = await worker.pushed()
    return task


async def derive(worker: Raw, lease: dict[str, Any], **task: Any) -> list[str]:
    """Enqueue a task from a leased one."""
    new = {"id": "derived", "payload": 1, **task}
    outcomes: list[str] = (await worker.ask("enqueue_from", leases=[lease], queue="next", tasks=[new]))["outcomes"]
    return outcomes


async def wall(worker: Raw, lease: dict[str, Any]) -> None:
    """Check that nothing is enqueued from a lease."""
    with pytest.raises(Refused, match=r"^forbidden leases:"):
        await derive(worker, lease)


async def test_a_worker_enqueues_for_leases_that_its_connection_holds_only(served: Served, ada: Raw) -> None:
    async with raw(served, WORKER) as mine, raw(served, WORKER) as other:
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


async def test_a_worker_of_some_queues_enqueues_and_links_to_those_only(
    served: Served, operator: Raw, ada: Raw
) -> None:
    _, text = await operator.create_token(Role.WORKER, queues=["q"])
    async with raw(served, text) as worker:
        await worker.attach("q", credit=1)
        task = await leased(worker, ada)
        with pytest.raises(Refused, match=r"^forbidden queue:"):
            await derive(worker, lease_of(task))
        with pytest.raises(Refused, match=r"^bad_request links:"):
            await worker.settle("q", "ack", task, links=[LINK])
        with pytest.raises(Refused, match=r"^bad_request links:"):
            await worker.settle("q", "ack", task, links=[{**LINK, "id": task["id"], "queue": "q"}])
        assert await worker.settle("q", "ack", task, links=[{**LINK, "queue": "q"}]) == ["ok"]


async def test_one_request_enqueues_for_many_leases_and_refuses_tenants_apart(
    served: Served, worker: Raw, ada: Raw, bob: Raw
) -> None:
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
    assert await ask(held) == (["duplicate"] * 5, {})
    await store.settle("q", [Settlement("reap", two["full_id"], two["lease"])])  # behind its back
    outcomes, refusals = await ask(held)
    assert (outcomes, list(refusals)) == (["refused"] * 3 + ["duplicate"] * 2, ["ada"])


async def test_only_the_holder_of_a_callbacks_lease_reads_the_results_of_its_batch(
    served: Served, ada: Raw, bob: Raw
) -> None:
    store = served.app.store
    async with raw(served, WORKER) as mine, raw(served, WORKER) as other:
        await mine.attach("q", credit=9, name="mine")
        await other.attach("q", credit=0, name="other")
        held = {}
        for who, name in ((ada, "ada"), (bob, "bob")):
            await who.ask("open_batch", queue="q", id="b", on_complete="sum")
            await who.enqueue("q", ["a"], batch="b", result_ttl_ms=60_000)
            (task,) = await mine.pushed()
            assert await mine.settle("q", "ack", task, result=name) == ["ok"]
            await who.ask("close_batch", queue="q", id="b")
            (held[name],) = await mine.pushed()
        await ada.enqueue("q", ["b-complete-17"], result_ttl_ms=60_000)
        (forged,) = await mine.pushed()

        async def read(by: Raw, task: dict[str, Any], **more: Any) -> Any:
            given = {"id": task["full_id"], "lease": task["lease"], **more}
            try:
                return (await by.ask("batch_results", queue="q", **given))["results"]
            except Refused as error:
                return str(error).partition(":")[0]

        callback = held["ada"]
        assert await read(mine, callback) == [{"id": "ada/a", "result": "ada"}]
        assert await read(mine, held["bob"]) == [{"id": "bob/a", "result": "bob"}]
        assert await read(other, callback) == "forbidden lease"
        assert await read(mine, callback, lease=callback["lease"] + 1) == "forbidden lease"
        assert await read(mine, callback, lease=held["bob"]["lease"]) == "forbidden lease"
        assert await read(mine, callback, id="bob" + callback["full_id"].removeprefix("ada")) == "forbidden lease"
        assert await read(mine, forged) == "not_found id"
        await store.settle("q", [Settlement("reap", callback["full_id"], callback["lease"])])  # behind its back
        assert await read(mine, callback) == "forbidden lease"
        (again,) = await mine.pushed()
        assert await read(mine, callback) == "forbidden lease"
        assert await read(mine, again) == [{"id": "ada/a", "result": "ada"}]
        await mine.settle("q", "ack", again)
        assert await read(mine, again) == "forbidden lease"


@pytest.mark.usefixtures("no_polls")
async def test_links_arrive_at_once_and_wake_a_worker_of_their_queue(served: Served, worker: Raw, ada: Raw) -> None:
    async with raw(served, WORKER) as after:
        await worker.attach("q", credit=1, name="one")
        await after.attach("next", credit=5, name="two")
        links = [LINK, {**LINK, "id": "late", "delay_ms": 50}, {**LINK, "id": "large", "payload": "x" * 60_000}]
        task = await leased(worker, ada)
        assert await worker.settle("q", "ack", task, links=links) == ["ok"]
        assert {task["full_id"] for task in await after.pushed(3)} == {"ada/link", "ada/late", "ada/large"}
        assert await worker.settle("q", "ack", task, links=[{**LINK, "id": "more"}]) == ["gone"]
        assert (await served.app.store.queue("next")).enqueued == 3, "a repeated settlement links nothing"


@pytest.mark.parametrize("point", ["are_leased", "enqueue", "settle"])
@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
async def test_an_attempt_that_is_made_again_loses_and_doubles_no_link(
    served: Served, monkeypatch: pytest.MonkeyPatch, point: str, is_done: bool, worker: Raw, ada: Raw
) -> None:
    """The call at which the server dies may have been carried out, or not; the lease then runs out."""
    links = [LINK, {**LINK, "id": "same", "queue": "q", "delay_ms": 60_000}]
    store, real = served.app.store, getattr(Store, point)

    async def die(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(Store, point, real)
        if is_done:
            await real(*args, **options)
        raise Unavailable("dead")

    await worker.attach("q", credit=2)
    task = await leased(worker, ada)
    monkeypatch.setattr(Store, point, die)
    with pytest.raises(Refused, match="dead"):
        await worker.settle("q", "ack", task, links=links)
    await store.settle("q", [Settlement("reap", task["full_id"], task["lease"])])
    if not (point == "settle" and is_done):
        (again,) = await worker.pushed()
        assert await worker.settle("q", "ack", again, links=links) == ["ok"]
    assert [(await store.queue(queue)).enqueued for queue in ("q", "next")] == [2, 1]


REFUSALS: dict[str, tuple[dict[str, Any], str, str]] = {
    "late": ({"expires_at_ms": 5}, "bad_request", "expires_at"),
    "full": ({"queue": "full"}, "quota_exceeded", "queued"),
    "deleted": ({"queue": "doomed"}, "deleting", "queue"),
    "late here": ({"queue": "q", "expires_at_ms": 5}, "bad_request", "expires_at"),
}


@pytest.mark.parametrize("what", REFUSALS)
async def test_what_refuses_a_link_refuses_its_acknowledgement(
    served: Served, server_store: str, what: str, worker: Raw, ada: Raw, operator: Raw
) -> None:
    asked, code, field = REFUSALS[what]
    links = [{**LINK, "id": "good", "queue": "q"}, {**LINK, **asked}]
    store = served.app.store
    await ada.enqueue("full", ["one"])
    await operator.ask("set_limits", queue="full", tenant="ada", limits={"queued": 1})
    await ada.enqueue("doomed", ["old"])
    crowd(stores.connect(server_store))
    await store.connection.call(*_fcall("delete_queue", "doomed", "any"))
    await worker.attach("q", credit=2)
    task = await leased(worker, ada)
    with pytest.raises(Refused) as caught:
        await worker.settle("q", "ack", task, links=links)
    assert (caught.value.code, caught.value.field) == (code, field)
    assert await store.are_leased("q", [(task["full_id"], task["lease"])]) == [True]
    assert (await store.queue("q")).enqueued == 1
    assert await worker.settle("q", "ack", task) == ["ok"]


async def test_a_worker_links_nothing_with_a_lease_that_another_one_holds(served: Served, ada: Raw) -> None:
    async with raw(served, WORKER) as mine, raw(served, WORKER) as other:
        await mine.attach("q", credit=1, name="mine")
        await other.attach("q", credit=0, name="other")
        task = await leased(mine, ada)
        assert await other.settle("q", "ack", task, links=[LINK]) == ["stale"]
        assert (await served.app.store.queue("next")).enqueued == 0
        assert await mine.settle("q", "ack", task, links=[LINK]) == ["ok"]


def _fcall(verb: str, queue: str, *args: Any) -> tuple[Any, ...]:
    return "FCALL", library.function_name(verb), 1, keys.queue_prefix(queue), "", "", *args
