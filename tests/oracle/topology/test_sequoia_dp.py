"""Sequoia's DP against exhaustive search, its golden cases, and M7.7's synthetic example (section 0x0AD)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from contracts.errors import InvalidArgument
from contracts.tree_shape import chain, shape_from_paths
from proposer.topology.acceptance import expected_tokens, selected_from_conditional, selected_table
from proposer.topology.counting import with_root
from proposer.topology.hardware import RoundCosts, TargetCurve, choose
from proposer.topology.sequoia import best_shape, expected_by_size
from tests.helpers.goldens import golden_cases
from tests.oracle.topology.enumeration import naive_score, shapes

SYNTHETIC = selected_from_conditional([0.82, 0.48, 0.24])
TABLES = {
    "M7.7": [SYNTHETIC.tolist()],
    "one child": [[0.7]],
    "ties": [[0.25, 0.25, 0.25, 0.25]],
    "later child likelier": [[0.1, 0.6, 0.2]],
    "some never": [[0.5, 0.0, 0.3]],
    "by depth": [[0.6, 0.2, 0.1], [0.3, 0.3, 0.2], [0.8, 0.1, 0.0]],
    "certain": [[1.0, 0.0]],
}


@pytest.mark.parametrize("name", TABLES)
def test_the_dp_equals_exhaustive_search_over_all_small_ordered_trees(name: str) -> None:
    acceptance = TABLES[name]
    ranks = len(acceptance[0])
    expected = expected_by_size(acceptance, 8, 5)
    for depth in range(1, 6):
        for nodes in range(2, 9):
            scores = [naive_score(shape, acceptance) for shape in shapes(nodes - 1, depth=depth, ranks=ranks)]
            if not scores:
                assert np.isneginf(expected[nodes, depth])
                with pytest.raises(InvalidArgument, match="no tree"):
                    best_shape(acceptance, nodes, depth)
                continue
            assert expected[nodes, depth] == pytest.approx(max(scores), abs=1e-12)
            shape = best_shape(acceptance, nodes, depth)
            assert with_root(len(shape)) == nodes
            assert shape.max_depth <= depth
            assert naive_score(shape, acceptance) == pytest.approx(max(scores), abs=1e-12)
            assert expected_tokens(shape, selected_table(acceptance)) == pytest.approx(max(scores), abs=1e-12)


def test_exhaustive_search_sees_every_ordered_tree() -> None:
    # Ordered trees of n + 1 nodes are counted by the Catalan numbers.
    assert [sum(1 for _ in shapes(n, depth=n, ranks=n)) for n in range(1, 8)] == [1, 2, 5, 14, 42, 132, 429]


def test_the_synthetic_example_selects_the_five_node_chain_at_depth_four() -> None:
    np.testing.assert_allclose(SYNTHETIC, [0.82, 0.0864, 0.022464], atol=1e-15)
    assert sum(SYNTHETIC) == pytest.approx(0.928864, abs=1e-15)
    costs = RoundCosts(TargetCurve(tuple(range(1, 9)), (1.0, 1.00, 1.03, 1.08, 1.16, 1.28, 1.43, 1.62)), draft_us=0.09)
    expected = expected_by_size(SYNTHETIC, 8, 4)
    choice = choose(expected, costs, sizes=range(2, 9))
    assert (choice.nodes, choice.depth) == (5, 4)
    assert choice.expected == pytest.approx(3.49588976, abs=1e-12)
    assert choice.us_per_token == pytest.approx((1.16 + 4 * 0.09) / 3.49588976, abs=1e-12)
    assert best_shape(SYNTHETIC, choice.nodes, choice.depth) == chain(4)


def test_conditional_rates_passed_as_selected_probabilities_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"sibling mass 1\.54 exceeds 1"):
        expected_by_size([0.82, 0.48, 0.24], 8, 4)


@golden_cases("sequoia_dp.json", lambda file: file)
def test_the_dp_and_the_choice_hold_on_the_golden_cases(case: dict[str, Any]) -> None:
    acceptance = case["acceptance_vector_with_p_none"][1:-1]
    levels, budget = case["max_levels"], case["max_budget"]
    expected = expected_by_size(acceptance, budget, levels - 1)
    for nodes, row in case.get("score_by_budget_levels", {}).items():
        for level in range(1, levels + 1):
            theirs = -np.inf if row[level] is None else row[level]
            # A level is a node of the deepest path, the root included: one more than our depth.
            assert expected[int(nodes), level - 1] == pytest.approx(theirs, abs=1e-4)
    sizes, times, draft = case["valid_budgets"], case["target_times"], case["draft_time_per_level"]
    # They charge one level of drafting more a round than there are edges, plain decoding included.
    costs = RoundCosts(TargetCurve(tuple(sizes), tuple(t + draft for t in times)), draft_us=draft)
    choice = choose(expected, costs, sizes=[n for n in sizes if n > 1])
    assert choice.us_per_token == pytest.approx(case["time_per_token"], abs=1e-4)
    assert times[0] / choice.us_per_token == pytest.approx(case["speedup"], abs=1e-4)
    nodes, level = case["selected_nodes_levels"]
    if [choice.nodes, choice.depth + 1] != [nodes, level]:
        # Another tree is right only where the two cost the same per token.
        theirs = costs.round_us(nodes, level - 1) / expected[nodes, level - 1]
        assert theirs == pytest.approx(choice.us_per_token, rel=1e-9)
    assert expected[nodes, level - 1] == pytest.approx(case["expected_tokens"], abs=1e-4)
    published = shape_from_paths(rank_paths(case["successors"]))
    assert expected_tokens(published, selected_table(acceptance)) == pytest.approx(case["expected_tokens"], abs=1e-4)
    ours = best_shape(acceptance, choice.nodes, choice.depth)
    assert with_root(len(ours)) == choice.nodes
    assert expected_tokens(ours, selected_table(acceptance)) == pytest.approx(choice.expected, abs=1e-9)


def rank_paths(successors: list[list[int]]) -> list[tuple[int, ...]]:
    """The rank path of every node but the root (0) of a tree given as each node's children in rank order."""
    path_of: dict[int, tuple[int, ...]] = {0: ()}
    for node, children in enumerate(successors):
        path_of |= {child: (*path_of[node], rank) for rank, child in enumerate(children)}
    return [path for node, path in path_of.items() if node]
