"""The service in memory with spans: one trace from enqueue to handler, and nothing else is changed by it."""

from __future__ import annotations

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import fairq
import fairq.testing
from tests.client.conftest import spans
from tests.client.runtimes import on_both
from tests.spans import named, parent_of, said, traces_of

__all__ = ["spans"]

app = fairq.Worker()
seen: list[str] = []


@app.task("emails", name="welcome")
async def send(task: fairq.Task) -> None:
    """Send at the second attempt, and have that written down."""
    seen.append(task.name)
    if task.attempt == 1:
        raise fairq.Retry("busy", delay=60)
    await task.enqueue("emails", None, name="note")


@app.task("emails", name="note")
def note(task: fairq.Task) -> None:
    """Write in a thread."""
    seen.append(task.name)


@on_both
async def test_attempts_and_what_they_enqueue_are_one_trace(spans: InMemorySpanExporter) -> None:
    seen.clear()
    async with fairq.testing.run(app) as service:
        task = await service.enqueue("emails", 1, name="welcome")
        await service.drain()
        assert (task.outcome, task.attempts) == ("done", 2)
    assert seen == ["welcome", "welcome", "note"], "names are as the user gave them"
    assert len(traces_of(list(spans.get_finished_spans()))) == 1
    first, second = named(spans, "enqueue emails")
    assert [parent_of(span) for span in named(spans, "process emails")] == [first.context.span_id] * 2 + [
        second.context.span_id
    ]
    found = [(said(span, "fairq.outcome"), said(span, "fairq.answer")) for span in named(spans, "settle emails")]
    assert found == [("retry", "ok"), ("done", "ok"), ("done", "ok")]


@on_both
async def test_without_tracing_there_is_nothing_of_it() -> None:
    seen.clear()
    async with fairq.testing.run(app) as service:
        task = await service.enqueue("emails", 1, name="welcome")
        await service.drain()
        assert task._record.task.trace == ""
        assert task.outcome == "done"
