"""What OpenTelemetry's own variables say: does a server make spans, and where do they go?

fairq has no exporter of its own: the SDK's are found by their names. Spans are sent by a thread of the SDK, which keeps
at most OTEL_BSP_MAX_QUEUE_SIZE of them (2048) and drops the others. A server without traces serves all the same, so
whatever is wrong with them is logged.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import entry_points, version
from typing import TYPE_CHECKING, Any

import structlog
import trio

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from fairq.server.dispatch.tracing import Tracing

log = structlog.get_logger("fairq.server")

END_S = 5.0  # to send what waits when the server stops
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}  # the exporters' names by protocol


def exporters_asked_for(environment: Mapping[str, str]) -> list[str]:
    """Name the exporters that the variables ask for; none unless they name any, or an endpoint for OTLP."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    default = "otlp" if any(environment.get(name) for name in _ENDPOINTS) else ""
    names = environment.get("OTEL_TRACES_EXPORTER") or default
    return [name.strip() for name in names.split(",") if name.strip() not in ("", "none")]


def _load_exporter(name: str, environment: Mapping[str, str]) -> Any:
    """Make an exporter. Raises: LookupError if it is not installed; whatever the exporter does."""
    protocol = next(filter(None, map(environment.get, _PROTOCOLS)), None)
    if name != "otlp":
        names = [name]
    elif protocol is None:
        names = list(_OTLP.values())  # whichever is installed
    elif protocol in _OTLP:
        names = [_OTLP[protocol]]
    else:
        raise LookupError(f"unknown OTLP protocol {protocol}: expected {' or '.join(_OTLP)}")
    for each in names:
        for found in entry_points(group="opentelemetry_traces_exporter", name=each):
            return found.load()()
    raise LookupError(f"exporter {name} is not installed: pip install opentelemetry-exporter-otlp, for one")


def make_provider(exporters: list[str], environment: Mapping[str, str]) -> TracerProvider:
    """Make the SDK's provider, which reads the other variables itself. Raises: whatever is wrong with them."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    made = [_load_exporter(name, environment) for name in exporters]
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "fairq"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for exporter in made:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


@asynccontextmanager
async def exporting(environment: Mapping[str, str] = os.environ) -> AsyncIterator[Tracing | None]:
    """Give a server its spans while the context lasts, None if none are asked for or they cannot be made.

    A provider that is there already is used (`opentelemetry-instrument fairq serve`), and left as it is.
    """
    if not (exporters := exporters_asked_for(environment)):
        yield None
        return
    try:
        from opentelemetry import trace

        from fairq.server.spans import SpanMaker

        provider = trace.get_tracer_provider()
        own = make_provider(exporters, environment) if isinstance(provider, trace.ProxyTracerProvider) else None
    except Exception as error:  # also of an exporter that cannot be made
        log.error("no traces", why=str(error), exporters=exporters, packages="fairq[otel] opentelemetry-sdk")
        yield None
        return
    log.info("traces are exported", exporters=exporters)
    try:
        yield SpanMaker((own or provider).get_tracer("fairq", version("fairq")))
    finally:
        if own is not None:
            with trio.move_on_after(END_S):
                await trio.to_thread.run_sync(own.shutdown, abandon_on_cancel=True)
