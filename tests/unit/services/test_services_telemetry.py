"""Where traces and metrics go is said by OpenTelemetry's own variables."""

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.util._once import Once

from services import telemetry

BOTH, TRACES, METRICS = (f"OTEL_EXPORTER_OTLP_{part}ENDPOINT" for part in ("", "TRACES_", "METRICS_"))


@pytest.mark.parametrize(
    ("variables", "traces", "metrics"),
    [
        ({}, "", ""),
        ({BOTH: "http://a"}, "http://a", "http://a"),
        ({TRACES: "http://t"}, "http://t", ""),
        ({METRICS: "http://m"}, "", "http://m"),
        ({BOTH: "http://a", METRICS: "http://m"}, "http://a", "http://m"),
        ({BOTH: "http://a", "OTEL_METRICS_EXPORTER": "none"}, "http://a", ""),
        ({BOTH: "http://a", "OTEL_SDK_DISABLED": "true"}, "", ""),
    ],
)
def test_each_signal_goes_where_its_own_endpoint_or_else_the_common_one_says(
    variables: dict[str, str], traces: str, metrics: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (BOTH, TRACES, METRICS, "OTEL_METRICS_EXPORTER", "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert telemetry.collector("traces") == traces
    assert telemetry.collector("metrics") == metrics


def test_a_call_is_in_no_trace_until_it_has_a_parent_or_a_provider_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    assert telemetry.untraced("")
    assert not telemetry.untraced("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    with telemetry.span("call", "", {}) as none:
        assert not none.is_recording()
    trace.set_tracer_provider(TracerProvider())
    assert not telemetry.untraced("")
    with telemetry.span("call", "", {"of": "a test"}) as span:
        assert span.is_recording()
        assert trace.get_current_span() is span


def test_a_provider_that_the_environment_names_counts_as_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(telemetry, "_PROVIDER_NAMED", True)
    assert not telemetry.untraced("")


def test_a_message_carries_the_present_spans_context_and_nothing_where_there_is_none() -> None:
    header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert telemetry.traceparent() == ""
    parent = telemetry.parent_of(header)
    assert parent is not None
    for held, told in ((parent, header), (context.set_value("other", 1), "")):
        token = context.attach(held)
        assert telemetry.traceparent() == told
        context.detach(token)
