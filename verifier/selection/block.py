"""Block verification of a sequence: a drafted block is accepted or rejected as a whole, longest prefix first.

Sun et al., "Block verification accelerates speculative decoding", ICLR 2025, arXiv 2403.10444, algorithm 2. With
p_i = min(1, p_{i-1} p(x_i) / q(x_i)), p_0 = 1, the prefix of length i < n is accepted with probability
h_i = S_i / (S_i + 1 - p_i), S_i = sum [p_i p - q]_+, the whole block with p_n, and the longest accepted prefix is
published, followed by a token of [p_i p - q]_+. That is leaf-to-root traversal of a chain, where one draw per parent makes
"independent" and "without replacement" the same; so the chain's case of that walk is what runs here. It stops at the
longest accepted prefix instead of tossing all coins, which changes no probability.

Never fewer accepted tokens than rejection *in expectation*; single paths may go either way.
"""

from __future__ import annotations

from contracts.capability import Exactness, VerifierCapability
from contracts.graph import CandidateGraph
from contracts.randomness import Chooser
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from models.laws import TargetLaws
from verifier.selection.base import Selection
from verifier.selection.traversal import traverse


class Block:
    """Sequences of one source."""

    capability = VerifierCapability(
        name="block",
        exactness=Exactness.EXACT,
        promise="the target's law; expected length at least rejection's",
        semantics=frozenset({ProbabilitySemantics.NORMALIZED_CONDITIONAL}),
        relations=frozenset({SamplingRelation.INDEPENDENT}),
        topologies=frozenset({Topology.SEQUENCE}),
        needs_law=True,
        single_source=True,
    )

    def select(self, graph: CandidateGraph, laws: TargetLaws, chooser: Chooser, *, prefix_len: int) -> Selection:
        """Accepts a prefix of the block, then one residual or bonus token."""
        return traverse(graph, laws, chooser, self.capability.name)
