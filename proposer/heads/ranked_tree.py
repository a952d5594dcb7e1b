"""What of a tree grown by value is offered: its most valuable nodes (EAGLE-2, arXiv 2406.16858, section 4.2)."""

from __future__ import annotations

import math

from proposer.draft_tree import DraftTree
from proposer.heads.head import Grown


def best_of(grown: Grown, nodes: int, floor: float, parent_floor: float = 0.0) -> DraftTree:
    """The `nodes` most valuable nodes of a path probability of at least `floor`, their parents' of at least
    `parent_floor`, oldest first; of equal ones the older.

    A child is never worth more than its parent and always younger, so the parents of all that is kept are kept.
    """
    values, least = grown.values, math.log(floor) if floor > 0.0 else -math.inf
    kept = [node for node, value in enumerate(values) if value >= least]
    if parent_floor > floor:
        above = math.log(parent_floor)
        kept = [node for node in kept if grown.parents[node] < 0 or values[grown.parents[node]] >= above]
    if len(kept) > nodes:
        # A sort keeps the order of equal ones.
        kept = sorted(sorted(kept, key=lambda node: -values[node])[:nodes])
    number = {-1: -1}
    tree = DraftTree()
    for index, node in enumerate(kept):
        number[node] = index
        tree.tokens.append(grown.tokens[node])
        tree.parents.append(number[grown.parents[node]])
        tree.depths.append(grown.depths[node])
        tree.scores.append(values[node])
    return tree
