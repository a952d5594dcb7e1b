"""What each sequential head of a Hydra-like family has to expand to fill a shape (Ankner et al., 2024, section 3).

Head d turns nodes of depth d (0: the root) into their children, and only the nodes that have children are worth running. A
head that attends to earlier rows reads just the ancestors that lead to such nodes. The names in brackets are the published
code's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from contracts.topology import ANCHOR
from contracts.tree_shape import TreeShape
from tests.oracle.topology.medusa_buffers import rooted_mask


@dataclass(frozen=True)
class HeadStep:
    """One head's work. nodes: those to run, -1 the anchor, in shape order.

    children: how many each gets ("children_per_head"). grown: how many of those have children themselves and so are run
    by the next head ("children_to_expand_per_head"). width: tokens the head must rank ("beam_sizes"). context: the earlier
    nodes it may attend to, the anchor first. mask: bool [nodes, context], which of them are its ancestors, or for the first
    head the anchor itself ("proposal_cross_attn_masks").
    """

    nodes: tuple[int, ...]
    children: tuple[int, ...]
    grown: tuple[int, ...]
    context: tuple[int, ...]
    mask: npt.NDArray[np.bool_]

    @property
    def width(self) -> int:
        return max(self.children)


def head_steps(shape: TreeShape) -> tuple[HeadStep, ...]:
    """One step per depth that is grown from, the root's first."""
    mask = rooted_mask(shape)
    depths = np.array([0, *shape.depths])
    rows = np.arange(len(depths))
    children = np.array([shape.children(node) for node in range(ANCHOR, len(shape))])
    grown = np.zeros(len(depths), dtype=np.int64)
    for node, parent in enumerate(shape.parents):
        grown[parent + 1] += bool(shape.children(node))
    steps: list[HeadStep] = []
    for depth in range(shape.max_depth):
        run = rows[(depths == depth) & (children > 0)]
        context = rows[(depths < depth) & (grown > 0)] if depth else rows[:1]
        steps.append(
            HeadStep(
                nodes=tuple((run - 1).tolist()),
                children=tuple(children[run].tolist()),
                grown=tuple(grown[run].tolist()),
                context=tuple((context - 1).tolist()),
                mask=mask[np.ix_(run, context)],
            )
        )
    return tuple(steps)
