"""Hypothesis strategies for records that cross the wire."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from contracts.capability import Exactness, SourceDescription, VerifierCapability
from contracts.draft_law import DraftLaw, law_from_probabilities
from contracts.graph import CandidateGraph, Draw
from contracts.hidden import HiddenRows
from contracts.manifest import Manifest, RoundManifest, SourcePlan, TargetIdentity
from contracts.options import SourceOption
from contracts.proposal import Proposal, ProposalNode, SourceCost, StateHandle
from contracts.receipt import Closing, FinishReason, Receipt, TokenLogprob, VerifyTimings
from contracts.sampling import SamplingPolicy
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology, depths_of

names = st.sampled_from(["prompt_lookup", "retrieval", "retrieval:code", "draft_model", "ünï"])
texts = st.text(max_size=12)
digests = st.sampled_from(["", "0" * 64, "ab" * 32])
tokens = st.integers(0, 49_151)
counts = st.integers(0, 2**31)
micros = st.floats(0, 1e9, allow_nan=False)
whole = st.integers(-(1 << 63), (1 << 63) - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def laws(draw: Any) -> DraftLaw:
    ids = draw(st.lists(tokens, min_size=1, max_size=8, unique=True))
    weights = draw(st.lists(st.floats(0.01, 1.0), min_size=len(ids), max_size=len(ids)))
    return law_from_probabilities(ids, weights)


@st.composite
def parent_lists(draw: Any, max_size: int = 12) -> list[int]:
    return [draw(st.integers(-1, row - 1)) for row in range(draw(st.integers(0, max_size)))]


@st.composite
def proposals(draw: Any) -> Proposal:
    parents = draw(parent_lists())
    depths = depths_of(np.array(parents, dtype=np.int64)).tolist()
    numbers = st.none() | finite
    nodes = tuple(
        ProposalNode(draw(tokens), parent, depth, draw(names), draw(names), draw(numbers), draw(numbers))
        for parent, depth in zip(parents, depths, strict=True)
    )
    with_law = draw(st.lists(st.sampled_from([-1, *range(len(nodes))]), unique=True, max_size=len(nodes) + 1))
    return Proposal(
        source=draw(names),
        nodes=nodes,
        semantics=draw(st.sampled_from(ProbabilitySemantics)),
        relation=draw(st.sampled_from(SamplingRelation)),
        topology=draw(st.sampled_from(Topology)),
        round_hash=draw(digests),
        laws={parent: draw(laws()) for parent in with_law},
        state=StateHandle(draw(texts), draw(counts), draw(counts)),
        cost=SourceCost(draw(micros), draw(counts), draw(counts), draw(st.booleans()), draw(st.booleans())),
    )


@st.composite
def graphs(draw: Any) -> CandidateGraph:
    parents = draw(parent_lists())
    rows = len(parents)
    some_laws = tuple(draw(st.lists(laws(), max_size=3)))
    draws = tuple(
        Draw(parents[row], row, draw(names), draw(st.integers(-1, len(some_laws) - 1)))
        for row in draw(st.lists(st.integers(0, rows - 1), max_size=2 * rows) if rows else st.just([]))
    )
    return CandidateGraph(
        np.array([draw(tokens) for _ in range(rows)], dtype=np.int64),
        np.array(parents, dtype=np.int64),
        tuple(tuple(draw(st.lists(names, max_size=3, unique=True))) for _ in range(rows)),
        draws,
        some_laws,
        draw(st.frozensets(st.sampled_from(ProbabilitySemantics))),
        draw(st.frozensets(st.sampled_from(SamplingRelation))),
    )


policies = st.builds(
    SamplingPolicy,
    temperature=finite,
    top_k=st.integers(0, 2**40),
    top_p=finite,
    min_p=finite,
    typical_p=finite,
    repetition_penalty=finite,
    presence_penalty=finite,
    frequency_penalty=finite,
    logit_bias=st.dictionaries(tokens, finite, max_size=4),
    banned_ids=st.lists(tokens, max_size=4).map(tuple),
    allowed_ids=st.lists(tokens, max_size=4).map(tuple),
    seed=st.integers(0, 2**64 - 1),
    min_tokens=counts,
    max_tokens=counts,
    stop_ids=st.lists(tokens, max_size=4).map(tuple),
    stop_strings=st.lists(texts, max_size=4).map(tuple),
    ignore_eos=st.booleans(),
    logprobs=st.none() | st.integers(0, 20),
    raw_logprobs=st.booleans(),
)

sources = st.builds(
    SourceDescription,
    name=names,
    kind=texts,
    version=digests,
    semantics=st.sampled_from(ProbabilitySemantics),
    relation=st.sampled_from(SamplingRelation),
    topology=st.sampled_from(Topology),
    tokenizer_digest=digests,
    target_digest=digests,
    max_nodes=st.integers(0, 512),
    taps=st.lists(st.sampled_from(["final_norm", "layer:0", "layer:14"]), max_size=3, unique=True).map(tuple),
    prompt_rows=st.integers(0, 1 << 20),
    options=st.lists(
        st.builds(SourceOption, texts, whole, whole, whole, st.just("")),
        max_size=3,
        unique_by=lambda option: option.name,
    ).map(lambda given: tuple(replace(option, not_below=given[0].name) for option in given)),
)

capabilities = st.builds(
    VerifierCapability,
    name=names,
    exactness=st.sampled_from(Exactness),
    promise=texts,
    semantics=st.frozensets(st.sampled_from(ProbabilitySemantics)),
    relations=st.frozensets(st.sampled_from(SamplingRelation)),
    topologies=st.frozensets(st.sampled_from(Topology)),
    needs_law=st.booleans(),
    identical_laws=st.booleans(),
    single_source=st.booleans(),
    greedy_only=st.booleans(),
    sampling_only=st.booleans(),
)

targets = st.builds(
    TargetIdentity,
    model=texts,
    checkpoint_digest=digests,
    tokenizer_digest=digests,
    vocab_size=counts,
    context_length=counts,
    dtype=texts,
    backend=texts,
    hardware=texts,
    row_invariant_up_to=counts,
    batching=texts,
    build=texts,
)

manifests = st.builds(
    Manifest,
    target=targets,
    sampling=policies.map(SamplingPolicy.to_json),
    sources=st.lists(sources, max_size=3).map(tuple),
    verifier=names,
    exactness=st.sampled_from([item.value for item in Exactness]),
    node_budget=counts,
    max_depth=counts,
    releases=st.dictionaries(names, digests, max_size=2),
    options=st.dictionaries(names, whole, max_size=2),
    indexes=st.dictionaries(names, names, max_size=2),
    tenant=texts,
    parent=digests,
)

round_manifests = st.builds(
    RoundManifest,
    manifest_hash=digests,
    session_id=texts,
    round_id=counts,
    prefix_len=counts,
    frontier=digests,
    target_generation=counts,
    plan=st.lists(st.builds(SourcePlan, names, counts, counts), max_size=3).map(tuple),
    source_generations=st.dictionaries(names, counts, max_size=2),
    live_generation=counts,
)

logprobs = st.floats(-1e6, 0.0, allow_nan=False)
token_logprobs = st.lists(st.tuples(tokens, logprobs), max_size=4).flatmap(
    lambda top: st.builds(TokenLogprob, logprobs, st.just(tuple(t for t, _ in top)), st.just(tuple(p for _, p in top)))
)


@st.composite
def hidden_rows(draw: Any) -> HiddenRows:
    count, width = draw(st.integers(0, 4)), draw(st.integers(1, 5))
    taps = draw(st.lists(st.sampled_from(["final_norm", "layer:0", "layer:14"]), min_size=1, max_size=3, unique=True))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    start = draw(counts)
    rows = {tap: rng.standard_normal((count, width)).astype(np.float32) for tap in taps}
    return HiddenRows(start, rows, draw(st.integers(0, start)))


receipts = st.builds(
    Receipt,
    session_id=texts,
    round_id=counts,
    payload_digest=digests,
    round_hash=digests,
    generation=counts,
    prefix_len=counts,
    tokens=st.lists(tokens, max_size=6).map(tuple),
    accepted_rows=st.lists(st.integers(0, 511), max_size=6).map(tuple),
    closing=st.sampled_from(Closing),
    finish=st.sampled_from(FinishReason),
    logprobs=st.lists(token_logprobs, max_size=3).map(tuple),
    timings=st.builds(VerifyTimings, micros, micros, micros, micros, micros),
    pass_rows=counts,
    pass_sessions=counts,
    hidden_handle=texts,
    hidden=st.none() | hidden_rows(),
)
