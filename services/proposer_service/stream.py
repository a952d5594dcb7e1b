"""What one stream of questions carries: its prefix so far, and how each is answered. The same over gRPC and over a link."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from contracts.errors import InvalidArgument
from contracts.ports import ProposeRequest, ProposerPort
from protos.draftproof.v1 import proposer_pb2 as pb
from services import telemetry
from services.link.frames import Kind
from services.status import info_of, typed
from services.wire.candidate import encode_proposal
from services.wire.proposer import PrefixReceiver


async def answer_proposal(port: ProposerPort, message: pb.ProposeRequest, asked: ProposeRequest) -> pb.ProposeResponse:
    """The proposal, or the error in its place."""
    attributes: dict[str, str | int] = {
        "draftproof.session.id": asked.manifest.session_id,
        "draftproof.round.id": asked.manifest.round_id,
        "draftproof.source": asked.source,
    }
    try:
        with telemetry.span("draftproof.proposer.propose", message.traceparent, attributes):
            proposal = await port.propose(asked)
        return pb.ProposeResponse(call_id=message.call_id, proposal=encode_proposal(proposal))
    except Exception as error:
        return refused(message.call_id, error)


def refused(call_id: int, error: Exception) -> pb.ProposeResponse:
    """An answer that says why there is none."""
    return pb.ProposeResponse(call_id=call_id, error=info_of(typed(error)))


class ProposeLink:
    """One link connection: a prefix per session, followed in the order of arrival."""

    def __init__(self, port: ProposerPort) -> None:
        self._port = port
        self._receivers: dict[str, PrefixReceiver] = {}

    async def answer(self, kind: Kind, payload: bytes) -> bytes:
        if kind is not Kind.PROPOSE:
            raise InvalidArgument("frame.kind", f"{kind.name} is no question for a proposer")
        try:
            message = pb.ProposeRequest.FromString(payload)
        except DecodeError as error:
            raise InvalidArgument("", f"no ProposeRequest: {error}") from error
        # No await before this: the prefix advances in the order in which questions came.
        receiver = self._receivers.setdefault(message.manifest.session_id, PrefixReceiver())
        try:
            asked = receiver.decode(message)
        except Exception as error:
            return refused(message.call_id, error).SerializeToString()
        return (await answer_proposal(self._port, message, asked)).SerializeToString()

    def forget(self, session_id: str) -> None:
        self._receivers.pop(session_id, None)
