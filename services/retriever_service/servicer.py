"""RetrieverService over a retriever port. A query costs microseconds, so it is answered where it is read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from contracts.ports import RetrieverPort
from protos.draftproof.v1 import retriever_pb2 as pb
from protos.draftproof.v1 import retriever_pb2_grpc
from services import telemetry
from services.status import answering, info_of, typed
from services.wire.retriever import decode_query, encode_index, encode_retrieval

SERVICE: str = pb.DESCRIPTOR.services_by_name["RetrieverService"].full_name


class RetrieverServicer(retriever_pb2_grpc.RetrieverServiceServicer):
    """Serves `port`."""

    def __init__(self, port: RetrieverPort) -> None:
        self._port = port

    async def Describe(
        self, request: pb.RetrieverServiceDescribeRequest, context: Any
    ) -> pb.RetrieverServiceDescribeResponse:
        async with answering(context):
            indexes = await self._port.describe()
            return pb.RetrieverServiceDescribeResponse(indexes=[encode_index(index) for index in indexes])

    async def Retrieve(
        self, requests: AsyncIterator[pb.RetrieveRequest], context: Any
    ) -> AsyncIterator[pb.RetrieveResponse]:
        async with answering(context):
            async for message in requests:
                yield await self._answer(message)

    async def _answer(self, message: pb.RetrieveRequest) -> pb.RetrieveResponse:
        attributes = {"draftproof.index": message.index, "draftproof.index.release": message.release}
        try:
            with telemetry.span("draftproof.retriever.retrieve", message.traceparent, attributes):
                retrieval = await self._port.retrieve(decode_query(message))
            return pb.RetrieveResponse(call_id=message.call_id, retrieval=encode_retrieval(retrieval))
        except Exception as error:
            return pb.RetrieveResponse(call_id=message.call_id, error=info_of(typed(error)))
