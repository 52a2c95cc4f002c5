"""Spans of what clients and workers do, by OpenTelemetry: `pip install 'fairq[otel]'`, and `instrument()` in a program.

A task carries the W3C `traceparent` of the span that enqueued it, up to its last attempt: an enqueue, the attempts
of its task and what their handlers do are one trace. `tracestate` and baggage do not travel.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fairq.client import tracing

if TYPE_CHECKING:
    from fairq.client.tracing import EndSettling
    from fairq.model.tasks import NewTask, Settlement
    from fairq.wire.frames import PushedTask

T = TypeVar("T")

_W3C = TraceContextTextMapPropagator()


def instrument(provider: TracerProvider | None = None) -> None:
    """Make spans from now on, in this process; by the global provider unless one is given."""
    tracing.active = _Tracing(trace.get_tracer("fairq", version("fairq"), provider))


def uninstrument() -> None:
    """Make no more spans."""
    tracing.active = tracing.Tracing()


class _Tracing(tracing.Tracing):
    """Makes spans by a tracer."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def enqueueing(self, queue: str, tasks: Sequence[NewTask]) -> Iterator[Sequence[NewTask]]:
        if len(tasks) == 1:
            attributes = _describe("enqueue", "send", queue, messaging__message__id=tasks[0].id)
        else:
            attributes = _describe("enqueue", "send", queue, messaging__batch__message_count=len(tasks))
        with self._tracer.start_as_current_span(f"enqueue {queue}", kind=SpanKind.PRODUCER, attributes=attributes):
            carrier: dict[str, str] = {}
            _W3C.inject(carrier)
            parent = carrier.get("traceparent", "")
            yield [task._replace(trace=task.trace or parent) for task in tasks]

    async def processing(self, queue: str, task: PushedTask, attempt: Coroutine[Any, Any, T]) -> T:
        parent = _W3C.extract({"traceparent": task.trace}, Context())
        attributes = _describe(
            "process", "process", queue, messaging__message__id=task.id, fairq__tenant=task.tenant,
            fairq__attempt=task.attempt, fairq__name=task.name,
        )  # fmt: skip
        with self._tracer.start_as_current_span(f"process {queue}", parent, SpanKind.CONSUMER, attributes):
            return await attempt

    def settling(self, queue: str, task: PushedTask, how: Settlement, outcome: str) -> EndSettling:
        processing = trace.get_current_span()
        processing.set_attribute("fairq.outcome", outcome)
        if how.action in ("nack", "reject"):
            processing.set_status(Status(StatusCode.ERROR, how.error))
        attributes = _describe("settle", "settle", queue, messaging__message__id=task.id, fairq__outcome=outcome)
        span = self._tracer.start_span(f"settle {queue}", kind=SpanKind.CLIENT, attributes=attributes)

        def end(sent: Settlement | None, answer: str, error: str) -> None:
            span.set_attribute("fairq.answer", answer)
            if sent is not None and sent.action != how.action:  # it could not be sent as meant
                span.set_attribute("fairq.outcome", "dead")
                error = error or sent.error
            if answer == "stale":
                error = "the lease was lost"
            if error:
                span.set_status(Status(StatusCode.ERROR, error))
            span.end()

        return end


def _describe(operation: str, kind: str, queue: str, **more: str | int) -> Mapping[str, str | int]:
    """Describe an operation on tasks, in the words of OpenTelemetry's conventions (in development); __ is a dot."""
    named = {
        "messaging.system": "fairq",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": queue,
    }
    return named | {name.replace("__", "."): value for name, value in more.items()}
