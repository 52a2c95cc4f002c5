"""A settlement's span lasts until the server has answered, and tells the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import fairq
from fairq.client import worker_run
from fairq.errors import BadRequest
from fairq.server.run import Served
from fairq.store.store import Store
from tests.logs import captured_logs
from tests.server.harness import WORKER
from tests.spans import named, parent_of, said, times_of
from tests.store.proxy import Proxy, open_proxy
from tests.store.waiting import wait_until

from .harness import wait_state, worker_of, working


async def settle_span(spans: InMemorySpanExporter) -> ReadableSpan:
    await wait_until(lambda: len(named(spans, "settle q")) == 1)
    return named(spans, "settle q")[0]


@asynccontextmanager
async def worker_behind_a_proxy(served: Served) -> AsyncIterator[tuple[Proxy, fairq.Worker]]:
    """A proxy, and a worker without handlers yet behind it."""
    async with open_proxy(served.port) as proxy:
        yield proxy, fairq.Worker(f"ws://127.0.0.1:{proxy.port}", WORKER, 1, name="worker-1")


async def test_it_ends_when_the_answer_has_come(served: Served, ada: fairq.Client, spans: InMemorySpanExporter) -> None:
    async with worker_behind_a_proxy(served) as (proxy, app):

        @app.task("q")
        async def handle(task: fairq.Task) -> None:
            proxy.hold()

        async with working(app):
            await wait_state(await ada.enqueue("q", 1), "done")
            assert named(spans, "process q")
            assert not named(spans, "settle q"), "the answer is held"
            proxy.release()
            settle = await settle_span(spans)
    (process,) = named(spans, "process q")
    assert (said(settle, "fairq.outcome"), said(settle, "fairq.answer")) == ("done", "ok")
    assert settle.status.status_code == StatusCode.UNSET
    assert parent_of(settle) == process.context.span_id
    assert times_of(settle)[1] > times_of(process)[1]


async def test_a_repeated_settlement_is_one_span_and_gone(
    served: Served, ada: fairq.Client, spans: InMemorySpanExporter
) -> None:
    async with worker_behind_a_proxy(served) as (proxy, app):

        @app.task("q")
        async def handle(task: fairq.Task) -> None:
            proxy.lose_next_reply()

        async with working(app):
            await ada.enqueue("q", 1)
            settle = await settle_span(spans)
    assert proxy.lost == 1
    assert said(settle, "fairq.answer") == "gone"
    assert settle.status.status_code == StatusCode.UNSET, "the first one did it"


async def test_one_that_comes_too_late_is_an_error(
    served: Served, ada: fairq.Client, spans: InMemorySpanExporter
) -> None:
    app = worker_of(served, 1)

    @app.task("q")
    async def handle(task: fairq.Task) -> None:
        (lease,) = next(iter(served.app.leases.owners.values())).account.held.values()
        await served.app.store.give_back("q", [(f"ada/{task.id}", lease, 0)], "reap")
        app.stop()

    await ada.enqueue("q", 1)
    await app.run()
    settle = await settle_span(spans)
    assert said(settle, "fairq.answer") == "stale"
    assert (settle.status.status_code, settle.status.description) == (StatusCode.ERROR, "the lease was lost")


async def test_one_that_is_refused_is_an_error(
    served: Served, ada: fairq.Client, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> Any:
        raise BadRequest("not so")

    app = worker_of(served, 1)

    @app.task("q")
    async def handle(task: fairq.Task) -> None:
        monkeypatch.setattr(Store, "settle", refuse)

    async with working(app):
        await ada.enqueue("q", 1)
        settle = await settle_span(spans)
    assert said(settle, "fairq.answer") == "error"
    assert (settle.status.status_code, settle.status.description) == (StatusCode.ERROR, "not so")


async def test_one_that_cannot_be_sent_is_not_said_to_be_refused(
    served: Served, ada: fairq.Client, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairq.wire.worker_session.encode_settlement", lambda _: object())
    app = worker_of(served, 1)
    app.task("q")(print)
    with captured_logs() as lines:
        async with working(app):
            await ada.enqueue("q", 1)
            settle = await settle_span(spans)
            (logged,) = (line for line in lines if line["log_level"] == "error")
    assert settle.status.description == "the settle request is not JSON: Type is not JSON serializable: object"
    assert logged["event"] == "cannot settle a task; it runs again when its lease is over"
    assert logged["error"] == settle.status.description


async def test_one_whose_result_no_message_can_carry_says_that_its_task_is_dead(
    served: Served, ada: fairq.Client, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairq.wire.settlements.MAX_COST", 0)
    app = worker_of(served, 1)

    @app.task("q")
    async def handle(task: fairq.Task) -> str:
        return "r"

    async with working(app):
        await ada.enqueue("q", 1, result_ttl=60)
        settle = await settle_span(spans)
    assert (said(settle, "fairq.outcome"), said(settle, "fairq.answer")) == ("dead", "ok")
    assert (settle.status.status_code, "too large" in str(settle.status.description)) == (StatusCode.ERROR, True)


async def test_one_without_an_answer_ends_with_its_worker(
    served: Served, ada: fairq.Client, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_run, "GIVE_BACK_S", 0.01)
    async with worker_behind_a_proxy(served) as (proxy, app):
        handled = anyio.Event()

        @app.task("q")
        async def handle(task: fairq.Task) -> None:
            proxy.hold()
            handled.set()

        async with working(app):
            await ada.enqueue("q", 1)
            await handled.wait()
        settle = await settle_span(spans)
    assert said(settle, "fairq.answer") == "unknown"
    assert settle.status.status_code == StatusCode.ERROR
