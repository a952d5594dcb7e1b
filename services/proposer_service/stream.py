"""What one stream of questions carries: its prefix so far, and how each is answered. The same over gRPC and over a link."""

from __future__ import annotations

from contracts.errors import InvalidArgument
from contracts.ports import ProposeRequest, ProposerPort
from contracts.proposal import Proposal
from protos.draftproof.v1 import proposer_pb2 as pb
from services import telemetry
from services.link.codec import Decoder, ProposeQuestion, encode
from services.link.frames import Kind
from services.status import info_of, typed
from services.wire.candidate import encode_proposal
from services.wire.proposer import PrefixDelta, PrefixReceiver

_question = Decoder(ProposeQuestion)


async def answer_proposal(port: ProposerPort, message: pb.ProposeRequest, asked: ProposeRequest) -> pb.ProposeResponse:
    """The proposal, or the error in its place."""
    try:
        proposal = await _propose(port, asked, message.traceparent)
        return pb.ProposeResponse(call_id=message.call_id, proposal=encode_proposal(proposal))
    except Exception as error:
        return refused(message.call_id, error)


async def _propose(port: ProposerPort, asked: ProposeRequest, traceparent: str) -> Proposal:
    attributes: dict[str, str | int] = {
        "draftproof.session.id": asked.manifest.session_id,
        "draftproof.round.id": asked.manifest.round_id,
        "draftproof.source": asked.source,
    }
    with telemetry.span("draftproof.proposer.propose", traceparent, attributes):
        return await port.propose(asked)


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
        question = _question(payload)
        manifest = question.manifest
        # No await before this: the prefix advances in the order in which questions came.
        receiver = self._receivers.get(manifest.session_id)
        if receiver is None:
            receiver = self._receivers[manifest.session_id] = PrefixReceiver()
        delta = PrefixDelta(question.base_len, question.tokens, manifest.frontier, question.policy)
        prefix, policy = receiver.take(delta, manifest)
        asked = ProposeRequest(
            source=question.source,
            manifest=manifest,
            policy=policy,
            prefix=prefix,
            node_budget=question.node_budget,
            max_depth=question.max_depth,
            options=question.options,
            hidden=question.hidden,
        )
        return encode(await _propose(self._port, asked, question.traceparent))

    def forget(self, session_id: str) -> None:
        self._receivers.pop(session_id, None)
