"""The proposer port on the wire. The prefix travels as a difference to what the stream last carried."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.frontier import Frontier
from contracts.manifest import RoundManifest
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


@dataclass(frozen=True)
class PrefixDelta:
    """`tokens` int64 [n] follow the first `base_len` carried so far, which makes a prefix with the digest `frontier`;
    policy None: the one carried last.
    """

    base_len: int
    tokens: npt.NDArray[np.int64]
    frontier: str
    policy: SamplingPolicy | None


class PrefixSender:
    """What one stream has carried so far, at the sending end."""

    def __init__(self) -> None:
        self._sent: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._policy: SamplingPolicy | None = None

    def delta(self, request: ProposeRequest) -> PrefixDelta:
        """What the receiving end lacks, and advances what is taken as carried."""
        prefix = np.asarray(request.prefix, dtype=np.int64)
        base = self._common(prefix)
        policy = None if request.policy is self._policy else request.policy
        self._sent, self._policy = prefix, request.policy
        return PrefixDelta(base, prefix[base:], request.manifest.frontier, policy)

    def encode(self, request: ProposeRequest, *, call_id: int, traceparent: str) -> pb.ProposeRequest:
        """As a message. Raises InvalidArgument for what its types cannot hold; nothing is taken as carried then."""
        before = self._sent, self._policy
        delta = self.delta(request)
        try:
            return _message(request, delta, call_id=call_id, traceparent=traceparent)
        except Exception:
            self._sent, self._policy = before
            raise

    def _common(self, prefix: npt.NDArray[np.int64]) -> int:
        shared = min(len(prefix), len(self._sent))
        differing = np.flatnonzero(prefix[:shared] != self._sent[:shared])
        return int(differing[0]) if len(differing) else shared


def _message(request: ProposeRequest, delta: PrefixDelta, *, call_id: int, traceparent: str) -> pb.ProposeRequest:
    try:
        return pb.ProposeRequest(
            call_id=call_id,
            traceparent=traceparent,
            source=request.source,
            manifest=encode_round(request.manifest),
            policy=None if delta.policy is None else encode_sampling(delta.policy),
            prefix=pb.PrefixDelta(
                base_len=delta.base_len,
                tokens=encode_ints(delta.tokens, UINT32, "prefix"),
                frontier=delta.frontier,
            ),
            node_budget=within(request.node_budget, "node_budget", 0, MAX_BUDGET),
            max_depth=within(request.max_depth, "max_depth", 0, MAX_BUDGET),
            options=dict(request.options),
            hidden=encode_hidden(request.hidden),
        )
    except ValueError as error:
        raise InvalidArgument("options", str(error)) from error


class PrefixReceiver:
    """What one stream has carried so far, at the receiving end."""

    def __init__(self) -> None:
        self._frontier = Frontier()
        self._policy: SamplingPolicy | None = None

    def take(self, delta: PrefixDelta, manifest: RoundManifest) -> tuple[npt.NDArray[np.int64], SamplingPolicy]:
        """The whole prefix and the policy in force. Raises FailedPrecondition naming prefix.base_len where the sender
        assumes what never came or arrives at another prefix, InvalidArgument for one that is not the manifest's or too long.
        """
        if delta.policy is not None:
            self._policy = delta.policy
        if self._policy is None:
            raise FailedPrecondition(BASE_FIELD, "the first call of a stream carries prefix and policy whole")
        if not 0 <= delta.base_len <= len(self._frontier):
            raise FailedPrecondition(
                BASE_FIELD, f"{delta.base_len} is past the {len(self._frontier)} tokens carried so far"
            )
        if delta.base_len + len(delta.tokens) > MAX_PREFIX:
            raise InvalidArgument("prefix.tokens", f"the prefix would pass {MAX_PREFIX} tokens")
        if delta.base_len < len(self._frontier):
            self._frontier = Frontier(self._frontier.tokens[: delta.base_len])
        self._frontier.publish(delta.tokens)
        if delta.frontier != self._frontier.digest:
            raise FailedPrecondition(BASE_FIELD, "the prefix arrived at has another digest than the sender's")
        if manifest.frontier != self._frontier.digest or manifest.prefix_len != len(self._frontier):
            raise InvalidArgument("manifest.frontier", "is not the frontier of the prefix sent")
        return self._frontier.tokens, self._policy

    def decode(self, message: pb.ProposeRequest) -> ProposeRequest:
        """Raises what `take` raises."""
        manifest = decode_round(message.manifest)
        policy = decode_sampling(message.policy) if message.HasField("policy") else None
        sent = message.prefix
        tokens = decode_ints(sent.tokens, UINT32, "prefix.tokens", limit=MAX_PREFIX)
        prefix, policy = self.take(PrefixDelta(sent.base_len, tokens, sent.frontier, policy), manifest)
        return ProposeRequest(
            source=message.source,
            manifest=manifest,
            policy=policy,
            prefix=prefix,
            node_budget=within(message.node_budget, "node_budget", 0, MAX_BUDGET),
            max_depth=within(message.max_depth, "max_depth", 0, MAX_BUDGET),
            options=dict(message.options),
            hidden=decode_hidden(message.hidden, "hidden") if message.HasField("hidden") else None,
        )
