"""Every malformed message is a typed error that names the field."""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from contracts.errors import DraftproofError, FailedPrecondition, InvalidArgument
from contracts.frontier import Frontier
from contracts.graph import CandidateGraph, Draw
from contracts.manifest import Manifest, RoundManifest, TargetIdentity
from contracts.ports import ProposeRequest
from contracts.proposal import Proposal, ProposalNode
from contracts.receipt import Closing, Receipt
from contracts.sampling import SamplingPolicy
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from orchestrator.request import GenerateRequest
from protos.draftproof.v1 import hidden_pb2, retriever_pb2, verifier_pb2
from protos.draftproof.v1 import vector_pb2 as vec
from services.wire import (
    candidate,
    generate,
    hidden,
    manifest,
    proposer,
    receipt,
    retriever,
    sampling,
    vector,
    verifier,
)
from tests.helpers.proposals import point_law


def u32(*values: int) -> vec.Vector:
    return vec.Vector(dtype=vec.DTYPE_UINT32, length=len(values), data=struct.pack(f"<{len(values)}I", *values))


def proposal_message() -> Any:
    node = ProposalNode(5, -1, 1, "x", "x", q=1.0)
    sent = Proposal(
        "x",
        (node,),
        ProbabilitySemantics.NORMALIZED_CONDITIONAL,
        SamplingRelation.INDEPENDENT,
        Topology.SEQUENCE,
        "h",
        {-1: point_law(5)},
    )
    return candidate.encode_proposal(sent)


def graph_message() -> Any:
    draws = (Draw(-1, 0, "x", 0),)
    return candidate.encode_graph(CandidateGraph(np.array([5]), np.array([-1]), (("x",),), draws, (point_law(5),)))


def nan_vector(length: int = 1) -> vec.Vector:
    return vec.Vector(dtype=vec.DTYPE_FLOAT64, length=length, data=struct.pack(f"<{length}d", *[float("nan")] * length))


Breaking = Callable[[Any], None]


def put(field: str, value: Any) -> Breaking:
    """Sets a field (dotted path) of a message."""

    def change(message: Any) -> None:
        *path, last = field.split(".")
        for name in path:
            message = message[int(name)] if name.isdigit() else getattr(message, name)
        if hasattr(value, "DESCRIPTOR"):
            getattr(message, last).CopyFrom(value)
        else:
            setattr(message, last, value)

    return change


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("proposal.tokens.dtype", put("tokens.dtype", vec.DTYPE_INT32)),
        ("proposal.tokens.dtype", put("tokens.dtype", 77)),
        ("proposal.tokens.dtype", put("tokens.dtype", vec.DTYPE_UNSPECIFIED)),
        ("proposal.tokens.data", put("tokens.length", 2)),
        ("proposal.tokens.data", put("tokens.data", b"\1\2\3")),
        ("proposal.tokens.length", put("tokens.length", 513)),
        ("proposal.parents.length", put("parents", vec.Vector(dtype=vec.DTYPE_INT32))),
        ("proposal.node_sources", put("node_sources", u32(3))),
        ("proposal.q.values", put("q.values", nan_vector())),
        ("proposal.q.nodes", put("q.nodes", u32(9))),
        ("proposal.scores.values", put("scores.values", nan_vector())),
        ("proposal.semantics", put("semantics", 0)),
        ("proposal.relation", put("relation", 99)),
        ("proposal.topology", put("topology", 0)),
        ("proposal.cost.compute_us", put("cost.compute_us", float("nan"))),
        ("proposal.cost.compute_us", put("cost.compute_us", -1.0)),
        ("proposal.laws", lambda message: message.laws.add(parent=-1)),
        ("proposal.laws", lambda message: [message.laws.add(parent=9 + i) for i in range(3)]),
        ("proposal.laws[-1].weights.length", put("laws.0.law.weights", vec.Vector(dtype=vec.DTYPE_UINT64))),
        ("proposal.laws[-1].weights.dtype", put("laws.0.law.weights.dtype", vec.DTYPE_FLOAT64)),
        (
            "proposal.laws[-1].weights",
            put("laws.0.law.weights", vec.Vector(dtype=vec.DTYPE_UINT64, length=1, data=b"\xff" * 8)),
        ),
        ("proposal.names", lambda message: message.names.extend(["n"] * 300)),
    ],
)
def test_proposals(field: str, change: Breaking) -> None:
    message = proposal_message()
    change(message)
    with pytest.raises(InvalidArgument) as refused:
        candidate.decode_proposal(message)
    assert refused.value.field.startswith(field)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("graph.token_ids.data", put("token_ids.data", b"")),
        ("graph.parents.length", put("parents", vec.Vector(dtype=vec.DTYPE_INT32))),
        ("graph.parents.dtype", put("parents.dtype", vec.DTYPE_UINT32)),
        ("graph.row_source_ends", put("row_source_ends", u32(7))),
        ("graph.row_sources", put("row_sources", u32(4))),
        ("graph.draw_sources", put("draw_sources", u32(4))),
        ("graph.draw_parents.length", put("draw_parents", vec.Vector(dtype=vec.DTYPE_INT32))),
        ("graph.draw_laws.length", put("draw_laws", vec.Vector(dtype=vec.DTYPE_INT32))),
        ("graph.semantics", lambda message: message.semantics.append(0)),
        ("graph.relations", lambda message: message.relations.append(44)),
        ("graph.laws[0].token_ids.dtype", put("laws.0.token_ids.dtype", vec.DTYPE_UINT64)),
    ],
)
def test_graphs(field: str, change: Breaking) -> None:
    message = graph_message()
    change(message)
    with pytest.raises(InvalidArgument) as refused:
        candidate.decode_graph(message)
    assert refused.value.field.startswith(field)


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "presence_penalty"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_sampling_numbers(name: str, value: float) -> None:
    message = sampling.pb.SamplingPolicy()
    setattr(message, name, value)
    with pytest.raises(InvalidArgument, match=rf"sampling\.{name}"):
        sampling.decode_sampling(message)


