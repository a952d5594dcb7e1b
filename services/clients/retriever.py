"""contracts.ports.RetrieverPort over gRPC: one Retrieve stream for all sessions, since queries are stateless."""

from __future__ import annotations

from collections.abc import Sequence

from contracts.retrieval import IndexDescription, Retrieval, RetrievalQuery
from protos.draftproof.v1 import retriever_pb2 as pb
from protos.draftproof.v1 import retriever_pb2_grpc
from services import telemetry
from services.clients.channel import call, open_channel
from services.clients.session_stream import SessionStream
from services.clients.timeouts import Timeouts
from services.status import error_of_info
from services.wire.retriever import decode_index, decode_retrieval, encode_query


class RetrieverClient:
    """endpoint: host:port. Use `close` when done."""

    def __init__(self, endpoint: str, timeouts: Timeouts | None = None) -> None:
        self._timeouts = timeouts or Timeouts()
        self._channel = open_channel(endpoint)
        self._stub = retriever_pb2_grpc.RetrieverServiceStub(self._channel)
        self._stream: SessionStream[None] = SessionStream(lambda: self._stub.Retrieve(), lambda: None)

    async def describe(self) -> Sequence[IndexDescription]:
        request = pb.RetrieverServiceDescribeRequest()
        answer = await call(self._stub.Describe, request, timeout_s=self._timeouts.describe_s)
        return [decode_index(index) for index in answer.indexes]

    async def retrieve(self, query: RetrievalQuery) -> Retrieval:
        header = telemetry.traceparent()
        answer: pb.RetrieveResponse = await self._stream.ask(
            lambda call_id, _: encode_query(query, call_id=call_id, traceparent=header),
            timeout_s=self._timeouts.retrieve_s,
        )
        if answer.WhichOneof("outcome") == "error":
            raise error_of_info(answer.error)
        return decode_retrieval(answer.retrieval)

    async def close(self) -> None:
        """Ends the stream and the channel."""
        await self._stream.close()
        await self._channel.close()
