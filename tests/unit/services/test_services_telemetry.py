"""Where traces and metrics go is said by OpenTelemetry's own variables."""

import pytest
from opentelemetry import trace

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


def test_whether_anybody_traces_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = trace.get_tracer_provider

    def counted() -> trace.TracerProvider:
        asked.append(True)
        return real()

    monkeypatch.setattr(trace, "get_tracer_provider", counted)
    telemetry._traced.cache_clear()
    for _ in range(3):
        with telemetry.span("draftproof.test", "", {}) as span:
            assert not span.is_recording()
    assert len(asked) == 1
