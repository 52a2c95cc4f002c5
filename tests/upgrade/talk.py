"""Says everything that the SDK can say: each verb, and all kinds of a worker's traffic, one thing after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

import fairq
from fairq.client.tasks import EnqueuedTask
from fairq.errors import BadRequest, FairqError, NotEmpty, NotFound, QuotaExceeded
from fairq.server.run import Served
from fairq.tokens import TokenRecord
from tests.server.harness import OPERATOR, PRODUCER, VIEWER, WORKER, tenant, url_of
from tests.store.proxy import Proxy, open_proxy

QUEUE, OTHER = "emails", "sms"
LEASE_MS = 6_000  # renewed after a third
LONG = "x" * 70_000  # a payload that goes beside its frame
URL = "https://a.example/in"


class Ears:
    """All that is heard: who says it, on which side (`>` the SDK's, `<` the server's), and the frame."""

    def __init__(self) -> None:
        self.heard: list[tuple[object, str, dict[str, Any]]] = []
        self._news = trio.Event()

    def hear(self, who: object, side: str, frame: dict[str, Any]) -> None:
        self.heard.append((who, side, frame))
        self._news.set()
        self._news = trio.Event()

    async def wait(self, side: str, kind: str, *words: str, count: int = 1) -> tuple[object, dict[str, Any]]:
        """Wait until so many frames of a type that have these words were said; returns the last."""
        while True:
            found = [
                (who, frame)
                for who, said, frame in self.heard
                if said == side and frame["type"] == kind and all(word in repr(frame) for word in words)
            ]
            if len(found) >= count:
                return found[-1]
            await self._news.wait()

    async def answered(self, kind: str, *words: str, count: int = 1) -> None:
        """Wait until such a request of the SDK is answered."""
        asker, asked = await self.wait(">", kind, *words, count=count)
        while not any(
            who is asker and side == "<" and frame.get("ref") == asked["ref"] and frame["type"] != "ended"
            for who, side, frame in self.heard
        ):
            await self._news.wait()


class Desk:
    """A worker's handler, which does what the payload says."""

    def __init__(self) -> None:
        self.go_on = trio.Event()

    async def work(self, task: fairq.Task) -> object:
        match task.payload:
            case "retry":
                raise fairq.Retry("busy", delay=3600)
            case "postpone":
                raise fairq.Postpone("closed", delay=3600)
            case "reject":
                raise fairq.Reject("no such address")
            case "fail":
                raise ValueError("out of paper")
            case "enqueue":
                await task.progress(0.5, "half of it")
                await task.enqueue(OTHER, "made")
                await self.go_on.wait()
            case "then":
                task.then(QUEUE, "next", delay=3600)
                task.then(OTHER, "next")
            case "sum":
                return {"sum": [each.result async for each in task.batch_results()]}
            case "hold":
                await self.go_on.wait()
        return {"did": len(str(task.payload))}


@asynccontextmanager
async def working(desk: Desk, url: str, name: str, **more: Any) -> AsyncIterator[fairq.Worker]:
    """A worker that ends with the block, and takes no more before it does."""
    worker = fairq.Worker(url, WORKER, 1, name=name, **more)
    worker.task(QUEUE)(desk.work)
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: worker.run(task_status=task_status))
        yield worker
        worker.stop()


async def talk(served: Served, ears: Ears) -> None:
    """Say it all to a server that nobody has used, and end it."""
    url = url_of(served)
    async with (
        fairq.open_client(url, token=tenant("ada")) as ada,
        fairq.open_client(url, token=PRODUCER) as producer,
        fairq.open_operator(url, token=OPERATOR) as operator,
    ):
        await _enqueue(ada, producer, operator)
        await operator.configure(QUEUE, lease_ms=LEASE_MS)
        await _work(url, ears, ada)
        await _stop(url, ears, ada, operator)
        await _reconnect(url, ears, ada)
        await _look(url, ada, operator)
        await _batches(ada)
        await _schedules(ada)
        await _bury(ada, operator)
        await _operate(operator)
        await _webhooks(url, operator)
        await _delete(ada, operator)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(served.app.drain, 1.0)
            await ears.wait("<", "drain", count=3)


