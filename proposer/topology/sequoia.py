"""Sequoia's optimal tree by dynamic programming over nodes, depth and child slots (arXiv 2402.12374, section 3.1 and
appendix; M7.7 section 0x0AC).

Node counts here include the root, which is our anchor (counting.py). Depth counts edges. Where the paper's acceptance
depends on the rank alone, ours may depend on depth too; the recurrence then runs over the subtree root's absolute depth
instead of the depth that remains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from contracts.errors import InvalidArgument
from contracts.tree_shape import TreeShape, shape_from_paths
from proposer.topology.acceptance import Float64Array, selected_table

MAX_BUDGET = 513


@dataclass(frozen=True)
class _Solution:
    """score[a, n, b]: best score of a subtree whose root stands at depth a, of exactly n nodes (root included) and b
    children, -inf where there is none; best[a, n]: over b; left[a, n, b]: nodes of the root with its first b - 1 subtrees.
    """

    score: Float64Array
    best: Float64Array
    left: np.ndarray


def _solve(table: Float64Array, max_nodes: int, max_depth: int) -> _Solution:
    slots = table.shape[1]
    score = np.full((max_depth + 1, max_nodes + 1, slots + 1), -np.inf)
    left = np.zeros(score.shape, dtype=np.int64)
    best = np.full((max_depth + 1, max_nodes + 1), -np.inf)
    score[:, 1, 0] = 1.0
    for a in range(max_depth, -1, -1):
        if a < max_depth:
            row = table[min(a, len(table) - 1)]
            for n in range(2, max_nodes + 1):
                for b in range(1, min(slots, n - 1) + 1):
                    # Left part: y nodes, the root and b - 1 subtrees; right part: the b-th subtree, n - y nodes.
                    ys = np.arange(b, n)
                    right = best[a + 1, n - ys]
                    with np.errstate(invalid="ignore"):
                        gains = np.where(np.isneginf(right), -np.inf, row[b - 1] * right)
                    options = score[a, ys, b - 1] + gains
                    chosen = int(np.argmax(options))
                    score[a, n, b], left[a, n, b] = options[chosen], ys[chosen]
        best[a] = score[a].max(axis=1)
    return _Solution(score, best, left)


def expected_by_size(acceptance: object, max_nodes: int, max_depth: int) -> Float64Array:
    """G(n, d), float64 [max_nodes + 1, max_depth + 1]: the best expected tokens of a tree of exactly n nodes, root
    included, at most d edges deep; -inf where no such tree exists. acceptance: see `acceptance.selected_table`.
    """
    table = _checked(acceptance, max_nodes, max_depth)
    out = np.full((max_nodes + 1, max_depth + 1), -np.inf)
    if len(table) == 1:
        # Depth does not matter: a subtree with d levels left is a tree of depth d, so one run holds all of them.
        best = _solve(table, max_nodes, max_depth).best
        for d in range(max_depth + 1):
            out[:, d] = best[max_depth - d]
        return out
    for d in range(max_depth + 1):
        out[:, d] = _solve(table, max_nodes, d).best[0]
    return out


def best_shape(acceptance: object, nodes: int, depth: int) -> TreeShape:
    """The tree with the largest expected tokens among those of exactly `nodes` nodes, root included, at most `depth` deep.

    Ties go to fewer children at the root, and to the smaller left part. Raises InvalidArgument where there is none.
    """
    table = _checked(acceptance, nodes, depth)
    solution = _solve(table, nodes, depth)
    if np.isneginf(solution.best[0, nodes]):
        raise InvalidArgument(
            "nodes", f"no tree of {nodes} nodes is at most {depth} deep with {table.shape[1]} children"
        )
    paths: list[tuple[int, ...]] = []
    pending: list[tuple[tuple[int, ...], int]] = [((), nodes)]
    while pending:
        path, n = pending.pop()
        if path:
            paths.append(path)
        a = len(path)
        for b in range(int(np.argmax(solution.score[a, n])), 0, -1):
            y = int(solution.left[a, n, b])
            pending.append(((*path, b - 1), n - y))
            n = y
    return shape_from_paths(paths)


def _checked(acceptance: object, max_nodes: int, max_depth: int) -> Float64Array:
    if not 1 <= max_nodes <= MAX_BUDGET:
        raise InvalidArgument("nodes", f"{max_nodes} is outside [1, {MAX_BUDGET}]")
    if max_depth < 0:
        raise InvalidArgument("depth", f"{max_depth} is negative")
    return selected_table(acceptance)  # type: ignore[arg-type]
