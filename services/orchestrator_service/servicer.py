"""GenerateService over an orchestrator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol

from opentelemetry import context as otel_context

from orchestrator.events import GenerateEvent
from orchestrator.request import MAX_DEADLINE_MS, GenerateRequest
from protos.draftproof.v1 import generate_pb2 as pb
from protos.draftproof.v1 import generate_pb2_grpc
from services import telemetry
from services.ahead import ahead
from services.status import answering
from services.wire.generate import decode_request, encode_event

SERVICE: str = pb.DESCRIPTOR.services_by_name["GenerateService"].full_name
# What is left of a caller's deadline for the last message to reach it.
DEADLINE_MARGIN_S = 0.05


class Generating(Protocol):
    """What is served: orchestrator.Orchestrator, or a client of one."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateEvent]: ...


class GenerateServicer(generate_pb2_grpc.GenerateServiceServicer):
    """Serves `orchestrator`."""

    def __init__(self, orchestrator: Generating) -> None:
        self._orchestrator = orchestrator

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        """A client that goes away ends its generation: closing the iterator closes the sessions."""
        header = str(dict(context.invocation_metadata() or ()).get(telemetry.TRACEPARENT, ""))
        async with answering(context):
            asked = _within_deadline(decode_request(request), context.time_remaining())
            parent = telemetry.parent_of(header)
            if parent is not None:
                # The handler runs in a context of its own, so nothing outlives it.
                otel_context.attach(parent)
            async with aclosing(ahead(self._orchestrator.generate(asked))) as events:
                async for event in events:
                    yield encode_event(event)


def _within_deadline(request: GenerateRequest, remaining_s: float | None) -> GenerateRequest:
    """The call's own deadline bounds the request's, so that the client hears the end instead of a broken call."""
    if remaining_s is None:
        return request
    left_ms = max(1, int((remaining_s - DEADLINE_MARGIN_S) * 1000))
    given = request.deadline_ms
    # A wrong deadline stays as it is: the orchestrator refuses it by name.
    if given is not None and not left_ms < given <= MAX_DEADLINE_MS:
        return request
    return replace(request, deadline_ms=min(left_ms, MAX_DEADLINE_MS))
