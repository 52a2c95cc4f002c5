"""Late binding: tasks are claimed when a worker has room, never ahead of it, and never left lying."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from fairq.errors import Unavailable
from fairq.io.taskless import in_task
from fairq.io.turns import at_end_of_turn, call_from_end
from fairq.model.queues import Tick
from fairq.model.tasks import Outcome, Settlement
from fairq.server.engine.app import IDLE_TICKS, App
from fairq.server.engine.dispatch.claim_calls import ClaimCalls
from fairq.server.engine.dispatch.claiming import MAX_PACE_S, Phase
from fairq.server.engine.timers.ticker import TICKS_AT_ONCE
from fairq.server.run import Served
from fairq.store import keys
from fairq.store.store import Store
from fairq.store.task_calls import Claim
from tests.store.waiting import wait_until

from .clock import StoreClock
from .harness import OPERATOR, WORKER, Raw, lease_of, noted_calls, raw, tenant

IDS = [f"id-{number}" for number in range(20)]


async def tick_never(self: Store, queue: str, server: str = "") -> Tick:
    """Stand in for Store.tick where it must not be the ticker that finds the work."""
    return await trio.sleep_forever()


async def all_claimed(served: Served) -> None:
    """Wait until the dispatcher has handled its notices, and claims nothing more."""
    dispatcher = served.app.queues.dispatchers["q"]
    dispatcher.notify()
    decided = trio.Event()
    at_end_of_turn(lambda: call_from_end(decided.set))
    await decided.wait()
    await wait_until(lambda: dispatcher.claiming.phase is Phase.WAITING)


async def test_no_more_is_pushed_than_credit_and_no_more_is_claimed(served: Served, ada: Raw, worker: Raw) -> None:
    await ada.enqueue("q", IDS)
    await worker.attach("q", credit=3)
    first = await worker.pushed(3)
    assert (await served.app.store.queue("q")).leased == 3
    await worker.settle("q", "ack", first[0])
    (fourth,) = await worker.pushed(1)  # what had been pushed before it would be among them
    await worker.ask("credit", credit=5)
    assert len(await worker.pushed(2)) == 2
    await worker.ask("credit", credit=0)
    await worker.settle("q", "ack", *first[1:], fourth)
    await all_claimed(served)
    assert not worker.pushes
    state = await served.app.store.queue("q")
    assert (state.done, state.leased, state.ready) == (4, 2, 14)


@pytest.mark.usefixtures("no_polls")
async def test_tasks_for_which_there_is_room_cost_one_claim_and_wake_nobody_else(
    monkeypatch: pytest.MonkeyPatch, worker: Raw, ada: Raw
) -> None:
    seen: list[str] = []
    heard = App.on_message

    def note(self: App, channel: str, message: str = "") -> None:
        if channel == keys.ready_channel("q"):  # not the channel on which servers tell how many slots they have
            seen.append(message)
        heard(self, channel, message)

    await ada.enqueue("q", ["made"])
    await worker.attach("q", credit=5)
    await worker.settle("q", "ack", *await worker.pushed(1))
    await worker.quiet()
    monkeypatch.setattr(App, "on_message", note)
    claims = noted_calls(monkeypatch, "claim")
    for n in range(5):
        await trio.sleep(MAX_PACE_S)  # the pace of claims
        await ada.enqueue("q", [f"{n}a", f"{n}b"])
        await worker.settle("q", "ack", *await worker.pushed(2))
    assert (seen, [limit for _, _, limit, *_ in claims.args]) == ([], [3] * 5), "one place more than tasks are expected"
    await trio.sleep(MAX_PACE_S)
    await ada.enqueue("q", IDS[:6])  # one more than there is room for
    await worker.settle("q", "ack", *await worker.pushed(5))
    await worker.settle("q", "ack", *await worker.pushed(1))
    await wait_until(lambda: seen == [keys.READY])


async def test_credit_that_a_claim_did_not_use_serves_the_workers_other_queues(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty queue's claim holds the only credit when the other queue's task comes."""
    claimed, go_on = trio.Event(), trio.Event()
    claim = Store.claim

    async def slow_claim(self: Store, queue: str, *args: Any, **more: Any) -> Claim:
        reply = await claim(self, queue, *args, **more)
        if queue == "empty":
            claimed.set()
            await in_task()
            await go_on.wait()
        return reply

    monkeypatch.setattr(Store, "claim", slow_claim)
    monkeypatch.setattr(Store, "tick", tick_never)
    async with raw(served, WORKER) as worker, raw(served, tenant("ada")) as ada:
        await worker.attach("empty", "full", credit=1)
        await claimed.wait()
        await ada.enqueue("full", ["a"])
        await wait_until(lambda: not served.app.queues.dispatchers["full"].claiming.is_empty)
        go_on.set()
        assert [task["id"] for task in await worker.pushed()] == ["a"]


