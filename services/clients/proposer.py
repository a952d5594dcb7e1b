"""contracts.ports.ProposerPort over gRPC: one Propose stream a session, on which only new tokens travel; or over a link."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from contracts.capability import SourceDescription
from contracts.errors import FailedPrecondition
from contracts.manifest import Manifest
from contracts.ports import ProposeRequest
from contracts.proposal import Proposal
from protos.draftproof.v1 import proposer_pb2 as pb
from protos.draftproof.v1 import proposer_pb2_grpc
from services import telemetry
from services.clients.channel import call, open_channel
from services.clients.session_stream import SessionStream
from services.clients.timeouts import Timeouts
from services.link.client import LinkClient
from services.link.codec import Decoder, ProposeQuestion, encode
from services.link.frames import Kind
from services.status import error_of_info
from services.wire.candidate import decode_proposal
from services.wire.capability import decode_source
from services.wire.manifest import encode_manifest
from services.wire.proposer import BASE_FIELD, PrefixSender

_proposal = Decoder(Proposal)


class ProposerClient:
    """endpoint: host:port. link: a socket of the same service, used while it is up. Use `close` when done."""

    def __init__(self, endpoint: str, timeouts: Timeouts | None = None, *, link: Path | None = None) -> None:
        self._timeouts = timeouts or Timeouts()
        self._channel = open_channel(endpoint)
        self._stub = proposer_pb2_grpc.ProposerServiceStub(self._channel)
        self._streams: dict[str, SessionStream[PrefixSender]] = {}
        self._link = LinkClient(link) if link is not None else None
        self._senders: dict[str, tuple[int, PrefixSender]] = {}

    async def describe(self) -> Sequence[SourceDescription]:
        request = pb.ProposerServiceDescribeRequest()
        answer = await call(self._stub.Describe, request, timeout_s=self._timeouts.describe_s)
        return [decode_source(source) for source in answer.sources]

    async def open_session(self, session_id: str, manifest: Manifest) -> None:
        request = pb.ProposerServiceOpenSessionRequest(session_id=session_id, manifest=encode_manifest(manifest))
        await call(self._stub.OpenSession, request, timeout_s=self._timeouts.open_s)

    async def propose(self, request: ProposeRequest) -> Proposal:
        try:
            return await self._ask(request)
        except FailedPrecondition as error:
            if error.field != BASE_FIELD:
                raise
            self._forget(request.manifest.session_id)
            return await self._ask(request)

    async def close_session(self, session_id: str) -> None:
        stream = self._streams.pop(session_id, None)
        if stream is not None:
            await stream.close()
        if self._senders.pop(session_id, None) is not None and self._link is not None:
            self._link.tell(Kind.FORGET, session_id.encode())
        request = pb.ProposerServiceCloseSessionRequest(session_id=session_id)
        await call(self._stub.CloseSession, request, timeout_s=self._timeouts.close_s)

    async def close(self) -> None:
        """Ends all streams and the channel."""
        for stream in self._streams.values():
            await stream.close()
        self._streams.clear()
        if self._link is not None:
            self._link.close()
        await self._channel.close()

    async def _ask(self, request: ProposeRequest) -> Proposal:
        if self._link is not None and await self._link.up():
            return await self._ask_link(self._link, request)
        answer = await self._ask_stream(request)
        if answer.WhichOneof("outcome") == "error":
            raise error_of_info(answer.error)
        return decode_proposal(answer.proposal)

    async def _ask_link(self, link: LinkClient, request: ProposeRequest) -> Proposal:
        session_id = request.manifest.session_id
        generation, sender = self._senders.get(session_id, (0, None))
        if sender is None or generation != link.generation:
            # The peer remembers nothing of an earlier connection.
            sender = PrefixSender()
            self._senders[session_id] = link.generation, sender
        delta = sender.delta(request)
        question = ProposeQuestion(
            traceparent=telemetry.traceparent(),
            source=request.source,
            manifest=request.manifest,
            policy=delta.policy,
            base_len=delta.base_len,
            tokens=delta.tokens,
            node_budget=request.node_budget,
            max_depth=request.max_depth,
            options=request.options,
            hidden=request.hidden,
        )
        return _proposal(await link.ask(Kind.PROPOSE, encode(question), timeout_s=self._timeouts.propose_s))

    async def _ask_stream(self, request: ProposeRequest) -> pb.ProposeResponse:
        session_id = request.manifest.session_id
        stream = self._streams.get(session_id)
        if stream is None:
            stream = SessionStream(lambda: self._stub.Propose(), PrefixSender)
            self._streams[session_id] = stream
        header = telemetry.traceparent()
        answer: pb.ProposeResponse = await stream.ask(
            lambda call_id, sender: sender.encode(request, call_id=call_id, traceparent=header),
            timeout_s=self._timeouts.propose_s,
        )
        return answer

    def _forget(self, session_id: str) -> None:
        self._senders.pop(session_id, None)
        if session_id in self._streams:
            self._streams[session_id].reset_state()
