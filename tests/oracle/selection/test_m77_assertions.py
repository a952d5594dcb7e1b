"""M7.7 section 0x0F: the implementation assertions, line by line, over random merged graphs and at admission."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from contracts.capability import SourceDescription, admit
from contracts.errors import FailedPrecondition
from contracts.graph import CandidateGraph, check_commit, check_graph, merge_by_full_prefix
from contracts.randomness import CoinChooser
from contracts.sampling import SamplingPolicy
from contracts.topology import (
    ANCHOR,
    ProbabilitySemantics,
    SamplingRelation,
    Topology,
    ancestor_mask,
    path_to,
)
from models.laws import TargetLaws
from tests.helpers.enumeration import paths_of
from tests.helpers.proposals import paths_proposal, position_ids
from verifier.selection import VERIFIERS

PREFIX_LEN, VOCAB = 10, 4


def random_graph(seed: int) -> CandidateGraph:
    rng = np.random.default_rng(seed)
    offers = [
        paths_proposal(name, [rng.integers(VOCAB, size=rng.integers(1, 5)).tolist() for _ in range(4)])
        for name in ("hydra", "rest")
    ]
    return merge_by_full_prefix(offers, budget=64)


@pytest.mark.parametrize("seed", range(20))
def test_rows_positions_prefixes_and_mask_are_as_asserted(seed: int) -> None:
    graph = random_graph(seed)
    check_graph(graph, vocab_size=VOCAB, max_rows=64)
    prefixes = paths_of(graph)
    assert len(set(prefixes)) == len(prefixes)
    positions, mask = position_ids(graph.parents, PREFIX_LEN).tolist(), ancestor_mask(graph.parents)
    for row, parent in enumerate(graph.parents.tolist()):
        assert ANCHOR <= parent < row
        depth = 1 if parent == ANCHOR else len(prefixes[parent]) + 1
        assert positions[row] == PREFIX_LEN + depth - 1
        assert prefixes[row] == (() if parent == ANCHOR else prefixes[parent]) + (int(graph.token_ids[row]),)
        for other in range(len(graph)):
            assert mask[row, other] == (prefixes[row][: len(prefixes[other])] == prefixes[other])


@pytest.mark.parametrize("seed", range(20))
def test_the_predictor_of_a_row_is_its_parent_or_the_anchor(seed: int) -> None:
    # The law of each row names one child, or a token that is no child: greedy goes where the predictor rows say.
    graph, rng = random_graph(seed), np.random.default_rng(seed)
    choices = rng.integers(VOCAB, size=len(graph) + 1)
    laws = TargetLaws.from_probabilities(np.eye(VOCAB)[choices])
    rows: list[int] = []
    row = ANCHOR
    while int(choices[row + 1]) in graph.children.get(row, {}):
        row = graph.children[row][int(choices[row + 1])]
        rows.append(row)
    for name in ("greedy", "membership"):
        selection = VERIFIERS[name].select(graph, laws, CoinChooser(seed, PREFIX_LEN), prefix_len=PREFIX_LEN)
        assert selection.rows == tuple(rows)
        assert selection.token == choices[row + 1]
        check_commit(graph, selection.rows)
        assert selection.rows == (path_to(graph.parents, row) if rows else ())


@pytest.mark.parametrize("field", ["tokenizer_digest", "target_digest"])
def test_a_source_for_another_tokenizer_or_target_is_not_admitted(field: str) -> None:
    digests = {"tokenizer_digest": "t", "target_digest": "m"}
    fits = SourceDescription(
        "hydra",
        "heads",
        "1",
        ProbabilitySemantics.SCORE_ONLY,
        SamplingRelation.BEAM,
        Topology.TREE,
        tokenizer_digest="t",
        target_digest="m",
    )
    wrong = (
        replace(fits, tokenizer_digest="other") if field == "tokenizer_digest" else replace(fits, target_digest="other")
    )
    membership = VERIFIERS["membership"].capability
    admit(membership, [fits], SamplingPolicy(), exact_mode=True, **digests)
    with pytest.raises(FailedPrecondition, match="another"):
        admit(membership, [wrong], SamplingPolicy(), exact_mode=True, **digests)
    rejection = VERIFIERS["rejection"].capability
    with pytest.raises(FailedPrecondition, match="semantics"):
        admit(rejection, [fits], SamplingPolicy(), exact_mode=True, **digests)
