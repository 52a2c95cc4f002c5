"""A server's spans of claims and pushes: for recorded traces only, bounded, and none unless it is told to."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import httpx
import pytest
from attrs import frozen
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from fairq.model.tasks import Lease
from fairq.server.net import socket_connection
from fairq.server.net.socket_connection import SocketConnection
from fairq.server.run import Served
from fairq.server.spans import MAX_TASKS, MAX_TENANT_TASKS, SpanMaker
from fairq.tokens import hash_token, make_token
from fairq.wire.terms import Role
from tests.server.harness import OPERATOR, WORKER, raw, running, tenant
from tests.spans import GIVEN, UNSAMPLED, named, parent_of, said, times_of
from tests.store.waiting import wait_until

PARENT = int(GIVEN[36:52], 16)
SECRET = "secret-payload"


@frozen
class Traced:
    """A server that makes spans, and those that have ended."""

    served: Served
    spans: InMemorySpanExporter

    async def ended(self, name: str, count: int) -> list[ReadableSpan]:
        """Wait until so many spans of a name have ended."""
        await wait_until(lambda: len(named(self.spans, name)) >= count)
        return named(self.spans, name)


def maker() -> tuple[SpanMaker, InMemorySpanExporter]:
    """What makes spans, and where they are when they have ended."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return SpanMaker(provider.get_tracer("test")), exporter


@asynccontextmanager
async def traced_server(store: str, **settings: object) -> AsyncIterator[Traced]:
    """A real server with spans."""
    tracing, exporter = maker()
    async with running(store, tracing=tracing, **settings) as served:
        yield Traced(served, exporter)


@pytest.fixture
async def traced(server_store: str) -> AsyncIterator[Traced]:
    """A server with spans, also over HTTP."""
    async with traced_server(server_store, http_port=0) as found:
        yield found


async def test_a_push_is_in_the_trace_of_its_task_and_linked_to_the_claim(traced: Traced) -> None:
    async with raw(traced.served, tenant("ada")) as ada, raw(traced.served, WORKER) as worker:
        await ada.enqueue("q", [SECRET], trace=GIVEN)
        await worker.attach("q", name="anna")
        (task,) = await worker.pushed(1)
        ((push,), (claim,)) = await traced.ended("push q", 1), await traced.ended("claim q", 1)
    assert task["trace"] == GIVEN, "workers get the trace as it was enqueued"
    assert (parent_of(push), push.context.trace_id) == (PARENT, int(GIVEN[3:35], 16))
    assert dict(push.attributes or {}) == {
        "messaging.system": "fairq", "messaging.operation.name": "push", "messaging.operation.type": "send",
        "messaging.destination.name": "q", "messaging.message.id": f"ada/{SECRET}", "fairq.tenant": "ada",
        "fairq.attempt": 1, "fairq.worker": "anna",
    }  # fmt: skip
    assert [link.context.span_id for link in push.links] == [claim.context.span_id]
    assert (push.kind, claim.kind) == (SpanKind.CLIENT, SpanKind.CLIENT)
    assert parent_of(claim) is None
    assert [link.context.span_id for link in claim.links] == [PARENT]
    assert said(claim, "messaging.batch.message_count") == 1
    assert said(claim, "fairq.server") == traced.served.app.name
    (began, claimed), (handed, ended) = times_of(claim), times_of(push)
    assert began <= claimed == handed <= ended <= time.time_ns()


async def test_one_claim_has_a_span_with_a_link_for_each_traced_task(traced: Traced) -> None:
    async with raw(traced.served, tenant("ada")) as ada, raw(traced.served, WORKER) as worker:
        tasks = [{"id": f"t{n}", "payload": n, "trace": GIVEN if n % 2 else UNSAMPLED} for n in range(8)]
        await ada.ask("enqueue", queue="q", tasks=[*tasks, {"id": "none", "payload": 0}])
        await worker.attach("q", credit=20)
        assert len(await worker.pushed(9)) == 9
        pushes = await traced.ended("push q", 4)
    (claim,) = named(traced.spans, "claim q")
    ids = [f"ada/t{n}" for n in (1, 3, 5, 7)]
    assert [(link.attributes or {})["messaging.message.id"] for link in claim.links] == ids
    assert sorted(str(said(span, "messaging.message.id")) for span in pushes) == ids
    assert said(claim, "messaging.batch.message_count") == 9
    assert len(traced.spans.get_finished_spans()) == 5


async def test_claims_without_a_recorded_trace_have_no_spans(traced: Traced) -> None:
    async with raw(traced.served, tenant("ada")) as ada, raw(traced.served, WORKER) as worker:
        await ada.enqueue("q", ["a"])
        await ada.enqueue("q", ["b"], trace=UNSAMPLED)
        await worker.attach("q", credit=5)
        await worker.pushed(2)
        await worker.quiet()
    assert traced.spans.get_finished_spans() == ()


async def test_each_attempt_has_a_push_of_its_own(traced: Traced) -> None:
    async with raw(traced.served, tenant("ada")) as ada, raw(traced.served, WORKER) as worker:
        await ada.enqueue("q", ["a"], trace=GIVEN)
        await worker.attach("q")
        await worker.settle("q", "nack", *await worker.pushed(1), delay_ms=0)
        await worker.pushed(1)
        pushes = await traced.ended("push q", 2)
    assert [said(span, "fairq.attempt") for span in pushes] == [1, 2]
    assert {parent_of(span) for span in pushes} == {PARENT}


