"""Acceptance tables: the chance that the child of a given rank is the one selected, and what a shape earns from them.

`selected[d, r]` is the probability that, the parent at depth d having been reached (d = 0: the anchor), its child of rank r
is selected. Siblings exclude each other, so a row sums to at most one; what is missing is the chance to stop there. One
row stands for all depths (Sequoia's positional model). M7.7 section 0x0AA; Chen et al., arXiv 2402.12374, section 3.1.
"""

from __future__ import annotations

from math import fsum

import numpy as np
import numpy.typing as npt

from contracts.errors import InvalidArgument
from contracts.tree_shape import TreeShape

Float64Array = npt.NDArray[np.float64]

# Rounding of decimal tables, not of counts: a row of measured frequencies is below 1 by construction.
_SLACK = 1e-9


def selected_table(values: npt.ArrayLike, field: str = "acceptance") -> Float64Array:
    """float64 [D, B] from [D, B] or [B]; a single row stands for all depths.

    Raises InvalidArgument naming the row whose entries are not probabilities or whose sum exceeds one (conditional
    sibling-test rates passed as selected-child probabilities do that).
    """
    table = np.atleast_2d(np.asarray(values, dtype=np.float64))
    if table.ndim != 2 or table.size == 0:
        raise InvalidArgument(field, f"shape {table.shape}, expected [depths, ranks]")
    for d, row in enumerate(table):
        if not np.all(np.isfinite(row)) or np.any(row < 0.0) or np.any(row > 1.0):
            raise InvalidArgument(f"{field}[{d}]", "must be probabilities")
        if (mass := fsum(row)) > 1.0 + _SLACK:
            raise InvalidArgument(f"{field}[{d}]", f"sibling mass {mass:.6g} exceeds 1")
    return table


def selected_from_conditional(rates: npt.ArrayLike) -> Float64Array:
    """p_j = h_j * product over i < j of (1 - h_i), along the last axis.

    rates: the chance that child j passes its test once all elder siblings have failed theirs.
    """
    h = np.asarray(rates, dtype=np.float64)
    if not np.all(np.isfinite(h)) or np.any(h < 0.0) or np.any(h > 1.0):
        raise InvalidArgument("rates", "must be probabilities")
    failed = np.cumprod(1.0 - h, axis=-1)
    before = np.concatenate([np.ones_like(failed[..., :1]), failed[..., :-1]], axis=-1)
    return np.asarray(h * before, dtype=np.float64)


def probability(table: Float64Array, depth: int, rank: int) -> float:
    """The entry for a child at `depth` >= 1 of `rank`; zero beyond the ranks measured.

    Depths beyond the table take its last row: the nearest that was measured.
    """
    row = table[min(depth, len(table)) - 1]
    return float(row[rank]) if rank < len(row) else 0.0


def reach(shape: TreeShape, table: Float64Array) -> Float64Array:
    """float64 [N]: the chance that each node is on the accepted path, the product along its path."""
    out = np.zeros(len(shape))
    for node, (parent, depth, rank) in enumerate(zip(shape.parents, shape.depths, shape.ranks, strict=True)):
        out[node] = (out[parent] if parent >= 0 else 1.0) * probability(table, depth, rank)
    return out


def expected_tokens(shape: TreeShape, table: Float64Array) -> float:
    """G: expected tokens a round publishes, accepted path plus one. Sequoia's score, whose root is that one."""
    return 1.0 + fsum(reach(shape, table))
