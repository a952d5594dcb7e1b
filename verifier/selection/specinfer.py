"""Recursive residual verification of independent draws, each with its own law, over a tree.

Miao et al., "SpecInfer", ASPLOS 2024, algorithm 2 (multi-step speculative sampling); M7.7 section 0x09A. At a node the
draws X_i ~ q_i are tested in order against the residual p_i: accept with min(1, p_i(X_i) / q_i(X_i)), else
p_{i+1} = norm [p_i - q_i]_+. Draws of several drafters merge exactly because each brings its own q; equal tokens are
tested again as often as they were drawn.
"""

from __future__ import annotations

from contracts.capability import ROW_TOPOLOGIES, Exactness, VerifierCapability
from contracts.draft_law import TOTAL
from contracts.graph import CandidateGraph
from contracts.randomness import Chooser, Purpose
from contracts.topology import ANCHOR, ProbabilitySemantics, SamplingRelation
from models.law_rows import Law
from models.laws import TargetLaws
from verifier.selection.base import Selection
from verifier.selection.walk import close, coin_numbers, numbered_draws, ratio_of


def residual_walk(graph: CandidateGraph, laws: TargetLaws, chooser: Chooser, name: str) -> Selection:
    """Walks draws from the anchor down; see the module's docstring."""
    numbers, draws_at = coin_numbers(graph), numbered_draws(graph)
    rows: list[int] = []
    row = ANCHOR
    while True:
        target: Law = laws.row(row)
        accepted = None
        for index in draws_at.get(row, ()):
            draw = graph.draws[index]
            law = graph.laws[draw.law]
            token = int(graph.token_ids[draw.row])
            ratio = ratio_of(target.of(token), law.probability(token), index)
            if chooser.bernoulli(min(1.0, ratio), Purpose.ACCEPT, draw.source, numbers[index]):
                accepted = draw.row
                break
            _, target = target.minus(law.token_ids, law.weights / TOTAL)
        if accepted is None:
            return close(rows, target, chooser, name, tested=row in draws_at)
        rows.append(accepted)
        row = accepted


class SpecInfer:
    """Tree, set or sequence of independent draws from any number of drafters."""

    capability = VerifierCapability(
        name="specinfer",
        exactness=Exactness.EXACT,
        promise="the target's law",
        semantics=frozenset({ProbabilitySemantics.NORMALIZED_CONDITIONAL}),
        relations=frozenset({SamplingRelation.INDEPENDENT}),
        topologies=ROW_TOPOLOGIES,
        needs_law=True,
    )

    def select(self, graph: CandidateGraph, laws: TargetLaws, chooser: Chooser, *, prefix_len: int) -> Selection:
        """Accepts a path, then one residual or bonus token."""
        return residual_walk(graph, laws, chooser, self.capability.name)
