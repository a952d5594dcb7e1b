"""M7.7 sections 0x0C and 0x0CB: who may verify the heterogeneous graph, and what choosing A, B, D publishes."""

from __future__ import annotations

import numpy as np
import pytest

from contracts.capability import bind
from contracts.errors import FailedPrecondition
from contracts.graph import CandidateGraph, check_commit, merge_by_full_prefix
from contracts.randomness import CoinChooser
from models.laws import TargetLaws
from tests.helpers.proposals import paths_proposal
from verifier.selection import VERIFIERS

A, B, C, D, E, F, X = range(7)
PREFIX_LEN = 10


@pytest.fixture
def graph() -> CandidateGraph:
    hydra = paths_proposal("hydra", [[A, B, C], [A, B, D], [X, B]])
    return merge_by_full_prefix([hydra, paths_proposal("rest", [[A, B, E], [A, F]])], budget=64)


def test_the_heterogeneous_graph_is_refused_by_every_verifier_with_q(graph: CandidateGraph) -> None:
    for name in ("rejection", "block", "spectr", "specinfer", "sequoia", "traversal"):
        with pytest.raises(FailedPrecondition):
            bind(VERIFIERS[name].capability, graph)
    bind(VERIFIERS["membership"].capability, graph)


@pytest.mark.parametrize("name", ["greedy", "membership"])
def test_choosing_a_b_d_selects_their_rows_and_no_sibling(graph: CandidateGraph, name: str) -> None:
    row_a = graph.children[-1][A]
    row_b = graph.children[row_a][B]
    row_d = graph.children[row_b][D]
    p = np.full((len(graph) + 1, 7), 1e-9)
    for row, token in ((-1, A), (row_a, B), (row_b, D), (row_d, X)):
        p[row + 1, token] = 1.0
    laws = TargetLaws.from_probabilities(p / p.sum(axis=1, keepdims=True))
    selection = VERIFIERS[name].select(graph, laws, CoinChooser(0, PREFIX_LEN), prefix_len=PREFIX_LEN)
    assert selection.rows == (row_a, row_b, row_d)
    assert selection.token == X
    check_commit(graph, selection.rows)


def test_the_b_under_x_is_judged_by_its_own_row(graph: CandidateGraph) -> None:
    row_x = graph.children[-1][X]
    row_xb = graph.children[row_x][B]
    p = np.full((len(graph) + 1, 7), 1e-9)
    for row, token in ((-1, X), (row_x, B), (row_xb, F), (graph.children[graph.children[-1][A]][B], C)):
        p[row + 1, token] = 1.0
    laws = TargetLaws.from_probabilities(p / p.sum(axis=1, keepdims=True))
    selection = VERIFIERS["greedy"].select(graph, laws, CoinChooser(0, PREFIX_LEN), prefix_len=PREFIX_LEN)
    assert selection.rows == (row_x, row_xb)
    assert selection.token == F
