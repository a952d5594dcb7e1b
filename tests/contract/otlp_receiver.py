"""An OTLP/gRPC collector that keeps what it gets, for tests of traces and metrics."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc

Points = dict[frozenset[tuple[str, str]], float]


@dataclass
class Receiver:
    """Spans by service name, in order of arrival; of each service's metrics the latest points, by name and labels.

    A sum's or gauge's point is its value, a histogram's is its count.
    """

    endpoint: str = ""
    spans: list[tuple[str, Any]] = field(default_factory=list)
    metrics: dict[str, dict[str, Points]] = field(default_factory=dict)

    def take_metric(self, service: str, metric: Any) -> None:
        data = getattr(metric, metric.WhichOneof("data"))
        points = self.metrics.setdefault(service, {}).setdefault(metric.name, {})
        for point in data.data_points:
            labels = frozenset((item.key, _plain(item.value)) for item in point.attributes)
            points[labels] = point.count if hasattr(point, "count") else point.as_double or point.as_int


def _plain(value: Any) -> str:
    return str(getattr(value, value.WhichOneof("value")))


def _service(resource: Any) -> str:
    return next(_plain(item.value) for item in resource.attributes if item.key == "service.name")


class _Traces(trace_grpc.TraceServiceServicer):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            name = _service(resource.resource)
            self._receiver.spans.extend((name, span) for scope in resource.scope_spans for span in scope.spans)
        return trace_pb.ExportTraceServiceResponse()


class _Metrics(metrics_grpc.MetricsServiceServicer):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    self._receiver.take_metric(_service(resource.resource), metric)
        return metrics_pb.ExportMetricsServiceResponse()


@contextmanager
def otlp_receiver() -> Iterator[Receiver]:
    """A collector on a free loopback port, for the length of the block."""
    receiver = Receiver()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_grpc.add_TraceServiceServicer_to_server(_Traces(receiver), server)
    metrics_grpc.add_MetricsServiceServicer_to_server(_Metrics(receiver), server)
    receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()
