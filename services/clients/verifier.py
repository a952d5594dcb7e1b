"""contracts.ports.VerifierPort over gRPC: one Verify stream a session; or Verify over a link, past the front."""

from __future__ import annotations

from pathlib import Path

from contracts.hidden import HiddenRows
from contracts.ports import OpenSession, SessionOpened, VerifierDescription, VerifyRequest
from contracts.receipt import Receipt
from protos.draftproof.v1 import verifier_pb2 as pb
from protos.draftproof.v1 import verifier_pb2_grpc
from services import telemetry
from services.clients.channel import call, open_channel
from services.clients.session_stream import SessionStream
from services.clients.timeouts import Timeouts
from services.link.client import LinkClient
from services.link.codec import Decoder, VerifyQuestion, encode
from services.link.frames import Kind
from services.status import error_of_info
from services.wire import verifier as wire
from services.wire.hidden import MAX_POSITION, decode_hidden
from services.wire.receipt import decode_receipt
from services.wire.scalars import within

SESSION_KEY = "draftproof-session"
_receipt = Decoder(Receipt)


class VerifierClient:
    """endpoint: host:port. link: a socket of the same service, used while it is up. Use `close` when done.

    Calls of one session carry its id as metadata, for affinity.
    """

    def __init__(self, endpoint: str, timeouts: Timeouts | None = None, *, link: Path | None = None) -> None:
        self._timeouts = timeouts or Timeouts()
        self._channel = open_channel(endpoint)
        self._stub = verifier_pb2_grpc.VerifierServiceStub(self._channel)
        self._streams: dict[str, SessionStream[None]] = {}
        self._link = LinkClient(link) if link is not None else None

    async def describe(self) -> VerifierDescription:
        answer = await call(
            self._stub.Describe, pb.VerifierServiceDescribeRequest(), timeout_s=self._timeouts.describe_s
        )
        return wire.decode_description(answer)

    async def open_session(self, request: OpenSession) -> SessionOpened:
        answer = await call(
            self._stub.OpenSession,
            wire.encode_open(request),
            timeout_s=self._timeouts.open_s,
            metadata=_session(request.session_id),
        )
        return wire.decode_opened(answer)

    async def verify(self, request: VerifyRequest) -> Receipt:
        if self._link is not None and await self._link.up():
            question = encode(VerifyQuestion(telemetry.traceparent(), request))
            return _receipt(await self._link.ask(Kind.VERIFY, question, timeout_s=self._timeouts.verify_s))
        answer = await self._verify_on_stream(request)
        if answer.WhichOneof("outcome") == "error":
            raise error_of_info(answer.error)
        return decode_receipt(answer.receipt)

    async def _verify_on_stream(self, request: VerifyRequest) -> pb.VerifyResponse:
        session_id = request.manifest.session_id
        stream = self._streams.get(session_id)
        if stream is None:
            metadata = _session(session_id)
            stream = SessionStream(lambda: self._stub.Verify(metadata=metadata), lambda: None)
            self._streams[session_id] = stream
        header = telemetry.traceparent()
        answer: pb.VerifyResponse = await stream.ask(
            lambda call_id, _: wire.encode_verify(request, call_id=call_id, traceparent=header),
            timeout_s=self._timeouts.verify_s,
        )
        return answer

    async def get_receipt(self, session_id: str, round_id: int) -> Receipt:
        request = pb.GetReceiptRequest(session_id=session_id, round_id=round_id)
        answer = await call(
            self._stub.GetReceipt, request, timeout_s=self._timeouts.describe_s, metadata=_session(session_id)
        )
        return decode_receipt(answer.receipt)

    async def export_hidden(self, session_id: str, start: int, stop: int) -> HiddenRows:
        request = pb.ExportHiddenRequest(
            session_id=session_id,
            start=within(start, "start", 0, MAX_POSITION),
            stop=within(stop, "stop", 0, MAX_POSITION),
        )
        answer = await call(
            self._stub.ExportHidden, request, timeout_s=self._timeouts.describe_s, metadata=_session(session_id)
        )
        return decode_hidden(answer.rows, "rows")

    async def close_session(self, session_id: str) -> None:
        stream = self._streams.pop(session_id, None)
        if stream is not None:
            await stream.close()
        request = pb.VerifierServiceCloseSessionRequest(session_id=session_id)
        await call(self._stub.CloseSession, request, timeout_s=self._timeouts.close_s, metadata=_session(session_id))

    async def close(self) -> None:
        """Ends all streams and the channel."""
        for stream in self._streams.values():
            await stream.close()
        self._streams.clear()
        if self._link is not None:
            self._link.close()
        await self._channel.close()


def _session(session_id: str) -> tuple[tuple[str, str], ...]:
    # Metadata is ASCII; an id that is not is the server's to refuse, without affinity.
    return ((SESSION_KEY, session_id),) if session_id.isascii() and session_id.isprintable() else ()
