"""All small ordered trees, with no algorithm in common with the shipped search."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from contracts.tree_shape import RankPath, TreeShape, shape_from_paths

Forest = tuple["Forest", ...]


@cache
def _forests(nodes: int) -> tuple[Forest, ...]:
    """Every ordered forest of `nodes` nodes; a tree is the forest below its root."""
    if nodes == 0:
        return ((),)
    return tuple(
        (first, *rest)
        for size in range(1, nodes + 1)
        for first in _forests(size - 1)
        for rest in _forests(nodes - size)
    )


def _paths(forest: Forest, above: RankPath = ()) -> Iterator[RankPath]:
    for rank, below in enumerate(forest):
        yield (*above, rank)
        yield from _paths(below, (*above, rank))


def shapes(candidates: int, *, depth: int, ranks: int) -> Iterator[TreeShape]:
    """Every ordered tree of exactly `candidates` nodes below the anchor, within the depth and ranks."""
    for forest in _forests(candidates):
        paths = list(_paths(forest))
        if all(len(path) <= depth and path[-1] < ranks for path in paths):
            yield shape_from_paths(paths)


def naive_score(shape: TreeShape, acceptance: list[list[float]]) -> float:
    """1 plus the path products, one row of `acceptance` per depth, the last for all deeper."""
    total = 1.0
    for path in shape.paths:
        product = 1.0
        for depth, rank in enumerate(path):
            product *= acceptance[min(depth, len(acceptance) - 1)][rank]
        total += product
    return total