def test_sampling_lists_and_bias() -> None:
    message = sampling.pb.SamplingPolicy(stop_ids=range(65))
    with pytest.raises(InvalidArgument, match=r"sampling\.stop_ids"):
        sampling.decode_sampling(message)
    message = sampling.pb.SamplingPolicy(logit_bias={3: float("nan")})
    with pytest.raises(InvalidArgument, match=r"sampling\.logit_bias"):
        sampling.decode_sampling(message)


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        (SamplingPolicy(seed=-1), "sampling.seed"),
        (SamplingPolicy(max_tokens=2**70), "sampling.max_tokens"),
        (SamplingPolicy(stop_ids=(-1,)), "sampling.stop_ids"),
        (SamplingPolicy(banned_ids=(2**32,)), "sampling.banned_ids"),
        (SamplingPolicy(logit_bias={-1: 1.0}), "sampling.logit_bias"),
    ],
)
def test_a_policy_that_cannot_travel(policy: SamplingPolicy, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        sampling.encode_sampling(policy)
    assert refused.value.field == field


TARGET = TargetIdentity("m", "c", "t", 10, 20, "float32", "cpu", "here")
SEALED = Manifest(TARGET, SamplingPolicy().to_json(), (), "greedy", "exact", 4, 4)
ROUND = RoundManifest(SEALED.hash, "s", 1, 2, Frontier([1, 2]).digest, 0, ())


def test_a_broken_seal_is_refused() -> None:
    message = manifest.encode_manifest(SEALED)
    message.node_budget += 1
    with pytest.raises(FailedPrecondition, match=r"manifest\.hash"):
        manifest.decode_manifest(message)
    coordinates = manifest.encode_round(ROUND)
    coordinates.target_generation += 1
    with pytest.raises(FailedPrecondition, match=r"round\.hash"):
        manifest.decode_round(coordinates)


def test_openings_name_their_fields() -> None:
    message = verifier_pb2.VerifierServiceOpenSessionRequest(session_id="", manifest=manifest.encode_manifest(SEALED))
    with pytest.raises(InvalidArgument, match="session_id"):
        verifier.decode_open(message)
    message.session_id = "s" * 257
    with pytest.raises(InvalidArgument, match="session_id"):
        verifier.decode_open(message)
    message.session_id = "s"
    with pytest.raises(InvalidArgument, match="lease_ms"):
        verifier.decode_open(message)


def test_receipts_name_their_fields() -> None:
    sent = Receipt("s", 1, "p", "h", 1, 3, (1,), (0,), Closing.BONUS)
    for field, change in (
        ("receipt.closing", put("closing", 0)),
        ("receipt.finish", put("finish", 17)),
        ("receipt.timings.target_us", put("timings.target_us", float("nan"))),
        ("receipt.tokens", put("tokens.length", 9)),
        ("receipt.logprobs", lambda message: message.logprobs.add(logprob=float("nan"))),
        ("receipt.logprobs", lambda message: message.logprobs.add(logprob=-1.0, top_ids=[1])),
        ("receipt.logprobs", lambda message: message.logprobs.add(logprob=0.5)),
    ):
        message = receipt.encode_receipt(sent)
        change(message)
        with pytest.raises(InvalidArgument) as refused:
            receipt.decode_receipt(message)
        assert refused.value.field.startswith(field)


def propose_message(**changes: Any) -> Any:
    prefix = np.array([1, 2], dtype=np.int64)
    request = ProposeRequest("x", ROUND, SamplingPolicy(), prefix, 8, 4)
    message = proposer.PrefixSender().encode(request, call_id=1, traceparent="")
    for name, value in changes.items():
        put(name.replace("__", "."), value)(message)
    return message


@pytest.mark.parametrize(
    ("field", "kind", "message"),
    [
        ("prefix.base_len", FailedPrecondition, propose_message(prefix__base_len=3)),
        ("prefix.base_len", FailedPrecondition, propose_message(prefix__frontier="0" * 64)),
        ("prefix.tokens", InvalidArgument, propose_message(prefix__tokens=nan_vector())),
        ("node_budget", InvalidArgument, propose_message(node_budget=2**31)),
        ("round.hash", FailedPrecondition, propose_message(manifest__round_id=9)),
    ],
)
def test_propose_requests(field: str, kind: type[DraftproofError], message: Any) -> None:
    with pytest.raises(kind) as refused:
        proposer.PrefixReceiver().decode(message)
    assert refused.value.field.startswith(field)


def test_a_stream_that_starts_in_the_middle_is_told_to_resend() -> None:
    message = propose_message()
    message.ClearField("policy")
    with pytest.raises(FailedPrecondition) as refused:
        proposer.PrefixReceiver().decode(message)
    assert refused.value.field == proposer.BASE_FIELD


def test_queries_and_retrievals() -> None:
    query = retriever_pb2.RetrieveRequest(suffix=u32(*range(4097)))
    with pytest.raises(InvalidArgument, match="suffix"):
        retriever.decode_query(query)
    answer = retriever_pb2.Retrieval(tokens=u32(1, 2), parents=vec.Vector(dtype=vec.DTYPE_INT32))
    with pytest.raises(InvalidArgument, match=r"retrieval\.parents"):
        retriever.decode_retrieval(answer)


def test_generate_requests() -> None:
    with pytest.raises(InvalidArgument, match="prompt"):
        generate.decode_request(generate.pb.GenerateRequest())
    with pytest.raises(InvalidArgument, match="prompt"):
        generate.encode_request(GenerateRequest())
    with pytest.raises(InvalidArgument, match="prompt_ids"):
        generate.encode_request(GenerateRequest(prompt_ids=(-1,)))
    message = generate.pb.GenerateRequest(text="x", exactness=9)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="exactness"):
        generate.decode_request(message)
    message = generate.pb.GenerateRequest(text="x", sources=["s"] * 65)
    with pytest.raises(InvalidArgument, match="sources"):
        generate.decode_request(message)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("node_budget", {"node_budget": 10**20}),
        ("deadline_ms", {"deadline_ms": -(10**20)}),
        ("options.prompt_lookup.max_ngram", {"options": {"prompt_lookup": {"max_ngram": 2**63}}}),
        ("sources[1]", {"sources": ("prompt_lookup", "\udcff")}),
        ("tenant", {"tenant": "\udcff"}),
        ("indexes.retrieval", {"indexes": {"retrieval": "\udcff"}}),
        ("sampling.stop_strings", {"policy": SamplingPolicy(stop_strings=("\udcff",))}),
    ],
)
def test_what_a_request_cannot_carry_is_refused_by_the_client(field: str, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        generate.encode_request(GenerateRequest(text="x", **given))
    assert refused.value.field == field


def test_an_event_must_be_one() -> None:
    with pytest.raises(InvalidArgument, match="event"):
        generate.decode_event(generate.pb.GenerateResponse())


@pytest.mark.parametrize("values", [[[1, 2]], [0.5], [-1], [2**32]])
def test_what_is_no_row_of_uint32(values: Any) -> None:
    with pytest.raises(InvalidArgument, match="here"):
        vector.encode_ints(np.array(values), vector.UINT32, "here")


def tensor(shape: tuple[int, ...] = (2, 3), *, dtype: int = vec.DTYPE_FLOAT32, size: int = 24) -> Any:
    return vec.Tensor(dtype=dtype, shape=shape, data=bytes(size))  # type: ignore[arg-type]


def tap(name: str = "final_norm", rows: Any = None) -> Any:
    return hidden_pb2.HiddenTap(name=name, rows=rows or tensor())


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (hidden_pb2.HiddenRows(), "rows.taps"),
        (hidden_pb2.HiddenRows(taps=[tap(), tap()]), "rows.taps"),
        (hidden_pb2.HiddenRows(taps=[tap(str(n)) for n in range(65)]), "rows.taps"),
        (hidden_pb2.HiddenRows(taps=[tap(), tap("layer:0", tensor((1, 6)))]), "rows.taps"),
        (hidden_pb2.HiddenRows(start=2**62, taps=[tap()]), "rows.start"),
        (hidden_pb2.HiddenRows(start=3, base=4, taps=[tap()]), "rows.base"),
        (hidden_pb2.HiddenRows(taps=[tap(rows=tensor(dtype=vec.DTYPE_FLOAT64))]), "rows.taps['final_norm'].dtype"),
        (hidden_pb2.HiddenRows(taps=[tap(rows=tensor(dtype=0))]), "rows.taps['final_norm'].dtype"),
        (hidden_pb2.HiddenRows(taps=[tap(rows=tensor((6,)))]), "rows.taps['final_norm'].shape"),
        (hidden_pb2.HiddenRows(taps=[tap(rows=tensor((2, 0), size=0))]), "rows.taps['final_norm'].shape"),
        (hidden_pb2.HiddenRows(taps=[tap(rows=tensor(size=23))]), "rows.taps['final_norm'].data"),
        (hidden_pb2.HiddenRows(taps=[tap(rows=tensor(size=28))]), "rows.taps['final_norm'].data"),
    ],
)
def test_hidden_rows_state_what_they_are(message: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        hidden.decode_hidden(message, "rows")
    assert refused.value.field == field
