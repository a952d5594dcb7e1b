"""Target-sample membership: sample the target at each visited node and descend while the sample is a candidate.

The published text depends on the target's laws and the position-keyed noise alone, so any candidates are exact, and the
text for a seed is the same whatever was proposed (REST, arXiv 2311.08252, section 3.3; M7.7 section 0x04B).
"""

from __future__ import annotations

from contracts.capability import ALL_RELATIONS, ALL_SEMANTICS, ROW_TOPOLOGIES, Exactness, VerifierCapability
from contracts.graph import CandidateGraph
from contracts.randomness import Chooser
from contracts.receipt import Closing
from contracts.topology import ANCHOR, SamplingRelation
from models.laws import TargetLaws
from verifier.selection.base import Selection


class Membership:
    """One Gumbel-max sample per visited node; position `prefix_len + depth` keys the noise of a node at `depth`."""

    capability = VerifierCapability(
        name="membership",
        exactness=Exactness.EXACT,
        promise="the target's law; the text for a seed does not depend on the proposals",
        semantics=ALL_SEMANTICS,
        relations=ALL_RELATIONS,
        topologies=ROW_TOPOLOGIES,
    )

    def select(self, graph: CandidateGraph, laws: TargetLaws, chooser: Chooser, *, prefix_len: int) -> Selection:
        """Publishes target samples for as long as they are candidates, and the first one that is not."""
        rows: list[int] = []
        row = ANCHOR
        while True:
            token = laws.sample(row, prefix_len + len(rows), chooser)
            child = graph.children.get(row, {}).get(token)
            if child is None:
                return Selection(tuple(rows), token, Closing.SAMPLE)
            rows.append(child)
            row = child


class GumbelCoupled(Membership):
    """Membership whose candidates come from the same noise: a drafter that perturbs its own law with it and offers the
    largest few (Gumbel top-k) proposes what the target is likely to sample (Daliri, Musco and Suresh, "Coupling without
    communication and drafter-invariant speculative decoding", arXiv 2408.07978). Exact for the same reason; the drafter
    changes how much is accepted, never the text.
    """

    capability = VerifierCapability(
        name="gumbel_coupled",
        exactness=Exactness.EXACT,
        promise="the target's law; the text for a seed does not depend on the drafter",
        semantics=ALL_SEMANTICS,
        relations=frozenset({SamplingRelation.SHARED_NOISE}),
        topologies=ROW_TOPOLOGIES,
    )
