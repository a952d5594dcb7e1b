"""Tracing: the SDK's set-up in one place, and trace context across processes.

Off unless the environment names a collector (OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT); all
other settings are OpenTelemetry's own variables. A stream outlives its spans, so context travels in each of its messages
as a W3C traceparent, and in metadata for single calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

TRACEPARENT = "traceparent"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_PROPAGATOR = TraceContextTextMapPropagator()


def configured() -> bool:
    """Whether the environment names a collector."""
    return any(os.environ.get(name) for name in _ENDPOINTS) and os.environ.get("OTEL_SDK_DISABLED", "") != "true"


def start(service: str) -> Callable[[], None]:
    """Begins exporting spans as `service`, if configured. The result flushes and ends it."""
    if not configured():
        return lambda: None
    # The SDK is slow to import and most runs do without it.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name = os.environ.get("OTEL_SERVICE_NAME") or service
    provider = TracerProvider(resource=Resource.create({"service.name": name, "service.namespace": "draftproof"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def tracer() -> trace.Tracer:
    """The services' tracer; it does nothing while tracing is off."""
    return trace.get_tracer("draftproof.services")


def traceparent() -> str:
    """The present span's context for a message; "" where there is none."""
    if not trace.get_current_span().get_span_context().is_valid:
        return ""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier.get(TRACEPARENT, "")


def parent_of(header: str) -> context.Context | None:
    """The context that a message carries; None where it carries none."""
    return _PROPAGATOR.extract({TRACEPARENT: header}) if header else None


@contextmanager
def span(name: str, header: str, attributes: Mapping[str, str | int]) -> Iterator[trace.Span]:
    """A server-side span below the caller's; none where nobody traces."""
    if not header and isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        yield trace.INVALID_SPAN
        return
    with tracer().start_as_current_span(
        name, context=parent_of(header), kind=trace.SpanKind.SERVER, attributes=dict(attributes)
    ) as current:
        yield current
