"""Whatever a record holds, it comes back from the wire equal, field by field and bit by bit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.capability import Exactness
from contracts.frontier import Frontier
from contracts.graph import CandidateGraph
from contracts.ledger import COMPONENTS, IndexMatch, LedgerSum, RoundLedger
from contracts.manifest import RoundManifest
from contracts.payload import payload_digest
from contracts.ports import OpenSession, ProposeRequest, SessionOpened, VerifierDescription, VerifyRequest
from contracts.receipt import Closing, FinishReason, TokenLogprob
from contracts.retrieval import IndexDescription, PublishedOutput, Retrieval, RetrievalQuery
from contracts.sampling import SamplingPolicy
from orchestrator.events import Certificate, Chunk, Final, RoundInfo, Usage
from orchestrator.request import GenerateRequest
from retriever.corpus import Corpus
from retriever.merging import AboveQuestion, BestQuestion, CountQuestion, LongestQuestion
from retriever.trie import QueryLimits
from services.wire import (
    candidate,
    capability,
    generate,
    manifest,
    proposer,
    receipt,
    retriever,
    retriever_parts,
    sampling,
    verifier,
)
from tests.unit.services import strategies as some


def through(message: Any) -> Any:
    """Serialised and parsed again, as the network does it."""
    return type(message).FromString(message.SerializeToString())


def same(one: Any, other: Any) -> bool:
    """Equality of frozen records whose fields may be arrays."""
    return all(
        np.array_equal(a, b) and a.dtype == b.dtype if isinstance(a, np.ndarray) else a == b
        for a, b in ((getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__)
    )


@given(some.proposals())
def test_proposals(sent: Any) -> None:
    assert candidate.decode_proposal(through(candidate.encode_proposal(sent))) == sent


@given(some.graphs())
def test_graphs(sent: CandidateGraph) -> None:
    assert same(candidate.decode_graph(through(candidate.encode_graph(sent))), sent)


@given(some.laws())
def test_laws_bit_for_bit(sent: Any) -> None:
    back = candidate.decode_law(through(candidate.encode_law(sent, "law")), "law")
    assert same(back, sent)
    assert sum(back.weights.tolist()) == 2**32


@given(some.policies)
def test_policies(sent: SamplingPolicy) -> None:
    assert sampling.decode_sampling(through(sampling.encode_sampling(sent))) == sent


def test_unset_fields_take_the_defaults_and_zero_is_not_unset() -> None:
    assert sampling.decode_sampling(sampling.pb.SamplingPolicy()) == SamplingPolicy()
    assert sampling.decode_sampling(sampling.pb.SamplingPolicy(temperature=0.0)).greedy
    assert sampling.decode_sampling(sampling.pb.SamplingPolicy(logprobs=0)).logprobs == 0


@given(some.capabilities)
def test_capabilities(sent: Any) -> None:
    assert capability.decode_capability(through(capability.encode_capability(sent))) == sent


@given(some.manifests)
def test_manifests_keep_their_hash(sent: Any) -> None:
    back = manifest.decode_manifest(through(manifest.encode_manifest(sent)))
    assert back == sent
    assert back.hash == sent.hash


@given(some.round_manifests)
def test_round_manifests_keep_their_hash(sent: RoundManifest) -> None:
    back = manifest.decode_round(through(manifest.encode_round(sent)))
    assert back == sent
    assert back.hash == sent.hash


@given(some.receipts)
def test_receipts(sent: Any) -> None:
    assert receipt.decode_receipt(through(receipt.encode_receipt(sent))) == sent


@given(some.targets, st.lists(some.capabilities, max_size=3), st.lists(some.tokens, max_size=3))
def test_verifier_descriptions(target: Any, capabilities: Any, eos_ids: list[int]) -> None:
    sent = VerifierDescription(target, tuple(capabilities), tuple(eos_ids), 64, 1000, 10, 12.5, 7, 46080)
    assert verifier.decode_description(through(verifier.encode_description(sent))) == sent


@given(some.manifests, some.policies, st.lists(some.tokens, max_size=9), some.counts)
def test_openings(sealed: Any, policy: SamplingPolicy, prompt: list[int], lease_ms: int) -> None:
    sent = OpenSession("s", sealed, policy, np.array(prompt, dtype=np.int64), len(prompt), lease_ms + 1, "scope")
    assert same(verifier.decode_open(through(verifier.encode_open(sent))), sent)
    opened = SessionOpened("s", 3, 4, 5.5, 6.5, 2)
    assert verifier.decode_opened(through(verifier.encode_opened(opened))) == opened


@given(some.round_manifests, some.graphs(), st.integers(-1, 99))
def test_verify_requests(coordinates: RoundManifest, graph: CandidateGraph, acknowledge: int) -> None:
    sent = VerifyRequest(coordinates, graph, payload_digest(coordinates, graph), acknowledge)
    message = through(verifier.encode_verify(sent, call_id=7, traceparent="00-a-b-01"))
    back = verifier.decode_verify(message)
    assert (message.call_id, message.traceparent) == (7, "00-a-b-01")
    assert same(back.graph, graph)
    assert (back.manifest, back.payload_digest, back.acknowledge) == (coordinates, sent.payload_digest, acknowledge)
    assert payload_digest(back.manifest, back.graph) == sent.payload_digest


@given(
    st.lists(st.lists(some.tokens, min_size=1, max_size=20), min_size=1, max_size=6),
    st.lists(st.integers(0, 30), max_size=6),
    some.policies,
    st.none() | some.hidden_rows(),
)
def test_prefixes_by_difference(growth: list[list[int]], cuts: list[int], policy: SamplingPolicy, rows: Any) -> None:
    sender, receiver = proposer.PrefixSender(), proposer.PrefixReceiver()
    prefix: list[int] = []
    for number, grown in enumerate(growth):
        prefix = [*prefix[: cuts[number] if number < len(cuts) else None], *grown]
        frontier = Frontier(prefix)
        coordinates = RoundManifest("h", "s", number, len(prefix), frontier.digest, number, ())
        sent = ProposeRequest("x", coordinates, policy, np.array(prefix, dtype=np.int64), 8, 4, {"k": -3}, rows)
        message = through(sender.encode(sent, call_id=number, traceparent=""))
        assert message.HasField("policy") is (number == 0)
        assert same(receiver.decode(message), sent)


def test_a_prefix_that_was_received_stays_as_it_was_while_others_follow() -> None:
    sender, receiver = proposer.PrefixSender(), proposer.PrefixReceiver()
    received: list[tuple[Any, list[int]]] = []
    for prefix in ([1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 9, 9], list(range(400)), [0, 1, 7]):
        coordinates = RoundManifest("h", "s", 0, len(prefix), Frontier(prefix).digest, 0, ())
        sent = ProposeRequest("x", coordinates, SamplingPolicy(), np.array(prefix, dtype=np.int64), 8, 4)
        received.append((receiver.decode(sender.encode(sent, call_id=1, traceparent="")).prefix, prefix))
        assert all(held.tolist() == wanted for held, wanted in received)


def test_only_new_tokens_travel() -> None:
    sender = proposer.PrefixSender()
    lengths = []
    for size in (1000, 1004):
        prefix = np.arange(size, dtype=np.int64)
        coordinates = RoundManifest("h", "s", 0, size, Frontier(prefix).digest, 0, ())
        request = ProposeRequest("x", coordinates, SamplingPolicy(), prefix, 8, 4)
        lengths.append(sender.encode(request, call_id=1, traceparent="").prefix.tokens.length)
    assert lengths == [1000, 4]


columns = st.lists(st.tuples(some.tokens, st.integers(-1, 4), st.integers(1, 9), st.integers(0, 2**62)), max_size=9)


@given(columns, some.counts, some.counts, st.booleans(), some.micros)
def test_retrievals(rows: Any, length: int, count: int, truncated: bool, cost_us: float) -> None:
    arrays = [np.array([row[i] for row in rows], dtype=np.int64) for i in range(4)]
    sent = Retrieval(length, count, *arrays, truncated, cost_us, "release", count, truncated)
    assert same(retriever.decode_retrieval(through(retriever.encode_retrieval(sent))), sent)


@given(st.lists(some.tokens, max_size=40), some.names, some.counts)
def test_queries(suffix: list[int], name: str, number: int) -> None:
    sent = RetrievalQuery(name, "r", np.array(suffix, dtype=np.int64), 3, 4, 1, 9, "t", number)
    assert same(retriever.decode_query(through(retriever.encode_query(sent, call_id=1, traceparent=""))), sent)
    index = IndexDescription(name, "r", "d", 49152, 64, 32, number, 2, True, name, (name, "other"))
    assert retriever.decode_index(through(retriever.encode_index(index))) == index
    output = PublishedOutput(name, "t", "entry", np.array(suffix, dtype=np.int64))
    assert same(retriever.decode_output(through(retriever.encode_output(output))), output)


@given(st.lists(st.tuples(some.tokens, st.integers(1, 9)), max_size=9), some.names, some.counts)
def test_parts(rows: Any, name: str, number: int) -> None:
    tokens, depths = (np.array([row[i] for row in rows], dtype=np.int64) for i in range(2))
    limits = QueryLimits(9, 2, 4, 7)
    corpus = Corpus(name, "r", "t", number)
    questions = (
        LongestQuestion(tokens, limits),
        BestQuestion(tokens, limits),
        AboveQuestion(tokens, 4, number, 9),
        CountQuestion(tokens, tokens, depths - 2, depths),
    )
    for question in questions:
        message = through(retriever_parts.encode_part(corpus, question, call_id=1, traceparent=""))
        about, back = retriever_parts.decode_part(message)
        assert about == corpus
        assert same(back, question)
    trie = Retrieval(3, number, tokens, depths - 2, depths, depths)
    length, gone, back, counts = (
        retriever_parts.decode_reply(through(retriever_parts.encode_reply(reply, call_id=1)))
        for reply in (number % 99, None, trie, depths)
    )
    assert (length, gone) == (number % 99, None)
    assert same(back, trie)
    np.testing.assert_array_equal(np.asarray(counts), depths)


prompts = st.one_of(
    st.fixed_dictionaries({"prompt_ids": st.lists(some.tokens, max_size=9).map(tuple)}),
    st.fixed_dictionaries({"text": some.texts}),
    st.fixed_dictionaries(
        {
            "messages": st.lists(st.fixed_dictionaries({"role": some.texts, "content": some.texts}), max_size=3).map(
                tuple
            )
        }
    ),
)


@given(prompts, some.policies, st.none() | st.lists(some.names, min_size=1, max_size=3).map(tuple), st.data())
def test_generate_requests(prompt: Any, policy: SamplingPolicy, sources: Any, data: Any) -> None:
    maybe = st.none() | st.integers(-5, 10**9)
    sent = GenerateRequest(
        **prompt,
        policy=policy,
        sources=sources,
        speculation=data.draw(st.booleans()),
        node_budget=data.draw(maybe),
        max_depth=data.draw(maybe),
        deadline_ms=data.draw(maybe),
        verifier=data.draw(some.names),
        exact_mode=data.draw(st.booleans()),
        tenant=data.draw(some.texts),
        indexes=data.draw(st.dictionaries(some.names, some.texts, max_size=2)),
        options=data.draw(st.dictionaries(some.names, st.dictionaries(some.texts, st.integers(-9, 9), max_size=2))),
        request_id=data.draw(some.texts),
        expected_manifest_hash=data.draw(some.digests),
        cache_salt=data.draw(some.names),
        budget=data.draw(some.names),
        strict=data.draw(st.booleans()),
    )
    assert generate.decode_request(through(generate.encode_request(sent))) == sent


def test_no_sources_means_no_speculation() -> None:
    back = generate.decode_request(generate.encode_request(GenerateRequest(text="x", sources=())))
    assert not back.speculation


ledger_counts = st.dictionaries(some.names, some.counts, max_size=3)


@given(st.lists(some.finite, min_size=9, max_size=9), ledger_counts, some.receipts, some.micros)
def test_events(costs: list[float], by_source: dict[str, int], outcome: Any, micros: float) -> None:
    components = dict(zip(COMPONENTS, costs, strict=True))
    ledger = RoundLedger(
        **components,
        committed=2,
        candidates=5,
        accepted=1,
        proposed_by=by_source,
        failures={"a": "late"},
        matches={source: IndexMatch(count % 99, count, count % 2 == 0) for source, count in by_source.items()},
    )
    round_info = RoundInfo(3, "s", "h", 44, 5, 1, Closing.SAMPLE, ledger)
    chunk = Chunk((1, 2), "ab", (TokenLogprob(-0.5, (1,), (-0.5,)),), round_info)
    for event in (chunk, replace(chunk, round=None, logprobs=(), token_ids=())):
        assert generate.decode_event(through(generate.encode_event(event))) == event
    total = LedgerSum(1, components, 2, 5, 1, by_source, by_source, {"a": 1}, micros, by_source, {"b": 2})
    certificate = Certificate(
        "greedy", Exactness.EXACT, "p", "h", b"{}", ("q",), total, {"a": "late"}, {"b": "gone"}, micros, 2
    )
    final = Final(FinishReason.STOP, Usage(1, 2, 3, 4, 5), certificate, "END", 0)
    for event in (final, replace(final, stop_string=None, stop_id=None, finish=FinishReason.DEADLINE)):
        assert generate.decode_event(through(generate.encode_event(event))) == event


@pytest.mark.parametrize("budget", [-1, 2**40])
def test_numbers_that_cannot_travel_are_named_by_the_sender(budget: int) -> None:
    coordinates = RoundManifest("h", "s", 0, 1, Frontier([1]).digest, 0, ())
    request = ProposeRequest("x", coordinates, SamplingPolicy(), np.array([1]), budget, 4)
    with pytest.raises(Exception, match="node_budget"):
        proposer.PrefixSender().encode(request, call_id=1, traceparent="")