async def _enqueue(ada: fairq.Client, producer: fairq.Client, operator: fairq.OperatorClient) -> None:
    assert not (await ada.enqueue(QUEUE, "plain", id="plain", delay=3600)).is_duplicate
    assert (await ada.enqueue(QUEUE, "plain", id="plain")).is_duplicate
    await ada.enqueue(
        QUEUE, {"to": ["a", 1, None]}, id="full", delay=3600, expires_in=7200, max_attempts=3, priority=10,
        dedupe_key="k", dedupe_period=60, result_ttl=60, events=True, group="g", name="welcome",
    )  # fmt: skip
    assert (await ada.enqueue(QUEUE, 1, id="again", dedupe_key="k")).id == "full"
    assert (await ada.enqueue(QUEUE, 2, id="new", delay=3600, dedupe_key="k", replace=True)).is_replaced
    await ada.enqueue(QUEUE, LONG, id="long", delay=3600)
    await producer.enqueue_many(QUEUE, [1, 2], ids=["one", "two"], tenant=["bo", "cy"], delay=3600)
    await operator.set_limits(QUEUE, "cy", delayed=1)
    with pytest.raises(QuotaExceeded):
        await producer.enqueue(QUEUE, 1, id="three", tenant="cy", delay=3600)
    assert await ada.cancel(QUEUE, ["new", "none"]) == ["ok", "gone"]
    assert await ada.reschedule(QUEUE, ["long", "none"], delay=7200) == ["ok", "gone"]
    with pytest.raises(BadRequest):
        await ada.request("cancel", {"queue": QUEUE, "ids": []})
    with pytest.raises(FairqError, match="operator"):
        await ada.request("queues")
    with pytest.raises(FairqError, match="type"):
        await ada.request("no_such_verb")


async def _work(url: str, ears: Ears, ada: fairq.Client) -> None:
    """Every way in which a handler ends, and all that it may say meanwhile."""
    desk = Desk()
    async with working(desk, url, "worker-1"):
        await ears.answered("attach", "worker-1")
        for word in ("done", "retry", "postpone", "reject", "fail", "then"):
            await ada.enqueue(QUEUE, word, id=word, max_attempts=2 if word == "retry" else 1, events=True)
            await ears.answered("settle", f"ada/{word}'")
        await ada.enqueue(QUEUE, LONG, id="read")
        await ears.answered("settle", "ada/read'")
        task = await ada.enqueue(QUEUE, "enqueue", id="enqueue")
        await ears.answered("progress")
        await ears.answered("enqueue_from")
        assert (await task.state()).progress == 0.5
        desk.go_on.set()
        await ears.answered("settle", "ada/enqueue'")
        batch = await ada.open_batch(QUEUE, id="b0", on_complete="sum")
        await batch.add("done", id="b0-1", result_ttl=600)
        await batch.close()
        await ears.answered("batch_results")
        await ears.answered("settle", "ada/b0-complete")
        one = await ada.enqueue(QUEUE, "done", id="result-1", delay=3600, result_ttl=600)
        two = await ada.enqueue(QUEUE, "reject", id="result-2", delay=3600, result_ttl=600)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_result, one, two)
            await ears.wait(">", "wait_tasks", "result-1", "result-2")
            await one.reschedule()
            await ears.answered("settle", "ada/result-1'")
            await ears.wait("<", "ended", "result-1")
            await two.reschedule()
            await ears.answered("settle", "ada/result-2'")
    await ears.answered("credit")


async def _result(one: EnqueuedTask, two: EnqueuedTask) -> None:
    async def fail() -> None:
        with pytest.raises(fairq.TaskFailed, match="no such address"):
            await two.result()

    async with trio.open_nursery() as nursery:  # both begin in one turn, so that one frame asks for both
        nursery.start_soon(one.result)
        nursery.start_soon(fail)


async def _stop(url: str, ears: Ears, ada: fairq.Client, operator: fairq.OperatorClient) -> None:
    """A task is cancelled, a worker drained, and one ends by itself."""
    desk = Desk()
    async with working(desk, url, "worker-2", prefetch=1):
        task = await ada.enqueue(QUEUE, "hold", id="stopped")
        await ears.wait("<", "push", "ada/stopped'")
        assert [row.worker for row in await operator.workers()] == ["worker-2"]
        assert (await operator.worker_tasks("worker-2")).tasks[0].id == "ada/stopped"
        assert (await task.state()).worker == "worker-2"
        assert await task.cancel() == "running"
        await ears.wait("<", "stop")
        await ears.answered("settle", "release", "ada/stopped'")
        await operator.drain_worker("worker-2")
        await ears.wait("<", "dismiss")
    await ada.enqueue(QUEUE, "done", id="burst")
    worker = fairq.Worker(url, WORKER, 1, name="worker-3")
    worker.task(QUEUE)(desk.work)
    await worker.run(burst=True)
    assert worker.counts["done"] == 1