async def test_a_claim_does_not_wait_for_the_reply_to_the_enqueue(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue, pushed = Store.enqueue, trio.Event()

    async def slow_to_answer(self: Store, *args: Any, **more: Any) -> Any:
        outcomes = await enqueue(self, *args, **more)
        await in_task()
        await pushed.wait()
        return outcomes

    monkeypatch.setattr(Store, "tick", tick_never)
    async with raw(served, tenant("ada")) as ada, raw(served, WORKER) as worker, trio.open_nursery() as nursery:
        await worker.attach("q", credit=2)
        await ada.enqueue("q", ["first"])
        await worker.pushed()
        monkeypatch.setattr(Store, "enqueue", slow_to_answer)
        monkeypatch.setattr(App, "on_message", lambda *_: None)  # nor does the store's message bring the claim
        nursery.start_soon(ada.enqueue, "q", ["second"])
        assert len(await worker.pushed()) == 1
        pushed.set()


async def test_a_push_leaves_ahead_of_the_reply_to_its_enqueue(
    served: Served, ada: Raw, worker: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    write = os.write

    def note(fd: int, data: bytes) -> int:
        sent.extend(re.findall(r'"type":"(push|reply)"', data.decode(errors="ignore")))
        return write(fd, data)

    await worker.attach("q", credit=10)
    await ada.enqueue("q", ["a"])
    await worker.pushed()
    await all_claimed(served)
    monkeypatch.setattr("fairq.io.sockets.os.write", note)
    await ada.enqueue("q", ["b"])
    await worker.pushed()
    assert sent == ["push", "reply"]


async def test_a_task_that_is_cancelled_before_its_claim_is_answered_is_stopped(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, stop, claimed, heard = Store.claim, ClaimCalls.stop_task, trio.Event(), trio.Event()

    async def slow_to_answer(self: Store, *args: Any, **more: Any) -> Claim:
        found = await claim(self, *args, **more)
        if found.leases:
            claimed.set()
            await in_task()
            await heard.wait()
        return found

    def hear(self: ClaimCalls, id: str) -> None:
        stop(self, id)
        heard.set()

    monkeypatch.setattr(Store, "claim", slow_to_answer)
    monkeypatch.setattr(ClaimCalls, "stop_task", hear)
    async with raw(served, tenant("ada")) as ada, raw(served, WORKER) as worker:
        await worker.attach("q", credit=2)
        await ada.enqueue("q", ["a"])
        await claimed.wait()
        assert await ada.ask("cancel", queue="q", ids=["a"]) == {"outcomes": ["running"]}
        (task,) = await worker.pushed()
        frame = await worker.receive()
        assert (frame["type"], frame["leases"]) == ("stop", [{"id": "ada/a", "lease": task["lease"]}])
        assert await worker.settle("q", "release", task) == ["ok"]
        (state,) = (await ada.ask("tasks", queue="q", ids=["a"]))["tasks"]
        assert state["state"] == "cancelled"


async def test_a_queue_with_a_worker_is_listed_before_its_first_task(served: Served) -> None:
    async with raw(served, WORKER) as worker, raw(served, OPERATOR) as operator:
        await worker.attach("q", credit=1)
        (queue,) = (await operator.ask("queues"))["queues"]
        assert (queue["queue"], queue["workers"], queue["ready"], queue["done"]) == ("q", 1, 0, 0)
    async with raw(served, OPERATOR) as operator:
        await wait_until(lambda: not any(connection.queues for connection in served.app.connections))
        assert (await operator.ask("queues"))["queues"] == []


async def test_workers_that_ask_for_many_queues_fill_no_line_to_the_store(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = noted_calls(monkeypatch, "tick")
    async with raw(served, WORKER) as worker:
        await worker.attach(*(f"q{number}" for number in range(100)), credit=500)
        for ref in range(101, 106):
            await worker.send("idle", ref=ref)
        answers = [await worker.receive() for _ in range(5)]
        assert {frame["type"] for frame in answers} == {"reply"}
    assert 100 <= ticks.most <= IDLE_TICKS + TICKS_AT_ONCE


async def test_what_another_worker_holds_is_stale_without_asking_the_store(
    served: Served, monkeypatch: pytest.MonkeyPatch, ada: Raw
) -> None:
    settled = noted_calls(monkeypatch, "settle")
    async with raw(served, WORKER) as owner, raw(served, WORKER) as thief:
        await ada.enqueue("q", ["a", "b"])
        await owner.attach("q", credit=1, name="owner")
        (task,) = await owner.pushed()
        await thief.attach("q", credit=1, name="thief")
        (own,) = await thief.pushed()
        for action in ("ack", "nack", "reject", "release", "extend"):
            assert await thief.settle("q", action, task) == ["stale"]
        assert settled.args == []
        assert await thief.settle("q", "ack", task, own, task) == ["stale", "ok", "stale"]
        ((_, settlements),) = settled.args
        assert [each.id for each in settlements] == [own["full_id"]]
        assert await owner.settle("q", "ack", task) == ["ok"]


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_settlement_whose_answer_was_lost_is_repeated_though_the_lease_was_not_brought_along(
    is_done: bool, one: Served, either: Served
) -> None:
    async with raw(one, tenant("ada")) as ada:
        async with raw(one, WORKER) as half_open:
            await ada.enqueue("q", ["a"])
            await half_open.attach("q", credit=1, name="mill")
            (task,) = await half_open.pushed()
            if is_done:
                await one.app.store.settle("q", [Settlement("ack", "ada/a", task["lease"])])
            async with raw(either, WORKER) as again:
                await again.attach("q", credit=1, name="mill")
                assert await again.settle("q", "ack", task) == ["gone" if is_done else "ok"]
        assert (await one.app.store.queue("q")).done == 1


async def test_a_cancelled_lease_that_is_brought_along_stays_on_the_account(served: Served, ada: Raw) -> None:
    async with raw(served, WORKER) as old, raw(served, WORKER) as new:
        await ada.enqueue("q", ["a"])
        await old.attach("q", credit=1)
        (task,) = await old.pushed()
        assert await ada.ask("cancel", queue="q", ids=["a"]) == {"outcomes": ["running"]}
        assert await new.attach("q", credit=1, leases=[lease_of(task)]) == ["cancelled"]
        assert await new.settle("q", "extend", task) == ["cancelled"]
        (connection,) = (connection for connection in served.app.connections if connection.account.held)
        assert connection.account.held_of("q") == {"ada/a": task["lease"]}
        assert await new.settle("q", "release", task) == ["ok"]
        assert not connection.account.held


@pytest.mark.usefixtures("quick_floor")
async def test_a_lease_that_is_over_frees_its_place_though_it_is_never_settled(
    store_clock: StoreClock, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairq.server.engine.dispatch.worker_account.OVER_S", 0.1)
    async with (
        raw(served, tenant("ada")) as ada,
        raw(served, OPERATOR) as operator,
        raw(served, WORKER) as brings,
        raw(served, WORKER) as worker,
    ):
        await operator.ask("configure", queue="q", settings={"lease_ms": 200})
        await ada.enqueue("q", ["a"])
        await worker.attach("q", credit=1)
        (first,) = await worker.pushed()
        store_clock.move(store_clock.now_ms + 201)
        (second,) = await worker.pushed()
        assert (first["attempt"], second["attempt"]) == (1, 2)
        assert await worker.settle("q", "ack", first) == ["stale"]
        assert await brings.attach("q", credit=1, leases=[lease_of(second)]) == ["ok"]
        await worker.ask("credit", credit=0)
        store_clock.move(store_clock.now_ms + 201)

        async def is_lost() -> bool:
            return (await served.app.store.tasks("q", ["ada/a"]))[0].state == "delayed"

        await wait_until(is_lost)
        store_clock.move(store_clock.now_ms + 10_000)
        assert (await brings.pushed())[0]["attempt"] == 3


async def test_a_lease_that_is_extended_and_ended_by_one_frame_frees_its_place(worker: Raw, ada: Raw) -> None:
    await ada.enqueue("q", ["a"])
    await worker.attach("q", credit=1)
    (task,) = await worker.pushed()
    lease = {"id": task["full_id"], "lease": task["lease"]}
    both = [{"action": "extend", **lease}, {"action": "ack", **lease}]
    assert await worker.ask("settle", queue="q", settlements=both) == {"outcomes": ["ok", "ok"]}
    await ada.enqueue("q", ["b"])
    (task,) = await worker.pushed()
    assert await worker.settle("q", "ack", task) == ["ok"]


@pytest.mark.parametrize("action", ["ack", "release"])
async def test_a_lease_that_ends_while_it_is_extended_frees_its_place(
    served: Served, action: str, monkeypatch: pytest.MonkeyPatch, worker: Raw, ada: Raw
) -> None:
    """The answer to the extension comes when the lease has ended, or the task has come again under another."""
    settle, may_tell = Store.settle, trio.Event()

    async def late(self: Store, queue: str, settlements: Sequence[Settlement]) -> list[Outcome]:
        outcomes = await settle(self, queue, settlements)
        if settlements[0].action == "extend":
            await in_task()
            await may_tell.wait()
        return outcomes

    await ada.enqueue("q", ["a"])
    await worker.attach("q", credit=1)
    (task,) = await worker.pushed()
    lease = {"id": task["full_id"], "lease": task["lease"]}
    monkeypatch.setattr(Store, "settle", late)
    await worker.send("settle", ref=901, queue="q", settlements=[{"action": "extend", **lease}])
    assert await worker.settle("q", action, task) == ["ok"]
    if action == "ack":
        await ada.enqueue("q", ["b"])
        may_tell.set()
    (task,) = await worker.pushed()
    may_tell.set()
    await worker.ask("credit", credit=1)  # the answer has come by then
    assert await worker.settle("q", "extend", task) == ["ok"]
    assert await worker.settle("q", "ack", task) == ["ok"]
    await worker.quiet()
    (row,) = served.app.worker_registry.named_here("w", 1, None)[0]
    assert row[3] == 0, "it holds nothing"


async def test_a_task_that_came_again_while_its_settlement_failed_keeps_its_new_lease(
    monkeypatch: pytest.MonkeyPatch, worker: Raw, ada: Raw
) -> None:
    """As where a settlement takes several calls, and a later one fails."""
    settle, may_fail = Store.settle, trio.Event()

    async def half(self: Store, queue: str, settlements: Sequence[Settlement]) -> list[Outcome]:
        outcomes = await settle(self, queue, settlements)
        if settlements[0].action == "release" and not may_fail.is_set():
            await in_task()
            await may_fail.wait()
            raise Unavailable("the store is away")
        return outcomes

    await ada.enqueue("q", ["a"])
    await worker.attach("q", credit=1)
    (task,) = await worker.pushed()
    monkeypatch.setattr(Store, "settle", half)
    old = {"id": task["full_id"], "lease": task["lease"]}
    await worker.send("settle", ref=901, queue="q", settlements=[{"action": "release", **old}])
    (again,) = await worker.pushed()
    may_fail.set()
    assert (await worker.receive())["code"] == "unavailable"
    assert await worker.settle("q", "extend", again) == ["ok"]


async def test_a_worker_that_has_an_id_twice_settles_each_lease_by_itself(
    served: Served, ada: Raw, worker: Raw
) -> None:
    """It never heard that the first was lost; its account is of the second."""
    store = served.app.store
    await ada.enqueue("q", ["a"], max_attempts=1)
    await worker.attach("q", credit=2)
    (old,) = await worker.pushed()
    await store.settle("q", [Settlement("reject", "ada/a", old["lease"])])
    await store.purge("q", ["ada/a"])
    await store.connection.call("HDEL", "fq:{q/0}:tasks", "ada/a")  # as two minutes later
    await ada.enqueue("q", ["a"])
    (new,) = await worker.pushed()
    for lease, found in (old, 0), (new, 0.5):
        await worker.ask("progress", queue="q", reports=[{"id": "ada/a", "lease": lease["lease"], "fraction": 0.5}])
        assert (await store.tasks("q", ["ada/a"]))[0].progress == found
    assert await worker.settle("q", "ack", old) == ["stale"]
    assert [connection.account.held_of("q") for connection in served.app.connections if connection.queues] == [
        {"ada/a": new["lease"]}
    ]
    assert await worker.settle("q", "ack", new) == ["ok"]
