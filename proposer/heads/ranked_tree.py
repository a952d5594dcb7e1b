"""What of a tree grown by value is offered: its most valuable nodes (EAGLE-2, arXiv 2406.16858, section 4.2)."""

from __future__ import annotations

import math

import numpy as np

from proposer.draft_tree import DraftTree
from proposer.heads.head import Grown


def best_of(grown: Grown, nodes: int, floor: float) -> DraftTree:
    """The `nodes` most valuable nodes of a path probability of at least `floor`, oldest first; of equal ones the older.

    A child is never worth more than its parent and always younger, so the parents of all that is kept are kept.
    """
    values = np.array(grown.values)
    order = np.lexsort((np.arange(len(values)), -values))
    least = math.log(floor) if floor > 0.0 else -math.inf
    kept = sorted(order[: min(nodes, int((values >= least).sum()))].tolist())
    number = {-1: -1} | {node: index for index, node in enumerate(kept)}
    return DraftTree(
        [grown.tokens[node] for node in kept],
        [number[grown.parents[node]] for node in kept],
        [grown.depths[node] for node in kept],
        [grown.values[node] for node in kept],
    )
