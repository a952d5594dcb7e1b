"""What holds of every plan and every grown tree: ancestors kept, budget kept, more budget never worse, ties settled."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.topology import ANCHOR
from contracts.tree_shape import TreeShape, shape_from_paths
from proposer.topology.acceptance import expected_tokens, selected_from_conditional, selected_table
from proposer.topology.cartesian import cartesian
from proposer.topology.eagle2 import DynamicTree, RankedTree
from proposer.topology.hardware import RoundCosts, TargetCurve
from proposer.topology.medusa_search import sparse_search
from proposer.topology.plan import CalibratedTree
from proposer.topology.sequoia import expected_by_size
from tests.oracle.topology.enumeration import naive_score, shapes
from tests.oracle.topology.hydra_buffers import head_steps
from tests.oracle.topology.medusa_buffers import medusa_buffers

# Coarse values, so that ties are common.
RATES = st.integers(0, 4).map(lambda n: n / 4)
PROBABILITIES = st.lists(RATES, min_size=1, max_size=4).map(lambda h: selected_from_conditional(h).tolist())
TABLES = st.lists(st.lists(RATES, min_size=3, max_size=3), min_size=1, max_size=3).map(
    lambda rows: [selected_from_conditional(row).tolist() for row in rows]
)


@st.composite
def grown_shapes(draw: st.DrawFn, most: int = 20) -> TreeShape:
    parents: list[int] = []
    for node in range(draw(st.integers(0, most))):
        parents.append(draw(st.integers(parents[-1] if parents else ANCHOR, node - 1)))
    return TreeShape(tuple(parents))


@given(grown_shapes(), st.integers(0, 20), st.integers(0, 6))
def test_a_cut_shape_is_a_prefix_within_budget_and_depth(shape: TreeShape, nodes: int, depth: int) -> None:
    cut = shape.within(nodes, depth)
    assert cut.parents == shape.parents[: len(cut)]
    assert len(cut) <= nodes
    assert cut.max_depth <= depth
    assert len(cut) in (nodes, len(shape)) or shape.depths[len(cut)] > depth
    assert shape_from_paths(reversed(cut.paths)) == cut


@given(grown_shapes())
def test_children_are_numbered_in_a_row_from_the_first(shape: TreeShape) -> None:
    for node in range(ANCHOR, len(shape)):
        first = shape.first_child(node)
        mine = [child for child, parent in enumerate(shape.parents) if parent == node]
        assert mine == list(range(first, first + shape.children(node))) or not mine
    assert all(shape.paths[node][:-1] == (shape.paths[p] if p >= 0 else ()) for node, p in enumerate(shape.parents))


@given(TABLES, st.integers(1, 7), st.integers(1, 4))
def test_the_dp_is_the_best_of_all_trees(acceptance: list[list[float]], nodes: int, depth: int) -> None:
    expected = expected_by_size(acceptance, nodes, depth)[nodes, depth]
    best = max((naive_score(shape, acceptance) for shape in shapes(nodes - 1, depth=depth, ranks=3)), default=-math.inf)
    assert expected == pytest.approx(best, abs=1e-12)


@given(PROBABILITIES, st.integers(2, 12), st.integers(1, 5))
def test_the_dp_never_loses_by_budget_or_depth_and_keeps_the_path_bound(
    acceptance: list[float], nodes: int, depth: int
) -> None:
    expected = expected_by_size(acceptance, nodes, depth)
    feasible = expected[1:, 1:]
    for values in (*feasible.T, *feasible):
        finite = values[np.isfinite(values)]
        assert np.all(np.diff(finite) >= -1e-12)
    for n in range(1, nodes + 1):
        for d in range(depth + 1):
            if np.isfinite(expected[n, d]):
                assert 1.0 - 1e-12 <= expected[n, d] <= min(n, d + 1) + 1e-12


@given(PROBABILITIES, st.integers(1, 10))
def test_the_dp_beats_every_chain_and_cartesian_tree_of_its_size(acceptance: list[float], nodes: int) -> None:
    table = selected_table(acceptance)
    expected = expected_by_size(table, nodes + 1, nodes)
    for width in range(1, table.shape[1] + 1):
        rival = cartesian((width,), nodes=nodes, depth=nodes)
        assert len(rival) == nodes
        assert expected[nodes + 1, rival.max_depth] >= expected_tokens(rival, table) - 1e-12


@given(st.lists(st.lists(RATES, min_size=3, max_size=3), min_size=1, max_size=4), st.integers(1, 20))
def test_the_sparse_search_is_closed_nested_and_sorted(accuracies: list[list[float]], nodes: int) -> None:
    found = sparse_search(accuracies, nodes)
    assert len(found) <= nodes
    shape_from_paths(found)
    assert sparse_search(accuracies, nodes + 1)[: len(found)] == found
    assert sparse_search(accuracies, nodes) == found
    order = {path: index for index, path in enumerate(found)}
    for path in found:
        assert len(path) == 1 or order[path[:-1]] < order[path]
        assert path[-1] == 0 or order[(*path[:-1], path[-1] - 1)] < order[path]


@given(st.lists(st.lists(RATES, min_size=2, max_size=3), min_size=1, max_size=3), st.integers(1, 6))
def test_the_sparse_search_is_optimal_where_accuracies_fall_with_rank(rows: list[list[float]], nodes: int) -> None:
    accuracies = [sorted((row + [0.0] * 3)[:3], reverse=True) for row in rows]
    gain = sum(math.prod(accuracies[d][r] for d, r in enumerate(path)) for path in sparse_search(accuracies, nodes))
    best = max(
        naive_score(shape, accuracies) - 1.0
        for size in range(nodes + 1)
        for shape in shapes(size, depth=len(accuracies), ranks=3)
    )
    assert gain == pytest.approx(best, abs=1e-12)


@given(PROBABILITIES, st.integers(1, 12), st.integers(1, 5), st.integers(0, 14), st.integers(0, 6))
def test_a_calibrated_plan_keeps_budget_and_depth_and_pays_more_with_room(
    acceptance: list[float], nodes: int, depth: int, budget: int, limit: int
) -> None:
    costs = RoundCosts(TargetCurve((1, 4, 13), (10.0, 11.0, 17.0)), draft_us=0.5, fixed_us=0.2)
    plan = CalibratedTree(selected_table(acceptance), costs, nodes, depth)
    shape = plan.shape(budget, limit)
    assert len(shape) <= min(budget, nodes)
    assert shape.max_depth <= min(limit, depth)
    assert plan.shape(budget, limit) == shape
    choice = plan.choice(budget, limit)
    assert choice.us_per_token <= 10.0
    assert plan.choice(budget + 1, limit + 1).us_per_token <= choice.us_per_token
    assert expected_tokens(shape, plan.acceptance) == pytest.approx(choice.expected, abs=1e-9)


@given(grown_shapes())
def test_buffers_describe_the_same_tree(shape: TreeShape) -> None:
    buffers = medusa_buffers(shape, top_k=32)
    assert buffers.depths.tolist() == (buffers.mask.sum(axis=1) - 1).tolist()
    for path in buffers.paths:
        rows = path[path >= 0]
        assert np.flatnonzero(buffers.mask[rows[-1]]).tolist() == rows.tolist()
        assert buffers.depths[rows].tolist() == list(range(len(rows)))
    slots = [0, *((depth - 1) * 32 + rank + 1 for depth, rank in zip(shape.depths, shape.ranks, strict=True))]
    assert buffers.slots.tolist() == slots
    steps = head_steps(shape)
    assert sum(sum(step.children) for step in steps) == len(shape)
    for above, below in pairwise(steps):
        assert sum(above.grown) == len(below.nodes)
        assert below.mask.sum(axis=1).tolist() == [shape.depths[below.nodes[0]]] * len(below.nodes)


LOG_PROBS = st.sampled_from([0.0, -0.25, -0.5, -1.0, -3.0])


def dynamic(children: list[list[float]], top_k: int, depth: int) -> DynamicTree:
    """Grows with the children's log-probabilities taken round robin from `children`."""
    tree, used = DynamicTree(top_k), 0
    for level in range(depth):
        for node in tree.frontier() if level else [ANCHOR]:
            log_probs = children[used % len(children)][:top_k]
            used += 1
            tree.add(node, list(range(len(log_probs))), log_probs)
    return tree