async def test_a_push_lasts_until_the_socket_has_taken_it(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker does not read, and the tasks are more than the sockets' buffers hold."""
    monkeypatch.setattr(socket_connection, "MAX_UNSENT_BYTES", 1 << 30)
    async with raw(traced.served, tenant("ada")) as ada, raw(traced.served, WORKER) as worker:
        for n in range(24):
            await ada.ask("enqueue", queue="q", tasks=[{"id": f"t{n}", "payload": "x" * 900_000, "trace": GIVEN}])
        await worker.attach("q", credit=24)
        await wait_until(lambda: len(traced.served.app.leases.owners) == 24)
        began = len(named(traced.spans, "push q"))
        assert began < 24, "some wait for the socket"
        assert len(await worker.pushed(24)) == 24
        pushes = await traced.ended("push q", 24)
    assert {span.status.status_code for span in pushes} == {StatusCode.UNSET}


@pytest.mark.parametrize("end", ["broken", "revoked"])
async def test_a_push_to_a_connection_that_ends_first_is_an_error(
    server_store: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_connection, "MAX_UNSENT_BYTES", 1 << 30)
    async with (
        traced_server(server_store, reconnect_grace=0) as traced,
        raw(traced.served, tenant("ada")) as ada,
        raw(traced.served, OPERATOR) as operator,
    ):
        for n in range(24):
            await ada.ask("enqueue", queue="q", tasks=[{"id": f"t{n}", "payload": "x" * 900_000, "trace": GIVEN}])
        app, (id, token) = traced.served.app, make_token(Role.WORKER)
        await operator.ask("create_token", id=id, role="worker", hash=hash_token(token))
        async with raw(traced.served, token) as worker:
            await worker.attach("q", credit=24)
            await wait_until(lambda: len(app.leases.owners) == 24)
            (owner,) = set(app.leases.owners.values())
            if end == "revoked":
                await operator.ask("revoke_token", id=id)
                await wait_until(lambda: owner.closing is not None)
            else:
                worker.transport.socket.shutdown(socket.SHUT_RDWR)
        pushes = await traced.ended("push q", 24)
        assert not app.leases.owners
    assert "the connection ended first" in {span.status.description for span in pushes}


async def test_tasks_over_http_have_a_push_too(traced: Traced) -> None:
    assert traced.served.http is not None
    base = f"http://{traced.served.http.host}:{traced.served.http.port}"
    async with (
        httpx.AsyncClient(base_url=base, headers={"Authorization": f"Bearer {WORKER}"}, timeout=20) as client,
        raw(traced.served, tenant("ada")) as ada,
    ):
        await ada.enqueue("q", ["a"], trace=GIVEN)
        answer = await client.post("/v1/queues/q/claims", json={"worker": "anna", "wait": 5})
        assert [task["id"] for task in answer.json()["tasks"]] == ["ada/a"], answer.text
        (push,) = await traced.ended("push q", 1)
    assert (parent_of(push), said(push, "fairq.worker")) == (PARENT, "anna")
    assert push.status.status_code == StatusCode.UNSET


async def test_a_server_that_is_not_told_to_makes_no_spans(served: Served) -> None:
    assert served.app.tracing is None
    async with raw(served, tenant("ada")) as ada, raw(served, WORKER) as worker:
        await ada.enqueue("q", ["a"], trace=GIVEN)
        await worker.attach("q")
        await worker.pushed(1)
        (owner,) = set(served.app.leases.owners.values())
        assert isinstance(owner, SocketConnection)
        assert owner._pushes == []


def leases(owner: str, count: int) -> list[Lease]:
    """Leases of traced tasks."""
    return [Lease(f"{owner}/{n}", n, 1, 3, owner, 0, 0, 0, b"1", trace=GIVEN) for n in range(count)]


def frozen_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Have the spans' clock stand still; returns what sets it."""
    now = [1000.0]
    monkeypatch.setattr("fairq.server.spans.time.monotonic", lambda: now[0])
    return lambda at: now.__setitem__(0, at)


def links_of(spans: InMemorySpanExporter) -> Sequence[int]:
    """How many tasks each claim's span is linked to."""
    return [len(span.links) for span in named(spans, "claim q")]


def test_a_tenant_that_has_all_its_tasks_traced_has_some_spans_in_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    tracing, spans = maker()
    set_clock = frozen_clock(monkeypatch)
    assert tracing.claimed("s", "q", leases("noisy", 150), 1)
    assert tracing.claimed("s", "q", leases("noisy", 150), 1) is None
    assert tracing.claimed("s", "q", [*leases("noisy", 10), *leases("ada", 3)], 1)
    set_clock(1001.5)
    assert tracing.claimed("s", "q", leases("noisy", 2), 1)
    assert links_of(spans) == [MAX_TENANT_TASKS, 3, 2]


def test_all_tenants_together_have_some_spans_in_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    tracing, spans = maker()
    frozen_clock(monkeypatch)
    for n in range(2 * MAX_TASKS // MAX_TENANT_TASKS):
        tracing.claimed("s", "q", leases(f"t{n}", MAX_TENANT_TASKS), 1)
    assert sum(links_of(spans)) == MAX_TASKS
    assert len(tracing._chosen) <= MAX_TASKS
