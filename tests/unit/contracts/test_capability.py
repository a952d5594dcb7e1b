"""A pair of sources and verifier that is not provably compatible is refused before the target runs."""

from dataclasses import replace

import pytest

from contracts.capability import (
    ALL_RELATIONS,
    ALL_SEMANTICS,
    ROW_TOPOLOGIES,
    Exactness,
    SourceDescription,
    VerifierCapability,
    admit,
    bind,
    choose,
)
from contracts.draft_law import law_from_probabilities
from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.graph import EMPTY_GRAPH, merge_by_full_prefix
from contracts.sampling import SamplingPolicy
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from tests.helpers.proposals import drawn_proposal, paths_proposal

MEMBERSHIP = VerifierCapability("membership", Exactness.EXACT, "", ALL_SEMANTICS, ALL_RELATIONS, ROW_TOPOLOGIES)
GREEDY = replace(MEMBERSHIP, name="greedy", greedy_only=True)
REJECTION = VerifierCapability(
    "rejection",
    Exactness.EXACT,
    "",
    frozenset({ProbabilitySemantics.NORMALIZED_CONDITIONAL}),
    frozenset({SamplingRelation.INDEPENDENT}),
    frozenset({Topology.SEQUENCE}),
    needs_law=True,
    single_source=True,
)
TYPICAL = replace(MEMBERSHIP, name="typical", exactness=Exactness.HEURISTIC)
LOOKUP = SourceDescription(
    "lookup", "proposer", "1", ProbabilitySemantics.ABSENT, SamplingRelation.DETERMINISTIC_LOOKUP, Topology.SEQUENCE
)
DRAFT = replace(
    LOOKUP,
    name="draft",
    semantics=ProbabilitySemantics.NORMALIZED_CONDITIONAL,
    relation=SamplingRelation.INDEPENDENT,
)
LAW = law_from_probabilities([1, 2], [0.5, 0.5])


def admitted(
    capability: VerifierCapability,
    *sources: SourceDescription,
    policy: SamplingPolicy = SamplingPolicy(),  # noqa: B008
    exact_mode: bool = True,
) -> None:
    admit(capability, sources, policy, exact_mode=exact_mode, tokenizer_digest="tok", target_digest="tgt")


def test_compatible_pairs_are_admitted() -> None:
    admitted(MEMBERSHIP, LOOKUP, DRAFT)
    admitted(REJECTION, DRAFT)
    admitted(GREEDY, LOOKUP, policy=SamplingPolicy(temperature=0.0))
    admitted(TYPICAL, LOOKUP, exact_mode=False)
    admitted(REJECTION)


@pytest.mark.parametrize(
    ("capability", "sources", "field"),
    [
        (REJECTION, (LOOKUP,), "sources.semantics"),
        (REJECTION, (replace(DRAFT, relation=SamplingRelation.BEAM),), "sources.relation"),
        (REJECTION, (replace(DRAFT, topology=Topology.TREE),), "sources.topology"),
        (REJECTION, (DRAFT, replace(DRAFT, name="other")), "sources"),
        (GREEDY, (LOOKUP,), "sampling.temperature"),
        (TYPICAL, (LOOKUP,), "exactness"),
        (MEMBERSHIP, (replace(LOOKUP, tokenizer_digest="other"),), "sources.tokenizer_digest"),
        (MEMBERSHIP, (replace(LOOKUP, target_digest="other"),), "sources.target_digest"),
        (MEMBERSHIP, (replace(LOOKUP, topology=Topology.METADATA_GRAPH),), "sources.topology"),
    ],
)
def test_a_wrong_pair_is_refused_at_admission(
    capability: VerifierCapability, sources: tuple[SourceDescription, ...], field: str
) -> None:
    with pytest.raises(FailedPrecondition) as caught:
        admitted(capability, *sources)
    assert caught.value.field == field


def test_sampling_only_verifiers_refuse_temperature_zero() -> None:
    with pytest.raises(FailedPrecondition, match="temperature"):
        admitted(replace(MEMBERSHIP, sampling_only=True), LOOKUP, policy=SamplingPolicy(temperature=0.0))


def test_a_merged_graph_of_hydra_and_rest_cannot_be_bound_to_a_q_verifier() -> None:
    mixed = merge_by_full_prefix(
        [drawn_proposal("hydra", [(1, -1)], {-1: LAW}), paths_proposal("rest", [[2]])], budget=8
    )
    bind(MEMBERSHIP, mixed)
    with pytest.raises(FailedPrecondition, match="semantics"):
        bind(REJECTION, mixed)


def test_duplicate_draws_make_a_set_that_a_sequence_verifier_refuses() -> None:
    graph = merge_by_full_prefix([drawn_proposal("d", [(1, -1), (1, -1)], {-1: LAW})], budget=8)
    with pytest.raises(FailedPrecondition, match="topology"):
        bind(REJECTION, graph)


def test_identical_laws_are_demanded_per_parent_where_the_proof_needs_them() -> None:
    spectr = replace(REJECTION, name="spectr", topologies=ROW_TOPOLOGIES, identical_laws=True, single_source=False)
    other = law_from_probabilities([1, 2], [0.75, 0.25])
    same = [drawn_proposal("a", [(1, -1)], {-1: LAW}), drawn_proposal("b", [(2, -1)], {-1: LAW})]
    mixed = [same[0], drawn_proposal("b", [(2, -1)], {-1: other})]
    bind(spectr, merge_by_full_prefix(same, budget=8))
    with pytest.raises(FailedPrecondition, match="one law"):
        bind(spectr, merge_by_full_prefix(mixed, budget=8))


def test_an_empty_graph_binds_to_anything() -> None:
    bind(REJECTION, EMPTY_GRAPH)


def test_defaults_are_greedy_at_zero_and_membership_above() -> None:
    known = [GREEDY, MEMBERSHIP, REJECTION]
    assert choose(known, "", SamplingPolicy(temperature=0.0)) is GREEDY
    assert choose(known, "", SamplingPolicy(temperature=0.7)) is MEMBERSHIP
    assert choose(known, "rejection", SamplingPolicy()) is REJECTION
    with pytest.raises(InvalidArgument, match="known: greedy, membership, rejection"):
        choose(known, "nonsense", SamplingPolicy())
