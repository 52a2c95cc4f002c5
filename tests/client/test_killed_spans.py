"""A worker's process that dies between process and settle leaves its trace to the next attempt."""

from __future__ import annotations

import signal
import sys

import pytest
import trio
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import fairq
from tests.cli.harness import environment
from tests.server.harness import WORKER, running, tenant, url_of
from tests.spans import named, parent_of, said, traces_of
from tests.store.waiting import wait_until

from .harness import worker_of, working

PROGRAM = """
import os, signal, sys
import anyio
import fairq
from fairq import otel
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter

class Printed(SpanExporter):
    def export(self, spans):
        for span in spans:
            print(span.name.replace(" ", "-"), span.context.trace_id, span.context.span_id, flush=True)

class Killer(SpanProcessor):
    def on_start(self, span, parent_context=None):
        if span.name == "settle q":  # the handler has ended, and nothing of that was sent
            os.kill(os.getpid(), signal.SIGKILL)

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(Printed()))
provider.add_span_processor(Killer())
otel.instrument(provider)
app = fairq.Worker(sys.argv[1], sys.argv[2], name="doomed")

@app.task("q")
async def handle(task):
    with provider.get_tracer("user").start_as_current_span("work"):
        await task.enqueue("second", None)

anyio.run(app.run)
"""


@pytest.mark.deep("kills")
async def test_the_second_attempt_is_beside_the_first_whose_process_was_killed(
    server_store: str, spans: InMemorySpanExporter
) -> None:
    with trio.fail_after(60):
        async with (
            running(server_store, reconnect_grace=0) as served,
            fairq.open_client(url_of(served), token=tenant("ada")) as ada,
        ):
            await ada.enqueue("q", 1)
            argv = [sys.executable, "-c", PROGRAM, url_of(served), WORKER]
            died = await trio.run_process(argv, capture_stdout=True, env=environment(), check=False)
            assert died.returncode == -signal.SIGKILL
            app = worker_of(served)

            @app.task("q")
            async def handle(task: fairq.Task) -> None:
                await task.enqueue("second", None)

            @app.task("second")
            async def follow(task: fairq.Task) -> None:
                pass

            async with working(app):
                await wait_until(lambda: len(named(spans, "settle q")) == len(named(spans, "settle second")) == 1)
    printed = {name: (int(trace), int(id)) for name, trace, id in map(str.split, died.stdout.decode().splitlines())}
    assert list(printed) == ["enqueue-second", "work"], "what had not ended is missing"
    (enqueue,), (process,) = named(spans, "enqueue q"), named(spans, "process q")
    assert traces_of(list(spans.get_finished_spans())) == {trace for trace, _ in printed.values()}, "one trace"
    assert parent_of(process) == enqueue.context.span_id
    assert (said(process, "fairq.attempt"), said(process, "fairq.outcome")) == (2, "done")
    (settle,), (follow_up,) = named(spans, "settle q"), named(spans, "process second")
    assert (parent_of(settle), said(settle, "fairq.answer")) == (process.context.span_id, "ok")
    assert parent_of(follow_up) == printed["enqueue-second"][1], "the first attempt had enqueued it"
