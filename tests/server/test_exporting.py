"""What OpenTelemetry's variables ask of a server, and that nothing about traces keeps it from serving."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence

import pytest
import trio
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from structlog.testing import capture_logs

from fairq.server import exporting as module
from fairq.server.exporting import exporters_asked_for, exporting, make_provider
from fairq.server.spans import SpanMaker
from tests.server.harness import WORKER, raw, running, tenant
from tests.spans import GIVEN

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


ASKED: list[tuple[dict[str, str], list[str]]] = [
    ({}, []),
    ({"OTEL_SERVICE_NAME": "fairq", "OTEL_TRACES_SAMPLER": "always_on"}, []),
    (ENDPOINT, ["otlp"]),
    ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, ["otlp"]),
    ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://127.0.0.1:1"}, []),
    ({"OTEL_TRACES_EXPORTER": "console, otlp"}, ["console", "otlp"]),
    ({"OTEL_TRACES_EXPORTER": "none", **ENDPOINT}, []),
    ({"OTEL_TRACES_EXPORTER": "", **ENDPOINT}, ["otlp"]),
    ({"OTEL_SDK_DISABLED": "TRUE", **ENDPOINT}, []),
]


def test_a_server_makes_spans_if_an_exporter_or_an_endpoint_is_named() -> None:
    for environment, asked in ASKED:
        assert exporters_asked_for(environment) == asked, environment


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"OTEL_TRACES_EXPORTER": "nowhere"}, "exporter nowhere is not installed"),
        ({"OTEL_TRACES_EXPORTER": "console,nowhere"}, "exporter nowhere is not installed"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json", **ENDPOINT}, "unknown OTLP protocol http/json"),
    ],
)
async def test_a_server_whose_spans_cannot_be_made_says_why_and_goes_on(environment: dict[str, str], why: str) -> None:
    before = threading.active_count()
    with capture_logs() as lines:
        async with exporting(environment) as tracing:
            assert tracing is None
    (line,) = lines
    assert (line["event"], line["log_level"]) == ("no traces", "error")
    assert why in line["why"]
    assert threading.active_count() == before


async def test_a_server_without_the_packages_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with capture_logs() as lines:
        async with exporting({"OTEL_TRACES_EXPORTER": "console"}) as tracing:
            assert tracing is None
    assert "opentelemetry-sdk" in lines[0]["packages"]


@pytest.mark.parametrize(
    ("given", "name"),
    [({}, "fairq"), ({"OTEL_SERVICE_NAME": "q1"}, "q1"), ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=q2"}, "q2")],
)
def test_the_service_is_called_fairq_unless_the_operator_names_it(
    given: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in given.items():
        monkeypatch.setenv(variable, value)
    provider = make_provider(["console"], {})
    try:
        assert provider.resource.attributes["service.name"] == name
    finally:
        provider.shutdown()


class Stuck(SpanExporter):
    """An exporter whose collector never answers."""

    def __init__(self) -> None:
        self.is_called, self.end = threading.Event(), threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Wait for the end of the test."""
        self.is_called.set()
        self.end.wait(60)
        return SpanExportResult.FAILURE


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    """A stuck exporter, which ends with the test."""
    exporter = Stuck()
    try:
        yield exporter
    finally:
        exporter.end.set()


async def test_a_collector_that_does_not_answer_holds_up_neither_tasks_nor_the_servers_end(
    server_store: str, stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(*_: object) -> TracerProvider:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(stuck, max_queue_size=20, max_export_batch_size=5))
        return provider

    monkeypatch.setattr(module, "make_provider", make)
    monkeypatch.setattr(module, "END_S", 0.05)
    async with exporting({"OTEL_TRACES_EXPORTER": "console"}) as tracing:
        assert isinstance(tracing, SpanMaker)
        async with (
            running(server_store, tracing=tracing) as served,
            raw(served, tenant("ada")) as ada,
            raw(served, WORKER) as worker,
        ):
            await worker.attach("q", credit=100)
            for n in range(10):
                await ada.enqueue("q", [f"t{n}-{m}" for m in range(10)], trace=GIVEN)
            tasks = await worker.pushed(100)
            await worker.settle("q", "ack", *tasks)
            assert await trio.to_thread.run_sync(stuck.is_called.wait, 20)
