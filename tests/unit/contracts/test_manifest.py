"""Manifests are canonical bytes: equal content, equal hash; any change, another hash."""

import hashlib
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest

from contracts.capability import SourceDescription
from contracts.errors import InvalidArgument
from contracts.frontier import Frontier
from contracts.graph import CandidateGraph, Draw, merge_by_full_prefix
from contracts.manifest import Manifest, RoundManifest, SourcePlan, TargetIdentity, canonical_bytes
from contracts.options import SourceOption
from contracts.payload import payload_digest
from contracts.sampling import SamplingPolicy
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from tests.helpers.proposals import drawn_proposal, paths_proposal, point_law

TARGET = TargetIdentity("m", "c", "t", 100, 2048, "float32", "cpu", "hw")
SOURCE = SourceDescription(
    "s", "proposer", "v1", ProbabilitySemantics.ABSENT, SamplingRelation.DETERMINISTIC_LOOKUP, Topology.SEQUENCE
)
MANIFEST = Manifest(TARGET, SamplingPolicy().to_json(), (SOURCE,), "greedy", "exact", 16, 8)
ROUND = RoundManifest(MANIFEST.hash, "session", 3, 10, "f" * 64, 3, (SourcePlan("s", 8, 8),), {"s": 2})


def test_hash_is_sha256_of_the_canonical_bytes_and_stable_across_key_order() -> None:
    assert MANIFEST.hash == hashlib.sha256(MANIFEST.canonical).hexdigest()
    assert canonical_bytes({"b": 1, "a": 0.1}) == canonical_bytes({"a": 0.1, "b": 1})
    assert canonical_bytes({"a": 0.1}) == b'{"a":{"f64":"0x1.999999999999ap-4"}}'


@pytest.mark.parametrize(
    "changed",
    [
        replace(MANIFEST, target=replace(TARGET, tokenizer_digest="other")),
        replace(MANIFEST, target=replace(TARGET, dtype="bfloat16")),
        replace(MANIFEST, target=replace(TARGET, hardware="other")),
        replace(MANIFEST, sampling=SamplingPolicy(seed=1).to_json()),
        replace(MANIFEST, sources=(replace(SOURCE, version="v2"),)),
        replace(MANIFEST, releases={"s": "r1"}),
        replace(MANIFEST, options={"s.max_ngram": 3}),
        replace(MANIFEST, indexes={"s": "code"}),
        replace(MANIFEST, tenant="alice"),
        replace(MANIFEST, target=replace(TARGET, batching="pass_rows=8")),
        replace(MANIFEST, sources=(replace(SOURCE, options=(SourceOption("n", 1, 2, 1),)),)),
        replace(MANIFEST, verifier="membership"),
        replace(MANIFEST, exactness="heuristic"),
        replace(MANIFEST, node_budget=17),
        replace(MANIFEST, parent="p"),
    ],
)
def test_any_change_gives_another_session_hash(changed: Manifest) -> None:
    assert changed.hash != MANIFEST.hash


@pytest.mark.parametrize(
    "changed",
    [
        replace(ROUND, round_id=4),
        replace(ROUND, session_id="other"),
        replace(ROUND, prefix_len=11),
        replace(ROUND, frontier="e" * 64),
        replace(ROUND, target_generation=4),
        replace(ROUND, source_generations={"s": 3}),
        replace(ROUND, live_generation=1),
        replace(ROUND, plan=(SourcePlan("s", 9, 8),)),
        replace(ROUND, manifest_hash="0" * 64),
    ],
)
def test_any_change_gives_another_round_hash(changed: RoundManifest) -> None:
    assert changed.hash != ROUND.hash


def test_what_has_no_canonical_form_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="canonical"):
        canonical_bytes({"a": object()})


def test_frontier_digest_depends_on_tokens_and_not_on_how_rounds_split_them() -> None:
    whole, parts = Frontier([1, 2, 3, 70000]), Frontier([1])
    parts.publish([2, 3])
    parts.publish([])
    parts.publish((70000,))
    assert whole.digest == parts.digest
    assert whole.digest == hashlib.sha256(np.array([1, 2, 3, 70000], dtype="<u4").tobytes()).hexdigest()
    assert Frontier([1, 2]).digest != Frontier([2, 1]).digest
    assert parts.tokens.tolist() == [1, 2, 3, 70000]


