"""RetrieverService over a retriever port. A query costs microseconds, so it is answered where it is read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any, Protocol

from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.ports import RetrieverPort
from contracts.retrieval import Retrieval, RetrievalQuery
from protos.draftproof.v1 import retriever_pb2 as pb
from protos.draftproof.v1 import retriever_pb2_grpc
from retriever.corpus import Corpus
from retriever.merging import Question, Reply
from services import telemetry
from services.link.asked import decode_asked
from services.link.codec import encode_found
from services.link.frames import Kind
from services.status import answering, info_of, typed
from services.wire.retriever import decode_batch, decode_output, decode_query, encode_index, encode_retrieval
from services.wire.retriever_parts import decode_part, encode_reply

SERVICE: str = pb.DESCRIPTOR.services_by_name["RetrieverService"].full_name
_RETRIEVE = Kind.RETRIEVE


class PartPort(Protocol):
    """What answers for one group of a release's segments."""

    async def part(self, corpus: Corpus, question: Question) -> Reply | None:
        """The group's reply; None where the live generation is gone."""
        ...


class RetrieverServicer(retriever_pb2_grpc.RetrieverServiceServicer):
    """Serves `port`, and `parts` where it can answer for a group."""

    def __init__(self, port: RetrieverPort, parts: PartPort | None = None) -> None:
        self._port = port
        self._parts = parts

    async def Describe(
        self, request: pb.RetrieverServiceDescribeRequest, context: Any
    ) -> pb.RetrieverServiceDescribeResponse:
        async with answering(context):
            indexes = await self._port.describe(request.tenant)
            return pb.RetrieverServiceDescribeResponse(indexes=[encode_index(index) for index in indexes])

    async def Retrieve(
        self, requests: AsyncIterator[pb.RetrieveRequest], context: Any
    ) -> AsyncIterator[pb.RetrieveResponse]:
        async with answering(context):
            async for message in requests:
                yield await answer_query(self._port, message)

    async def RetrieveBatch(self, request: pb.RetrieveBatchRequest, context: Any) -> pb.RetrieveBatchResponse:
        async with answering(context):
            query, suffixes = decode_batch(request)
            attributes = {"draftproof.index": query.index, "draftproof.index.release": query.release}
            with telemetry.span("draftproof.retriever.retrieve_batch", request.query.traceparent, attributes):
                answers = await self._port.retrieve_batch(query, suffixes)
            return pb.RetrieveBatchResponse(retrievals=[encode_retrieval(found) for found in answers])

    async def Part(self, requests: AsyncIterator[pb.PartRequest], context: Any) -> AsyncIterator[pb.PartResponse]:
        async with answering(context):
            async for message in requests:
                yield await self._part(message)

    async def Record(self, request: pb.RecordRequest, context: Any) -> pb.RecordResponse:
        async with answering(context):
            return pb.RecordResponse(live_generation=await self._port.record(decode_output(request)))

    async def _part(self, message: pb.PartRequest) -> pb.PartResponse:
        attributes = {"draftproof.index": message.index, "draftproof.index.release": message.release}
        try:
            if self._parts is None:
                raise FailedPrecondition("group", "this retriever answers alone")
            with telemetry.span("draftproof.retriever.part", message.traceparent, attributes):
                reply = await self._parts.part(*decode_part(message))
            return encode_reply(reply, call_id=message.call_id)
        except Exception as error:
            return pb.PartResponse(call_id=message.call_id, error=info_of(typed(error)))


async def answer_query(port: RetrieverPort, message: pb.RetrieveRequest) -> pb.RetrieveResponse:
    """What was found, or the error in its place."""
    try:
        retrieval = await _retrieve(port, decode_query(message), message.traceparent)
        return pb.RetrieveResponse(call_id=message.call_id, retrieval=encode_retrieval(retrieval))
    except Exception as error:
        return pb.RetrieveResponse(call_id=message.call_id, error=info_of(typed(error)))


def _retrieve(port: RetrieverPort, query: RetrievalQuery, traceparent: str) -> Awaitable[Retrieval]:
    return port.retrieve(query) if telemetry.untraced(traceparent) else _traced(port, query, traceparent)


async def _traced(port: RetrieverPort, query: RetrievalQuery, traceparent: str) -> Retrieval:
    attributes = {"draftproof.index": query.index, "draftproof.index.release": query.release}
    with telemetry.span("draftproof.retriever.retrieve", traceparent, attributes):
        return await port.retrieve(query)


class RetrieveLink:
    """Queries over a link; nothing is remembered between them."""

    def __init__(self, port: RetrieverPort) -> None:
        self._port = port

    async def answer(self, kind: Kind, payload: bytes) -> bytes:
        if kind is not _RETRIEVE:
            raise InvalidArgument("frame.kind", f"{kind.name} is no question for a retriever")
        traceparent, query = decode_asked(payload)
        return encode_found(await _retrieve(self._port, query, traceparent))

    def forget(self, session_id: str) -> None:
        """Sessions leave nothing here."""
