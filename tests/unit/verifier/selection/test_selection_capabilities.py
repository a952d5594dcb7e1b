"""What each verifier declares, and that a wrong pair is refused before the target runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from contracts.capability import Exactness, SourceDescription, admit, bind, choose
from contracts.draft_law import law_from_probabilities
from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.graph import EMPTY_GRAPH, CandidateGraph, Draw
from contracts.randomness import CoinChooser
from contracts.sampling import SamplingPolicy
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from models.laws import TargetLaws
from verifier.selection import VERIFIERS

LAW = law_from_probabilities([0, 1, 2], [0.2, 0.3, 0.5])
OTHER = law_from_probabilities([0, 1], [0.5, 0.5])
NORMALIZED = ProbabilitySemantics.NORMALIZED_CONDITIONAL
Q_RELATION = {
    "rejection": SamplingRelation.INDEPENDENT,
    "block": SamplingRelation.INDEPENDENT,
    "spectr": SamplingRelation.INDEPENDENT,
    "specinfer": SamplingRelation.INDEPENDENT,
    "sequoia": SamplingRelation.WITHOUT_REPLACEMENT,
    "traversal": SamplingRelation.WITHOUT_REPLACEMENT,
}


def one_node(relation: SamplingRelation, semantics: ProbabilitySemantics = NORMALIZED, law: int = 0) -> CandidateGraph:
    return CandidateGraph(
        np.array([1]),
        np.array([-1]),
        (("a",),),
        (Draw(-1, 0, "a", law),),
        (LAW,),
        frozenset({semantics}),
        frozenset({relation}),
    )


def test_registry_holds_the_whole_table_under_its_own_names() -> None:
    assert set(VERIFIERS) == {
        *("greedy", "membership", "gumbel_coupled", "rejection", "block", "spectr"),
        *("specinfer", "sequoia", "traversal", "typical", "smc"),
    }
    assert all(name == verifier.capability.name for name, verifier in VERIFIERS.items())


@pytest.mark.parametrize("relation", SamplingRelation)
@pytest.mark.parametrize("name", Q_RELATION)
def test_q_based_verifiers_bind_exactly_their_relation(name: str, relation: SamplingRelation) -> None:
    capability = VERIFIERS[name].capability
    if relation is Q_RELATION[name]:
        bind(capability, one_node(relation))
    else:
        with pytest.raises(FailedPrecondition, match="relation"):
            bind(capability, one_node(relation))


@pytest.mark.parametrize("semantics", [s for s in ProbabilitySemantics if s is not NORMALIZED])
@pytest.mark.parametrize("name", Q_RELATION)
def test_scores_and_frequencies_are_never_read_as_q(name: str, semantics: ProbabilitySemantics) -> None:
    with pytest.raises(FailedPrecondition, match="semantics"):
        bind(VERIFIERS[name].capability, one_node(Q_RELATION[name], semantics, law=-1))
    with pytest.raises(FailedPrecondition, match="needs the law"):
        bind(VERIFIERS[name].capability, one_node(Q_RELATION[name], law=-1))


@pytest.mark.parametrize("name", ["greedy", "membership", "typical"])
def test_verifiers_without_q_bind_anything(name: str) -> None:
    for relation in SamplingRelation:
        for semantics in ProbabilitySemantics:
            bind(VERIFIERS[name].capability, one_node(relation, semantics, law=-1))


def test_coupled_verification_binds_shared_noise_only() -> None:
    bind(
        VERIFIERS["gumbel_coupled"].capability,
        one_node(SamplingRelation.SHARED_NOISE, ProbabilitySemantics.SCORE_ONLY, -1),
    )
    with pytest.raises(FailedPrecondition, match="relation"):
        bind(
            VERIFIERS["gumbel_coupled"].capability, one_node(SamplingRelation.BEAM, ProbabilitySemantics.SCORE_ONLY, -1)
        )


@pytest.mark.parametrize("name", ["rejection", "block"])
def test_sequence_verifiers_refuse_siblings(name: str) -> None:
    siblings = CandidateGraph(
        np.array([1, 2]),
        np.array([-1, -1]),
        (("a",), ("a",)),
        (Draw(-1, 0, "a", 0), Draw(-1, 1, "a", 0)),
        (LAW,),
        frozenset({NORMALIZED}),
        frozenset({SamplingRelation.INDEPENDENT}),
    )
    with pytest.raises(FailedPrecondition, match="topology"):
        bind(VERIFIERS[name].capability, siblings)
    bind(VERIFIERS["spectr"].capability, siblings)
    mixed = replace(siblings, draws=(Draw(-1, 0, "a", 0), Draw(-1, 1, "b", 1)), laws=(LAW, OTHER))
    with pytest.raises(FailedPrecondition, match="one law"):
        bind(VERIFIERS["spectr"].capability, mixed)


def test_exact_mode_admits_exact_verifiers_only() -> None:
    inexact = {name for name, v in VERIFIERS.items() if v.capability.exactness is not Exactness.EXACT}
    assert inexact == {"typical", "smc"}
    for name in inexact:
        with pytest.raises(FailedPrecondition, match="exact mode"):
            admit(
                VERIFIERS[name].capability,
                [],
                SamplingPolicy(),
                exact_mode=True,
                tokenizer_digest="",
                target_digest="",
            )


def test_smc_is_refused_to_every_session_but_those_of_a_group() -> None:
    smc = VERIFIERS["smc"].capability

    def admitted(*relations: SamplingRelation, topology: Topology = Topology.SEQUENCE) -> None:
        sources = [SourceDescription(f"s{i}", "k", "1", NORMALIZED, r, topology) for i, r in enumerate(relations)]
        admit(smc, sources, SamplingPolicy(), exact_mode=False, tokenizer_digest="", target_digest="")

    for relation in SamplingRelation:
        if relation is not SamplingRelation.POPULATION:
            with pytest.raises(FailedPrecondition, match="verifier: verifier 'smc' weighs a group of sessions"):
                admitted(relation)
    with pytest.raises(FailedPrecondition, match="a session that streams cannot bind it"):
        admitted()
    with pytest.raises(FailedPrecondition, match="topology"):
        admitted(SamplingRelation.POPULATION, topology=Topology.TREE)
    admitted(SamplingRelation.POPULATION)
    with pytest.raises(FailedPrecondition, match="relation"):
        bind(smc, one_node(SamplingRelation.INDEPENDENT))
    with pytest.raises(FailedPrecondition, match="needs the law"):
        bind(smc, one_node(SamplingRelation.POPULATION, law=-1))
    bind(smc, one_node(SamplingRelation.POPULATION))
    bind(smc, EMPTY_GRAPH)


def test_a_particles_session_publishes_its_block_whole() -> None:
    laws = TargetLaws.from_probabilities([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    selection = VERIFIERS["smc"].select(one_node(SamplingRelation.POPULATION), laws, CoinChooser(0, 1), prefix_len=1)
    assert selection.rows == (0,)
    assert selection.token == 2


def test_defaults_are_greedy_at_zero_and_membership_above() -> None:
    capabilities = [verifier.capability for verifier in VERIFIERS.values()]
    assert choose(capabilities, "", SamplingPolicy(temperature=0.0)).name == "greedy"
    assert choose(capabilities, "", SamplingPolicy()).name == "membership"
    with pytest.raises(InvalidArgument, match="unknown verifier"):
        choose(capabilities, "magic", SamplingPolicy())


def test_greedy_is_refused_above_temperature_zero_and_typical_at_it() -> None:
    with pytest.raises(FailedPrecondition, match="temperature 0 only"):
        admit(
            VERIFIERS["greedy"].capability, [], SamplingPolicy(), exact_mode=True, tokenizer_digest="", target_digest=""
        )
    cold = SamplingPolicy(temperature=0.0)
    with pytest.raises(FailedPrecondition, match="above 0"):
        admit(VERIFIERS["typical"].capability, [], cold, exact_mode=False, tokenizer_digest="", target_digest="")