CHILDREN = st.lists(
    st.lists(LOG_PROBS, min_size=3, max_size=3).map(lambda values: sorted(values, reverse=True)), min_size=1, max_size=5
)


@given(CHILDREN, st.integers(1, 3), st.integers(1, 4), st.integers(0, 40))
def test_reranking_keeps_ancestors_and_budget_and_the_most_valuable(
    children: list[list[float]], top_k: int, depth: int, nodes: int
) -> None:
    tree = dynamic(children, top_k, depth)
    ranked = tree.rerank(nodes)
    assert len(ranked.tokens) == min(nodes, len(tree))
    for node, parent in enumerate(ranked.parents):
        assert ANCHOR <= parent < node
        assert ranked.depths[node] == (ranked.depths[parent] + 1 if parent >= 0 else 1)
        assert parent < 0 or ranked.scores[parent] >= ranked.scores[node]
    whole = tree.rerank(len(tree))
    assert sorted(ranked.scores, reverse=True) == sorted(whole.scores, reverse=True)[: len(ranked.scores)]
    assert dynamic(children, top_k, depth).rerank(nodes) == ranked


@given(CHILDREN, st.integers(1, 3), st.integers(1, 4), st.integers(1, 40))
def test_a_larger_rerank_contains_the_smaller(children: list[list[float]], top_k: int, depth: int, nodes: int) -> None:
    def keys(ranked: RankedTree) -> set[tuple[int, ...]]:
        out: list[tuple[int, ...]] = []
        for token, parent in zip(ranked.tokens, ranked.parents, strict=True):
            out.append((*(out[parent] if parent >= 0 else ()), token))
        return set(out)

    tree = dynamic(children, top_k, depth)
    assert keys(tree.rerank(nodes - 1)) <= keys(tree.rerank(nodes))
