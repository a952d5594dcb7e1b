"""Traces and metrics: the SDK's set-up in one place, and trace context across processes.

Each is off unless the environment names a collector (OTEL_EXPORTER_OTLP_ENDPOINT, or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT
and OTEL_EXPORTER_OTLP_METRICS_ENDPOINT for one of them); all other settings are OpenTelemetry's own variables
(OTEL_METRIC_EXPORT_INTERVAL, OTEL_TRACES_EXPORTER=none ...). A stream outlives its spans, so context travels in each of its
messages as a W3C traceparent, and in metadata for single calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal

from opentelemetry import context, metrics, trace
from opentelemetry.environment_variables import OTEL_PYTHON_TRACER_PROVIDER
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

TRACEPARENT = "traceparent"
Signal = Literal["traces", "metrics"]
SIGNALS: tuple[Signal, ...] = ("traces", "metrics")
_SHUTDOWN_MS = 5_000.0
_PROPAGATOR = TraceContextTextMapPropagator()
_UNTRACED = nullcontext(trace.INVALID_SPAN)
_PROVIDER_NAMED = OTEL_PYTHON_TRACER_PROVIDER in os.environ


def collector(signal: Signal) -> str:
    """Where the environment sends the signal; "" where it goes nowhere."""
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if off or os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "").strip() == "none":
        return ""
    own = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT")
    return own or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")


def start(service: str) -> Callable[[], None]:
    """Begins exporting spans and metrics as `service`, each where the environment names a collector for it. The result
    flushes and ends both.
    """
    begun = tuple(signal for signal in SIGNALS if collector(signal))
    if not begun:
        return lambda: None
    # The SDK is slow to import and most runs do without it.
    from opentelemetry.sdk.resources import Resource

    name = os.environ.get("OTEL_SERVICE_NAME") or service
    resource = Resource.create({"service.name": name, "service.namespace": "draftproof"})
    ends = [_START[signal](resource) for signal in begun]

    def stop() -> None:
        for end in ends:
            end()

    return stop


def _start_traces(resource: Resource) -> Callable[[], None]:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _start_metrics(resource: Resource) -> Callable[[], None]:
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource=resource)
    metrics.set_meter_provider(provider)
    return lambda: provider.shutdown(timeout_millis=_SHUTDOWN_MS)


_START: Mapping[Signal, Callable[[Resource], Callable[[], None]]] = {
    "traces": _start_traces,
    "metrics": _start_metrics,
}


def tracer() -> trace.Tracer:
    """The services' tracer; it does nothing while tracing is off."""
    return trace.get_tracer("draftproof.services")


def traceparent() -> str:
    """The present span's context for a message; "" where there is none."""
    # An empty context holds no span, and no round of a request that nobody traces has any other.
    if not context.get_current() or not trace.get_current_span().get_span_context().is_valid:
        return ""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier.get(TRACEPARENT, "")


def parent_of(header: str) -> context.Context | None:
    """The context that a message carries; None where it carries none."""
    return _PROPAGATOR.extract({TRACEPARENT: header}) if header else None


def untraced(header: str) -> bool:
    """Whether a call under this header is in nobody's trace: it has no parent, and no provider was set here.

    OpenTelemetry's own look at its provider asks the environment each time, which takes ten times as long as the rest.
    """
    return not header and trace._TRACER_PROVIDER is None and not _PROVIDER_NAMED


def span(name: str, header: str, attributes: Mapping[str, str | int]) -> AbstractContextManager[trace.Span]:
    """A server-side span below the caller's; none where nobody traces."""
    if untraced(header):
        return _UNTRACED
    return tracer().start_as_current_span(
        name, context=parent_of(header), kind=trace.SpanKind.SERVER, attributes=dict(attributes)
    )
