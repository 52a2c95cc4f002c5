"""One trace from enqueue to handler, whatever becomes of the attempts; nothing of it unless tracing is on."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest
import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import fairq
from fairq import otel
from fairq.model.tasks import TRACE
from tests.server.harness import WORKER, raw, running, tenant
from tests.spans import GIVEN, named, parent_of, said, traces_of

from .runtimes import Service, on_both, wait_until, working


@on_both
async def test_an_enqueue_its_attempts_and_what_they_enqueue_are_one_trace(
    service: Service, spans: InMemorySpanExporter
) -> None:
    app, inner = service.worker(), list[int]()

    @app.task("first")
    async def first(task: fairq.Task) -> None:
        inner.append(trace.get_current_span().get_span_context().span_id)
        if task.attempt == 1:
            raise fairq.Retry("once more", delay=0.01)
        await task.enqueue("second", None)
        task.then("third", None)

    @app.task("second")
    def second(task: fairq.Task) -> None:
        inner.append(trace.get_current_span().get_span_context().span_id)

    @app.task("third")
    async def third(task: fairq.Task) -> None:
        pass

    async with service.client() as client, working(app):
        await client.enqueue("first", 1, name="welcome")
        await wait_until(lambda: len(named(spans, "settle third")) == 1 and len(named(spans, "settle second")) == 1)
    (enqueue,), (one, two) = named(spans, "enqueue first"), named(spans, "process first")
    assert len(traces_of(list(spans.get_finished_spans()))) == 1
    assert parent_of(enqueue) is None
    assert parent_of(one) == parent_of(two) == enqueue.context.span_id
    assert (one.status.status_code, one.status.description) == (StatusCode.ERROR, "once more")
    assert two.status.status_code == StatusCode.UNSET
    assert [said(span, "fairq.attempt") for span in (one, two)] == [1, 2]
    assert [said(span, "fairq.outcome") for span in (one, two)] == ["retry", "done"]
    assert inner[:2] == [one.context.span_id, two.context.span_id], "the handler's own spans nest"
    for queue in ("second", "third"):
        (sent,), (run,) = named(spans, f"enqueue {queue}"), named(spans, f"process {queue}")
        assert parent_of(sent) == two.context.span_id
        assert parent_of(run) == sent.context.span_id
    assert inner[2] == named(spans, "process second")[0].context.span_id, "in threads too"
    assert parent_of(named(spans, "settle first")[0]) == one.context.span_id


@on_both
async def test_each_of_many_tasks_is_in_the_trace_of_their_enqueue(
    service: Service, spans: InMemorySpanExporter
) -> None:
    app = service.worker()

    @app.task("q")
    async def handle(task: fairq.Task) -> None:
        pass

    async with service.client() as client, working(app):
        await client.enqueue_many("q", [1, 2, 3])
        batch = await client.open_batch("q")
        await batch.add(4)
        await wait_until(lambda: len(named(spans, "settle q")) == 4)
    many, one = named(spans, "enqueue q")
    assert said(many, "messaging.batch.message_count") == 3
    parents = [parent_of(span) for span in named(spans, "process q")]
    assert sorted(map(str, parents)) == sorted(map(str, [many.context.span_id] * 3 + [one.context.span_id]))


@on_both
async def test_a_task_without_a_trace_begins_one(service: Service, spans: InMemorySpanExporter) -> None:
    app = service.worker()

    @app.task("q")
    async def handle(task: fairq.Task) -> None:
        pass

    otel.uninstrument()
    async with service.client() as client:
        await client.enqueue("q", 1)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    otel.instrument(provider)
    async with working(app):
        await wait_until(lambda: len(named(spans, "settle q")) == 1)
    assert parent_of(named(spans, "process q")[0]) is None


@pytest.mark.parametrize(("header", "passed_on"), [(GIVEN, GIVEN), ("nonsense", None), (GIVEN + "-x", None)])
async def test_http_takes_a_traceparent_and_passes_over_a_wrong_one(
    server_store: str, header: str, passed_on: str | None
) -> None:
    with trio.fail_after(30):
        async with running(server_store, http_port=0) as served, raw(served, WORKER) as worker:
            assert served.http is not None
            base = f"http://{served.http.host}:{served.http.port}"
            headers = {"Authorization": f"Bearer {tenant('ada')}", "traceparent": header}
            async with httpx.AsyncClient(base_url=base, headers=headers, timeout=20) as client:
                one = await client.post("/v1/queues/q/tasks", json={"payload": 1})
                many = await client.post("/v1/queues/q/tasks", json={"tasks": [{"payload": 1}, {"payload": 2}]})
            assert (one.status_code // 100, many.status_code // 100) == (2, 2)
            await worker.attach("q", credit=5)
            assert [task.get("trace") for task in await worker.pushed(3)] == [passed_on] * 3


def test_nothing_of_opentelemetry_is_imported_unless_it_is_asked_for() -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import fairq, fairq.sync, fairq.testing, fairq.client.worker_run, fairq.client.links, fairq.server.run\n"
        "assert fairq.Client and fairq.Worker\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry.')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_what_is_sent_is_what_servers_take(spans: InMemorySpanExporter) -> None:
    from fairq.client import tracing
    from fairq.model.tasks import NewTask

    with tracing.active.enqueueing("q", [NewTask("a", b"1"), NewTask("b", b"1", trace=GIVEN)]) as (one, two):
        assert TRACE.check(one.trace, "trace")
        assert two.trace == GIVEN