async def _reconnect(url: str, ears: Ears, ada: fairq.Client) -> None:
    """A connection breaks, and the next one brings the lease, which is extended."""
    desk = Desk()
    async with open_proxy(int(url.rpartition(":")[2])) as proxy, working(desk, proxy_url(proxy), "worker-4"):
        await ada.enqueue(QUEUE, "hold", id="kept")
        await ears.wait("<", "push", "ada/kept'")
        proxy.cut()
        await ears.answered("attach", "worker-4", count=2)
        await ears.answered("settle", "extend", "ada/kept'")
        desk.go_on.set()
        await ears.answered("settle", "ack", "ada/kept'")


def proxy_url(proxy: Proxy) -> str:
    """The URL of a server behind a proxy."""
    return f"ws://127.0.0.1:{proxy.port}"


async def _look(url: str, ada: fairq.Client, operator: fairq.OperatorClient) -> None:
    assert [task.id for task in await ada.peek(QUEUE, 3)] == []
    states = await ada.tasks(QUEUE, ["full", "retry", "reject", "kept", "none"])
    assert [each.state for each in states] == ["cancelled", "delayed", "dead", "done", "unknown"]
    assert (await ada.why(QUEUE, "plain")).state == "delayed"
    assert (await ada.read_events(QUEUE)).events
    assert (await operator.read_events(QUEUE, 1, count=1, tenant="ada")).newest > 1
    await ada.request("report", {"queue": QUEUE})
    async with fairq.open_operator(url, token=VIEWER) as viewer:
        assert [row.queue for row in await viewer.queues()] == [QUEUE, OTHER]
        assert (await viewer.queues(QUEUE))[0].delayed
        assert [row.tenant for row in await viewer.tenants(QUEUE)] == ["ada", "bo", "cy"]
        await viewer.tenants(QUEUE, tenant="ada")
        assert (await viewer.limits(QUEUE, "cy")).limits.delayed == 1
        await viewer.report(QUEUE, "ada")
        assert (await viewer.attempts(QUEUE, tenant="ada", count=5)).ended
        await viewer.history(QUEUE, "24h", tenants=["ada"])
        assert (await viewer.why(QUEUE, "ada/plain")).state == "delayed"
        with pytest.raises(FairqError, match="viewer"):
            await viewer.pause(QUEUE)


async def _batches(ada: fairq.Client) -> None:
    batch = await ada.open_batch(QUEUE, id="b1", max_running=2, on_complete=1, on_success=2, on_death=3, events=True)
    await ada.open_batch(QUEUE, id="b1", max_running=2, on_complete=1, on_success=2, on_death=3, events=True)
    await batch.add_many([1, 2], ids=["b1-1", "b1-2"], delay=3600)
    assert (await batch.state()).total == 2
    await batch.close()
    assert await batch.cancel() == "closed"
    assert (await batch.wait(timeout=20)).cancelled == 2
    await (await ada.open_batch(QUEUE, id="b2")).close()
    assert {each.id async for each in ada.batches(QUEUE, state="complete")} == {"b0", "b1", "b2"}
    assert set(await ada.read_batches(QUEUE, ["b1", "none"])) == {"b1"}
    with pytest.raises(NotFound):
        await ada.batch(QUEUE, "none").state()


async def _schedules(ada: fairq.Client) -> None:
    zone = "Europe/Copenhagen"
    assert len(await ada.schedule(QUEUE, "nightly", {"n": 1}, cron="0 3 * * *", zone=zone, misfire="once")) == 3
    await ada.schedule(QUEUE, "daily", 2, every=86_400, expires_after_start=60, priority=20)
    assert await ada.pause_schedule(QUEUE, "nightly") is False
    assert {row.name for row in await ada.schedules(QUEUE)} == {"nightly", "daily"}
    assert (await ada.read_schedule(QUEUE, "nightly")).zone == zone
    assert await ada.resume_schedule(QUEUE, "nightly") is True
    assert await ada.unschedule(QUEUE, "daily") is True
    with pytest.raises(NotFound):
        await ada.read_schedule(QUEUE, "daily")


