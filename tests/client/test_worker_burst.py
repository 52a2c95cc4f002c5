"""A worker that ends when there is nothing to do, and the account it gives."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

import fairq
from fairq.errors import Unavailable
from fairq.io.exception_groups import ungrouped
from fairq.server.engine.dispatch.dispatcher import Dispatcher
from fairq.server.engine.timers.ticker import Ticker
from fairq.server.run import Served
from tests import stores
from tests.logs import captured_logs
from tests.server.clock import StoreClock
from tests.server.harness import WORKER, Raw, Refused, raw, running, tenant, url_of
from tests.store.waiting import wait_until

from .harness import worker_of


@pytest.mark.usefixtures("no_polls")
async def test_a_burst_with_nothing_to_do_ends_at_once(served: Served) -> None:
    app = worker_of(served)
    app.task("emails")(print)
    await app.run(burst=True)
    assert not app.counts


async def test_a_burst_does_not_wait_for_delayed_tasks_retries_and_paused_tenants(
    served: Served, ada: fairq.Client, operator: Raw
) -> None:
    app, ran = worker_of(served), []

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        ran.append(task.payload)
        raise {"retry": fairq.Retry("later", delay=3_600), "reject": fairq.Reject("never")}[task.payload]

    await ada.enqueue("emails", "later", delay=3_600)
    await ada.enqueue_many("emails", ["retry", "reject"])
    async with fairq.open_client(url_of(served), token=tenant("bob")) as bob:
        await bob.enqueue("emails", "paused")
    await operator.ask("set_paused", paused=True, queue="emails", tenant="bob")
    await app.run(burst=True)
    assert sorted(ran) == ["reject", "retry"]
    assert app.counts == Counter(retry=1, dead=1)


async def test_a_burst_does_what_its_handlers_enqueue_at_another_server(served: Served, server_store: str) -> None:
    """The follow-up is known to the store and not yet to the worker's server when it asks whether there is more."""
    app, done = worker_of(served, concurrency=1), []

    async with running(server_store) as other, fairq.open_client(url_of(other), token=tenant("ada")) as elsewhere:

        @app.task("emails")
        async def send(task: fairq.Task) -> None:
            done.append(task.payload)
            if task.payload:
                await elsewhere.enqueue("emails", task.payload - 1)

        await elsewhere.enqueue("emails", 50)
        await app.run(burst=True)
    assert done == list(range(50, -1, -1))


async def test_a_burst_does_what_is_due(
    served: Served, server_store: str, ada: fairq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start has come, but the ticker has not; the question whether there is more must make it ready."""

    async def never(self: Ticker, queue: str) -> tuple[float, float]:
        return 60.0, 60.0

    monkeypatch.setattr(Ticker, "_tick", never)
    clock = StoreClock(monkeypatch, "emails")
    clock.govern(server_store)
    app, done = worker_of(served), []

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        done.append(task.payload)

    await ada.enqueue("emails", 1, delay=3600)
    clock.move(clock.now_ms + 3_600_000)
    await app.run(burst=True)
    assert done == [1]


async def test_a_burst_waits_for_what_it_holds_while_others_work_too(served: Served, ada: fairq.Client) -> None:
    app, began, finish = worker_of(served), trio.Event(), trio.Event()

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        began.set()
        await finish.wait()

    await ada.enqueue("emails", 1)
    async with raw(served, WORKER) as other, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: app.run(burst=True))
        await began.wait()
        await other.attach("emails", credit=100)
        await other.quiet()
        assert (app.counts, app._run.driver.session.credit) == (Counter(), 5), "it has not begun to end"
        finish.set()
    assert app.counts == Counter(done=1)


@pytest.mark.parametrize("is_on", [True, False])
async def test_each_task_has_a_line_in_the_log_if_asked_for(served: Served, ada: fairq.Client, is_on: bool) -> None:
    app = worker_of(served)
    app.log_tasks = is_on

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        if task.payload == "bad":
            raise fairq.Reject("bad address")
        if task.attempt == 1:
            raise fairq.Retry(delay=0)

    with captured_logs() as lines:
        good, bad = await ada.enqueue_many("emails", ["good", "bad"])
        await app.run(burst=True)
    logged = sorted((line["task"], line["attempt"], line["outcome"]) for line in lines if line["event"] == "task")
    assert logged == ([(good.id, 1, "retry"), (good.id, 2, "done"), (bad.id, 1, "dead")] if is_on else [])
    for line in lines:
        if line["event"] == "task":
            assert (line["queue"], line["tenant"], line["ms"] >= 0) == ("emails", "ada", True)
            assert line["log_level"] == ("warning" if line["outcome"] == "dead" else "info")


async def test_a_burst_asks_again_if_a_task_came_and_ended_before_the_answer(
    served: Served, ada: fairq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_empty, asked, done = Dispatcher.wait_empty, 0, list[str]()

    async def late(self: Dispatcher) -> bool:
        nonlocal asked
        asked += 1
        if asked == 1:
            assert await wait_empty(self)
            await ada.enqueue("emails", "first")
            await wait_until(lambda: app.counts["done"] == 1)
            return True
        if asked == 2:
            await ada.enqueue("emails", "second")
        return await wait_empty(self)

    monkeypatch.setattr(Dispatcher, "wait_empty", late)
    app = worker_of(served)

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        done.append(task.payload)

    await app.run(burst=True)
    assert done == ["first", "second"]


async def test_a_burst_outlasts_a_store_that_is_away_for_a_moment(
    served: Served, ada: fairq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_empty = Dispatcher.wait_empty
    failures: list[str] = []

    async def failing(self: Dispatcher) -> bool:
        if len(failures) < 2:  # both questions of one `idle`
            failures.append(self.queue)
            raise Unavailable("the store is away")
        return await wait_empty(self)

    app = worker_of(served)
    app.task("emails")(lambda task: None)
    app.task("images")(lambda task: None)
    async with raw(served, WORKER) as other:
        await other.attach("emails", "images")
        monkeypatch.setattr(Dispatcher, "wait_empty", failing)
        with pytest.raises(Refused) as refused:
            await other.ask("idle")
    assert (refused.value.code, sorted(failures)) == ("unavailable", ["emails", "images"])
    failures.clear()
    await app.run(burst=True)
    assert failures


@pytest.mark.parametrize("is_stopped", [True, False])
async def test_a_burst_without_a_server_says_so_after_30_s(autojump_clock: object, is_stopped: bool) -> None:
    app = fairq.Worker(f"ws://127.0.0.1:{stores.free_port()}", WORKER)
    app.task("emails")(print)

    async def burst() -> None:
        with trio.fail_after(90), ungrouped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: app.run(burst=True))
                if is_stopped:
                    await wait_until(lambda: hasattr(app, "_run") and app._run.driver.session.trouble != "")
                    app.stop()

    began = trio.current_time()
    with pytest.raises(Unavailable, match="no connection to the server"):
        await burst()
    assert is_stopped or 29.9 < trio.current_time() - began < 30.1
