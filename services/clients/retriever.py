"""contracts.ports.RetrieverPort over gRPC: one Retrieve stream for all sessions, since queries are stateless; or a link."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from contracts.retrieval import IndexDescription, PublishedOutput, Retrieval, RetrievalQuery
from protos.draftproof.v1 import retriever_pb2 as pb
from protos.draftproof.v1 import retriever_pb2_grpc
from retriever.corpus import Corpus
from retriever.merging import Question, Reply
from services import telemetry
from services.clients.channel import call, open_channel
from services.clients.session_stream import SessionStream
from services.clients.timeouts import Timeouts
from services.link.asked import encode_asked
from services.link.client import LinkClient
from services.link.found import decode_found
from services.link.frames import Kind
from services.status import error_of_info
from services.wire.retriever import (
    decode_batch_answers,
    decode_index,
    decode_retrieval,
    encode_batch,
    encode_output,
    encode_query,
)
from services.wire.retriever_parts import decode_reply, encode_part


class RetrieverClient:
    """endpoint: host:port. link: a socket of the same service, used while it is up. Use `close` when done."""

    def __init__(self, endpoint: str, timeouts: Timeouts | None = None, *, link: Path | None = None) -> None:
        self._timeouts = timeouts or Timeouts()
        self._channel = open_channel(endpoint)
        self._stub = retriever_pb2_grpc.RetrieverServiceStub(self._channel)
        self._stream: SessionStream[None] = SessionStream(lambda: self._stub.Retrieve(), lambda: None)
        self._link = LinkClient(link) if link is not None else None
        self._parts: SessionStream[None] = SessionStream(lambda: self._stub.Part(), lambda: None)

    async def describe(self, tenant: str = "") -> Sequence[IndexDescription]:
        request = pb.RetrieverServiceDescribeRequest(tenant=tenant)
        answer = await call(self._stub.Describe, request, timeout_s=self._timeouts.describe_s)
        return [decode_index(index) for index in answer.indexes]

    async def retrieve(self, query: RetrievalQuery) -> Retrieval:
        header = telemetry.traceparent()
        if self._link is not None and await self._link.up():
            question = encode_asked(header, query)
            return decode_found(await self._link.ask(Kind.RETRIEVE, question, timeout_s=self._timeouts.retrieve_s))
        answer: pb.RetrieveResponse = await self._stream.ask(
            lambda call_id, _: encode_query(query, call_id=call_id, traceparent=header),
            timeout_s=self._timeouts.retrieve_s,
        )
        if answer.WhichOneof("outcome") == "error":
            raise error_of_info(answer.error)
        return decode_retrieval(answer.retrieval)

    async def retrieve_batch(
        self, query: RetrievalQuery, suffixes: Sequence[npt.NDArray[np.int64]]
    ) -> Sequence[Retrieval]:
        request = encode_batch(query, suffixes, traceparent=telemetry.traceparent())
        answer = await call(self._stub.RetrieveBatch, request, timeout_s=self._timeouts.retrieve_s)
        return decode_batch_answers(answer, len(suffixes))

    async def part(self, corpus: Corpus, question: Question) -> Reply | None:
        """The group's reply in the merging dialogue; None where the live generation is gone."""
        header = telemetry.traceparent()
        answer: pb.PartResponse = await self._parts.ask(
            lambda call_id, _: encode_part(corpus, question, call_id=call_id, traceparent=header),
            timeout_s=self._timeouts.retrieve_s,
        )
        if answer.WhichOneof("outcome") == "error":
            raise error_of_info(answer.error)
        return decode_reply(answer)

    async def record(self, output: PublishedOutput) -> int:
        answer = await call(self._stub.Record, encode_output(output), timeout_s=self._timeouts.retrieve_s)
        return int(answer.live_generation)

    async def close(self) -> None:
        """Ends the streams and the channel."""
        await self._stream.close()
        await self._parts.close()
        if self._link is not None:
            self._link.close()
        await self._channel.close()