async def _bury(ada: fairq.Client, operator: fairq.OperatorClient) -> None:
    letters = ada.dead_letters(QUEUE)
    assert {letter.id async for letter in letters.walk(reason="rejected")} == {"reject", "result-2"}
    assert (await letters.show("reject")).error == "no such address"
    assert (await operator.dead_letters(QUEUE).show("ada/fail")).traceback
    assert [letter.id async for letter in operator.dead_letters(QUEUE).walk(brief=True, error="paper")] == ["ada/fail"]
    with pytest.raises(NotFound):
        await letters.show("none")
    assert await letters.replay(["reject", "none"]) == ["ok", "gone"]
    assert "reject" in [each.id for each in await ada.peek(QUEUE)]
    assert await letters.purge(["fail", "none"]) == ["ok", "gone"]


async def _operate(operator: fairq.OperatorClient) -> None:
    await operator.configure(QUEUE, max_attempts=5)
    version = (await operator.queues(QUEUE))[0].version
    await operator.configure(QUEUE, if_version=version, reserve=1)
    with pytest.raises(FairqError):
        await operator.configure(QUEUE, if_version=version, reserve=2)
    assert await operator.set_weight(QUEUE, "ada", 2.5) == 1
    assert (await operator.set_limits(QUEUE, max_running=7, rate=2.5)).max_running != 7
    assert (await operator.set_limits(QUEUE, rate=None)).rate == 2.5
    assert await operator.set_opening_hours(QUEUE, "mon-fri 8:00-17:00 Europe/Copenhagen") == ""
    await operator.set_opening_hours(QUEUE, "", "ada")
    assert (await operator.limits(QUEUE)).opening_hours
    assert await operator.pause(QUEUE, "ada") is False
    assert await operator.pause(QUEUE) is False
    assert await operator.resume(QUEUE) is True
    assert (await operator.repair_queue(QUEUE)).tenants == 3
    record = TokenRecord("abcdabcd", "tenant", "0" * 64, "ada", ["emails"], label="of a test")
    await operator.create_token(record, expires_in_ms=3_600_000)
    assert [row.id for row in await operator.list_tokens()] == [record.id]
    await operator.revoke_token(record.id)
    with pytest.raises(NotFound):
        await operator.revoke_token(record.id)
    page = await operator.audit(queue=QUEUE, count=3)
    await operator.audit(cursor=page.cursor or "", count=3)
    await operator.audit(by_tenants=True)


async def _webhooks(url: str, operator: fairq.OperatorClient) -> None:
    secret = "whsec_" + "A" * 32
    assert await operator.add_webhook(QUEUE, URL, name="welcome", fan_out=True, secrets=[secret]) == "created"
    assert await operator.pause_webhook(QUEUE, URL, name="welcome") is False
    assert [row.url for row in await operator.webhooks(QUEUE)] == [URL]
    async with fairq.open_client(url, token=WORKER) as worker:
        assert (await worker.request("webhooks", {"queue": QUEUE}))["webhooks"][0]["secrets"] == [secret]
    assert await operator.resume_webhook(QUEUE, URL, name="welcome") is True
    assert await operator.remove_webhook(QUEUE, URL, name="welcome") is True
    with pytest.raises(NotFound):
        await operator.pause_webhook(QUEUE, URL)


async def _delete(ada: fairq.Client, operator: fairq.OperatorClient) -> None:
    assert await ada.cancel_all(QUEUE, older_than=3600) == 0
    assert await ada.cancel_all(QUEUE) > 0
    with pytest.raises(NotEmpty):
        await operator.delete_tenant(QUEUE, "bo")
    await operator.cancel_all(QUEUE, tenant="bo")
    await operator.delete_tenant(QUEUE, "bo")
    with pytest.raises(NotEmpty):
        await operator.delete_queue(QUEUE)
    assert await operator.delete_queue(QUEUE, purge=True)
    with pytest.raises(NotFound):
        await operator.delete_queue(QUEUE)
