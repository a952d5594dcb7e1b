"""What is offered of a grown tree, by its definition."""

from __future__ import annotations

import numpy as np
import pytest

from proposer.heads.head import Grown
from proposer.heads.ranked_tree import best_of


def _grown(seed: int, count: int) -> Grown:
    """A random tree whose values, of which many are equal, never rise from parent to child."""
    random = np.random.default_rng(seed)
    parents: list[int] = []
    depths: list[int] = []
    values: list[float] = []
    for node in range(count):
        parent = int(random.integers(-1, node))
        parents.append(parent)
        depths.append(1 if parent < 0 else depths[parent] + 1)
        values.append((0.0 if parent < 0 else values[parent]) - float(random.integers(0, 3)) / 2)
    return Grown(random.integers(0, 50, count).tolist(), parents, depths, values)


@pytest.mark.parametrize("nodes", [1, 5, 16, 64])
@pytest.mark.parametrize("floor", [0.0, 0.05, 0.4, 0.99])
def test_the_most_valuable_nodes_above_the_floor_are_kept_oldest_first_of_equal_ones_the_older(
    nodes: int, floor: float
) -> None:
    for seed, count in enumerate((0, 1, 7, 30, 30, 30)):
        grown = _grown(seed, count)
        values = np.array(grown.values)
        with np.errstate(divide="ignore"):
            above = int((values >= np.log(floor)).sum())
        wanted = sorted(np.lexsort((np.arange(count), -values))[: min(nodes, above)].tolist())
        tree = best_of(grown, nodes, floor)
        assert tree.tokens == [grown.tokens[node] for node in wanted]
        assert tree.depths == [grown.depths[node] for node in wanted]
        assert tree.scores == [grown.values[node] for node in wanted]
        assert [wanted[parent] if parent >= 0 else -1 for parent in tree.parents] == [grown.parents[n] for n in wanted]


def test_children_of_nodes_below_the_parents_floor_are_left_out() -> None:
    grown = _grown(3, 30)
    tree = best_of(grown, 30, 0.05, 0.4)
    wanted = [
        node
        for node, parent in enumerate(grown.parents)
        if grown.values[node] >= np.log(0.05) and (parent < 0 or grown.values[parent] >= np.log(0.4))
    ]
    assert 0 < len(wanted) < len(best_of(grown, 30, 0.05).tokens)
    assert tree.tokens == [grown.tokens[node] for node in wanted]