@pytest.mark.parametrize("token", [-1, 2**32])
@pytest.mark.parametrize("kind", [tuple, list])
def test_frontier_takes_no_token_that_32_bits_do_not_hold(token: int, kind: type) -> None:
    frontier = Frontier([1, 2])
    before = frontier.digest
    with pytest.raises(OverflowError):
        frontier.publish(kind([7, token]))
    assert (len(frontier), frontier.digest) == (2, before)


@pytest.mark.parametrize(
    ("token", "parent", "row", "field"),
    [(2**32, -1, 0, "token_ids"), (-1, -1, 0, "token_ids"), (5, 2**31, 0, "parents"), (5, -1, 2**31, "draws")],
)
def test_payload_digest_names_the_column_that_has_too_large_a_number(
    token: int, parent: int, row: int, field: str
) -> None:
    graph = CandidateGraph(np.array([token]), np.array([parent]), (("a",),), (Draw(-1, row, "a"),))
    with pytest.raises(InvalidArgument) as refused:
        payload_digest(ROUND, graph)
    assert refused.value.field == f"graph.{field}"


def test_payload_digest_tells_any_difference_in_rows_draws_or_round() -> None:
    graphs = [
        merge_by_full_prefix([paths_proposal("a", [[1, 2]])], budget=8),
        merge_by_full_prefix([paths_proposal("a", [[1], [2]])], budget=8),
        merge_by_full_prefix([paths_proposal("b", [[1, 2]])], budget=8),
        merge_by_full_prefix([paths_proposal("a", [[1, 3]])], budget=8),
        merge_by_full_prefix([paths_proposal("a", [[1, 2]]), paths_proposal("b", [[1, 2]])], budget=8),
    ]
    digests = {payload_digest(ROUND, graph) for graph in graphs}
    assert len(digests) == len(graphs)
    assert payload_digest(replace(ROUND, round_id=9), graphs[0]) not in digests
    assert payload_digest(ROUND, merge_by_full_prefix([paths_proposal("a", [[1, 2]])], budget=8)) in digests


def test_payload_digest_is_that_of_the_columns_as_they_were_first_written() -> None:
    graph = merge_by_full_prefix(
        [
            paths_proposal("a", [[1, 2], [70000]], semantics=ProbabilitySemantics.FREQUENCY),
            drawn_proposal("b", [(1, -1), (1, -1)], {-1: point_law(1)}),
        ],
        budget=9,
    )
    written = hashlib.sha256(ROUND.hash.encode())
    written.update(graph.token_ids.astype("<u4").tobytes() + graph.parents.astype("<i4").tobytes())
    written.update(np.array([[d.parent, d.row, d.law] for d in graph.draws], "<i4").tobytes())
    written.update(b"\0".join(draw.source.encode() for draw in graph.draws))
    for law in graph.laws:
        written.update(law.token_ids.astype("<u4").tobytes() + law.weights.astype("<u8").tobytes())
    for kinds in (graph.semantics, graph.relations):
        written.update("".join(sorted(kinds)).encode())
    assert payload_digest(ROUND, graph) == written.hexdigest()


def test_tokens_given_out_stay_as_they_were_while_the_frontier_grows():
    frontier = Frontier([1, 2])
    views = []
    for token in range(600):
        views.append(frontier.tokens)
        frontier.publish([token])
    assert [len(view) for view in views] == list(range(2, 602))
    assert all(view.tolist() == [1, 2, *range(len(view) - 2)] for view in views)


def test_no_field_of_a_round_manifest_can_be_set_again():
    manifest = RoundManifest("m", "s", 0, 1, "f", 0, (SourcePlan("lookup", 4, 2),))
    for record in (manifest, manifest.plan[0]):
        for field in fields(record):
            with pytest.raises(FrozenInstanceError):
                setattr(record, field.name, getattr(record, field.name))


def test_a_frontier_that_begins_with_nothing_takes_a_round_of_nothing_and_what_follows():
    frontier = Frontier()
    frontier.publish(())
    assert (len(frontier), frontier.tokens.tolist(), frontier.digest) == (0, [], hashlib.sha256().hexdigest())
    frontier.publish((7, 2**32 - 1))
    assert frontier.tokens.tolist() == [7, 2**32 - 1]
    assert frontier.digest == Frontier([7, 2**32 - 1]).digest
