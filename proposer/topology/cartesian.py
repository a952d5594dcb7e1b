"""Complete trees: every node of a depth has the same number of children.

The Cartesian product of head choices (Medusa, Cai et al., ICML 2024, section 2.1.2; M7.7 section 0x07C) and SpecInfer's
expansion configuration (Miao et al., ASPLOS 2024, section 3, "width by depth") are the same shape; what differs is how the
children of a node come about, which is the source's affair.
"""

from __future__ import annotations

from collections.abc import Sequence

from contracts.errors import InvalidArgument
from contracts.topology import ANCHOR
from contracts.tree_shape import TreeShape


def cartesian(widths: Sequence[int], *, nodes: int, depth: int | None = None) -> TreeShape:
    """The complete tree with widths[d - 1] children at depth d, cut breadth first to `nodes` nodes.

    `depth` (default: one level per width) may exceed len(widths): the last width holds for all deeper levels. Uncut, the
    tree has the sum over d of the product of the first d widths. Raises InvalidArgument for empty or non-positive widths.
    """
    if not widths or min(widths) < 1:
        raise InvalidArgument("widths", f"{tuple(widths)} must be positive and at least one")
    parents: list[int] = []
    level = [ANCHOR]
    for d in range(len(widths) if depth is None else depth):
        width = widths[min(d, len(widths) - 1)]
        room = nodes - len(parents)
        if room <= 0:
            break
        grown = [parent for parent in level for _ in range(width)][:room]
        level = list(range(len(parents), len(parents) + len(grown)))
        parents.extend(grown)
    return TreeShape(tuple(parents))
