"""Spans that have ended, as tests ask for them."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"  # a trace that is recorded


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    """The spans of a name, in the order in which they ended."""
    return [span for span in spans.get_finished_spans() if span.name == name]


def parent_of(span: ReadableSpan) -> int | None:
    """The id of a span's parent."""
    return span.parent.span_id if span.parent else None


def said(span: ReadableSpan, name: str) -> object:
    return (span.attributes or {})[name]


def times_of(span: ReadableSpan) -> tuple[int, int]:
    """When a span began and ended, in ns."""
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time, span.end_time


def traces_of(found: list[ReadableSpan]) -> set[int]:
    """The ids of the spans' traces."""
    return {span.context.trace_id for span in found if span.context}
