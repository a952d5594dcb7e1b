"""The proposer port on the wire. The prefix travels as a difference to what the stream last carried."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.frontier import Frontier
from contracts.ports import ProposeRequest
from contracts.sampling import SamplingPolicy
from protos.draftproof.v1 import proposer_pb2 as pb
from services.wire.hidden import decode_hidden, encode_hidden
from services.wire.manifest import decode_round, encode_round
from services.wire.sampling import decode_sampling, encode_sampling
from services.wire.scalars import within
from services.wire.vector import UINT32, decode_ints, encode_ints
from services.wire.verifier import MAX_PREFIX

MAX_BUDGET = 1 << 20
BASE_FIELD = "prefix.base_len"


class PrefixSender:
    """What one stream has carried so far, at the sending end."""

    def __init__(self) -> None:
        self._sent: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._policy: SamplingPolicy | None = None

    def encode(self, request: ProposeRequest, *, call_id: int, traceparent: str) -> pb.ProposeRequest:
        """Advances what is taken as carried. Raises InvalidArgument for what the message's types cannot hold."""
        prefix = np.asarray(request.prefix, dtype=np.int64)
        base = self._common(prefix)
        try:
            message = pb.ProposeRequest(
                call_id=call_id,
                traceparent=traceparent,
                source=request.source,
                manifest=encode_round(request.manifest),
                policy=None if request.policy is self._policy else encode_sampling(request.policy),
                prefix=pb.PrefixDelta(
                    base_len=base,
                    tokens=encode_ints(prefix[base:], UINT32, "prefix"),
                    frontier=request.manifest.frontier,
                ),
                node_budget=within(request.node_budget, "node_budget", 0, MAX_BUDGET),
                max_depth=within(request.max_depth, "max_depth", 0, MAX_BUDGET),
                options=dict(request.options),
                hidden=encode_hidden(request.hidden),
            )
        except ValueError as error:
            raise InvalidArgument("options", str(error)) from error
        self._sent, self._policy = prefix, request.policy
        return message

    def _common(self, prefix: npt.NDArray[np.int64]) -> int:
        shared = min(len(prefix), len(self._sent))
        differing = np.flatnonzero(prefix[:shared] != self._sent[:shared])
        return int(differing[0]) if len(differing) else shared


class PrefixReceiver:
    """What one stream has carried so far, at the receiving end."""

    def __init__(self) -> None:
        self._frontier = Frontier()
        self._tokens: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._policy: SamplingPolicy | None = None

    def decode(self, message: pb.ProposeRequest) -> ProposeRequest:
        """Raises FailedPrecondition naming prefix.base_len or policy where the sender assumes what never came."""
        manifest = decode_round(message.manifest)
        if message.HasField("policy"):
            self._policy = decode_sampling(message.policy)
        if self._policy is None:
            raise FailedPrecondition(BASE_FIELD, "the first call of a stream carries prefix and policy whole")
        self._advance(message.prefix)
        if manifest.frontier != self._frontier.digest or manifest.prefix_len != len(self._frontier):
            raise InvalidArgument("manifest.frontier", "is not the frontier of the prefix sent")
        return ProposeRequest(
            source=message.source,
            manifest=manifest,
            policy=self._policy,
            prefix=self._tokens,
            node_budget=within(message.node_budget, "node_budget", 0, MAX_BUDGET),
            max_depth=within(message.max_depth, "max_depth", 0, MAX_BUDGET),
            options=dict(message.options),
            hidden=decode_hidden(message.hidden, "hidden") if message.HasField("hidden") else None,
        )

    def _advance(self, delta: pb.PrefixDelta) -> None:
        tokens = decode_ints(delta.tokens, UINT32, "prefix.tokens", limit=MAX_PREFIX)
        if delta.base_len > len(self._frontier):
            raise FailedPrecondition(
                BASE_FIELD, f"{delta.base_len} is past the {len(self._frontier)} tokens carried so far"
            )
        if delta.base_len < len(self._frontier):
            self._frontier = Frontier(self._tokens[: delta.base_len])
        if len(self._frontier) + len(tokens) > MAX_PREFIX:
            raise InvalidArgument("prefix.tokens", f"the prefix would pass {MAX_PREFIX} tokens")
        self._frontier.publish(tokens)
        self._tokens = np.concatenate((self._tokens[: delta.base_len], tokens))
        if delta.frontier != self._frontier.digest:
            raise FailedPrecondition(BASE_FIELD, "the prefix arrived at has another digest than the sender's")
