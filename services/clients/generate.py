"""Generate over gRPC, as the orchestrator's own method: a request in, events out."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import grpc

from orchestrator.events import GenerateEvent
from orchestrator.request import GenerateRequest
from protos.draftproof.v1 import generate_pb2_grpc
from services import telemetry
from services.clients.channel import open_channel
from services.status import error_of_call
from services.wire.generate import decode_event, encode_request


class GenerateClient:
    """endpoint: host:port of the orchestrator service. Use `close` when done."""

    def __init__(self, endpoint: str) -> None:
        self._channel = open_channel(endpoint)
        self._stub = generate_pb2_grpc.GenerateServiceStub(self._channel)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent]:
        """Chunks and at last one Final. Raises contracts' errors; ending the iteration early cancels the call."""
        header = telemetry.traceparent()
        metadata = ((telemetry.TRACEPARENT, header),) if header else ()
        running = self._stub.Generate(encode_request(request), metadata=metadata)
        try:
            async for message in running:
                yield decode_event(message)
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error) from error
        finally:
            running.cancel()

    async def close(self) -> None:
        """Ends the channel."""
        await self._channel.close()
