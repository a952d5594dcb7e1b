"""One-draft rejection sampling over a sequence.

Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding", ICML 2023, algorithm 1; Chen et
al., arXiv 2302.01318. Accept x ~ q with probability min(1, p(x) / q(x)); on rejection publish a token of [p - q]_+.
"""

from __future__ import annotations

from contracts.capability import Exactness, VerifierCapability
from contracts.graph import CandidateGraph
from contracts.randomness import Chooser
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
from models.laws import TargetLaws
from verifier.selection.base import Selection
from verifier.selection.specinfer import residual_walk


class Rejection:
    """The one-draw case of the residual walk, offered for sequences only."""

    capability = VerifierCapability(
        name="rejection",
        exactness=Exactness.EXACT,
        promise="the target's law",
        semantics=frozenset({ProbabilitySemantics.NORMALIZED_CONDITIONAL}),
        relations=frozenset({SamplingRelation.INDEPENDENT}),
        topologies=frozenset({Topology.SEQUENCE}),
        needs_law=True,
    )

    def select(self, graph: CandidateGraph, laws: TargetLaws, chooser: Chooser, *, prefix_len: int) -> Selection:
        """Accepts a prefix of the sequence, then one residual or bonus token."""
        return residual_walk(graph, laws, chooser, self.capability.name)
