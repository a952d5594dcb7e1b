"""Medusa's calibrated sparse tree: the nodes with the largest expected gain (Cai et al., ICML 2024, section 2.3.3).

A node's gain is the product of its ranks' accuracies, each head's measured on its own. The frontier starts at the first
child; accepting a node adds its next sibling and its first child. Of equal gains the one that came first wins.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from contracts.errors import InvalidArgument
from contracts.tree_shape import RankPath


def sparse_search(accuracies: npt.ArrayLike, nodes: int) -> tuple[RankPath, ...]:
    """Rank paths in the order of acceptance, `nodes` of them or as many as there are.

    accuracies: float [D, R], accuracies[d, r] the chance that head d's rank-r token is the target's. The order nests: the
    first n are the answer for n nodes. `contracts.tree_shape.shape_from_paths` makes a shape of them.
    """
    table = np.asarray(accuracies, dtype=np.float64)
    if table.ndim != 2 or not np.all(np.isfinite(table)) or np.any(table < 0.0) or np.any(table > 1.0):
        raise InvalidArgument("accuracies", "must be probabilities [depths, ranks]")
    depths, ranks = table.shape
    found: list[RankPath] = []
    frontier: list[tuple[float, int, RankPath, float]] = []
    seen = 0

    def add(path: RankPath, above: float) -> None:
        nonlocal seen
        if len(path) <= depths and path[-1] < ranks:
            gain = above * float(table[len(path) - 1, path[-1]])
            heappush(frontier, (-gain, seen, path, above))
            seen += 1

    add((0,), 1.0)
    while frontier and len(found) < nodes:
        negative, _, path, above = heappop(frontier)
        found.append(path)
        add((*path[:-1], path[-1] + 1), above)
        add((*path, 0), -negative)
    return tuple(found)
