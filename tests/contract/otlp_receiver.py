"""An OTLP/gRPC collector that keeps what it gets, for tests of traces."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as pb_grpc


@dataclass
class Receiver(pb_grpc.TraceServiceServicer):
    """Spans by service name, in order of arrival."""

    endpoint: str = ""
    spans: list[tuple[str, Any]] = field(default_factory=list)

    def Export(self, request: Any, context: Any) -> Any:
        for resource in request.resource_spans:
            names = {item.key: item.value.string_value for item in resource.resource.attributes}
            self.spans.extend((names["service.name"], span) for scope in resource.scope_spans for span in scope.spans)
        return pb.ExportTraceServiceResponse()


@contextmanager
def otlp_receiver() -> Iterator[Receiver]:
    """A collector on a free loopback port, for the length of the block."""
    receiver = Receiver()
    server = grpc.server(ThreadPoolExecutor(2))
    pb_grpc.add_TraceServiceServicer_to_server(receiver, server)
    receiver.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()
