"""SpecInfer's two ways to a tree (Miao et al., ASPLOS 2024, section 3): expand one drafter by widths, merge several.

Expansion is `cartesian`: the configuration <k1, k2, ...> has each node at depth i - 1 draw ki children. Merging is
`contracts.graph.merge_by_full_prefix`; what is added here is what must be settled before anybody draws, the drafters'
shares of the budget, and the refusal of offers whose union no verifier with q is proved for.
"""

from __future__ import annotations

from collections.abc import Sequence

from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.graph import CandidateGraph, merge_by_full_prefix
from contracts.proposal import Proposal
from contracts.topology import SamplingRelation
from contracts.tree_shape import TreeShape
from proposer.topology.cartesian import cartesian


def expansions(widths: Sequence[Sequence[int]], *, nodes: int) -> tuple[TreeShape, ...]:
    """One shape per drafter from its widths by depth, `nodes` candidates in all.

    The budget is dealt evenly, earlier drafters first; what a small tree leaves goes to the later ones. It depends on
    nothing drawn. Raises InvalidArgument for no drafters or bad widths.
    """
    if not widths:
        raise InvalidArgument("widths", "no drafter")
    shapes: list[TreeShape] = []
    left = nodes
    for index, own in enumerate(widths):
        sharers = len(widths) - index
        shapes.append(cartesian(own, nodes=(left + sharers - 1) // sharers))
        left -= len(shapes[-1])
    return tuple(shapes)


def merge_drafters(proposals: Sequence[Proposal], *, nodes: int) -> CandidateGraph:
    """The union of several drafters' trees, each draw with its own drafter's law.

    Exact for independent draws, each X_i from its own q_i (decision 8). Raises FailedPrecondition where some offers have
    laws and others none, or where several drafters draw without replacement: neither is one drafting law.
    """
    offered = [proposal for proposal in proposals if proposal.nodes]
    lawful = [proposal for proposal in offered if proposal.laws]
    if lawful and len(lawful) != len(offered):
        raise FailedPrecondition("proposals.laws", "offers with laws and offers without cannot share a tree with q")
    if len(lawful) > 1 and any(proposal.relation is not SamplingRelation.INDEPENDENT for proposal in lawful):
        raise FailedPrecondition(
            "proposals.relation", "several drafters merge exactly only where draws are independent"
        )
    return merge_by_full_prefix(proposals, budget=nodes)
