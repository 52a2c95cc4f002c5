"""Spans of a server, by OpenTelemetry: of claims, and of pushes in the traces of their tasks.

A claim brings tasks of many traces, so its span is a root with links to them. A push has one span for each task, a
child of its enqueue's: from the answer of the store until the socket has taken the bytes. Tenants decide which tasks
are traced, and a span costs some 50 us of the server's loop. So tasks beyond MAX_TASKS in a second have none, nor have
those of a tenant beyond MAX_TENANT_TASKS.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from attrs import define, field, frozen
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fairq.model.tasks import Lease
from fairq.model.traces import describe, is_sampled
from fairq.server.dispatch.tracing import Pushes

MAX_TASKS, MAX_TENANT_TASKS = 500, 50  # with spans, in a second

_W3C = TraceContextTextMapPropagator()


@define(eq=False)
class SpanMaker:
    """Makes spans by a tracer; see fairq.server.dispatch.tracing."""

    tracer: Tracer
    _second: int = field(default=0, init=False)
    _chosen: Counter[str] = field(factory=Counter, init=False)  # tasks in this second, by tenant
    _total: int = field(default=0, init=False)

    def claimed(self, server: str, queue: str, leases: Sequence[Lease], began_ns: int) -> ClaimedTasks | None:
        """Make the span of a claim that has been answered, if any of its tasks is traced."""
        traced = {(each.id, each.lease): _W3C.extract({"traceparent": each.trace}) for each in self._choose(leases)}
        if not traced:
            return None
        links = [Link(_context_of(parent), {"messaging.message.id": id}) for (id, _), parent in traced.items()]
        told = describe("claim", "receive", queue, messaging__batch__message_count=len(leases), fairq__server=server)
        span = self.tracer.start_span(f"claim {queue}", Context(), SpanKind.CLIENT, told, links, began_ns)
        ended_ns = time.time_ns()
        span.end(ended_ns)
        claim = span.get_span_context()
        return ClaimedTasks(self.tracer, queue, traced, [Link(claim)] if claim.trace_flags.sampled else [], ended_ns)

    def _choose(self, leases: Sequence[Lease]) -> Iterator[Lease]:
        """Yield the tasks whose trace is recorded, up to the bounds."""
        if (second := int(time.monotonic())) != self._second:
            self._second, self._total = second, 0
            self._chosen.clear()
        for lease in leases:
            if is_sampled(lease.trace) and self._total < MAX_TASKS and self._chosen[lease.tenant] < MAX_TENANT_TASKS:
                self._total += 1
                self._chosen[lease.tenant] += 1
                yield lease


@frozen(eq=False)
class ClaimedTasks:
    """The traced tasks of a claim: id and lease number -> the context that enqueued it."""

    tracer: Tracer
    queue: str
    traced: dict[tuple[str, int], Context]
    links: list[Link]  # to the claim
    claimed_ns: int

    def push(self, worker: str, leases: Sequence[Lease]) -> Pushes:
        """Begin the spans of a push to a worker."""
        return {
            (each.id, each.lease): partial(_end, self._begin(worker, each, parent))
            for each in leases
            if (parent := self.traced.get((each.id, each.lease))) is not None
        }

    def _begin(self, worker: str, lease: Lease, parent: Context) -> Span:
        told = describe(
            "push", "send", self.queue, messaging__message__id=lease.id, fairq__tenant=lease.tenant,
            fairq__attempt=lease.attempt, fairq__worker=worker,
        )  # fmt: skip
        name = f"push {self.queue}"
        return self.tracer.start_span(name, parent, SpanKind.CLIENT, told, self.links, self.claimed_ns)


def _end(span: Span, error: str) -> None:
    if error:
        span.set_status(Status(StatusCode.ERROR, error))
    span.end()


def _context_of(parent: Context) -> SpanContext:
    return trace.get_current_span(parent).get_span_context()
