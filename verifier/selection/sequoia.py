"""Residual verification of draws without replacement, over a tree.

Chen et al., "Sequoia", arXiv 2402.12374, algorithm 2; M7.7 section 0x0AB. As SpecInfer's walk, with q_i the law of the
i-th draw given the earlier ones at the same parent: those tokens struck out and the rest renormalised, and uniform over
the untried tokens once q is exhausted. A rejected token is never tested twice, which is what helps at low temperature.

Several drafters merge exactly: strikes are kept per source, because a source's draw depends on its own draws only, and a
token that another source tested before is tested again against the residual that is left of it.
"""

from __future__ import annotations

from contracts.capability import ROW_TOPOLOGIES, Exactness, VerifierCapability
from contracts.graph import CandidateGraph
from contracts.randomness import Chooser, Purpose
from contracts.topology import ANCHOR, ProbabilitySemantics, SamplingRelation
from models.laws import TargetLaws
from verifier.selection.base import Selection
from verifier.selection.walk import close, coin_numbers, numbered_draws, ratio_of
from verifier.selection.without_replacement import Remaining


class Sequoia:
    """Tree, set or sequence of draws without replacement per parent and source."""

    capability = VerifierCapability(
        name="sequoia",
        exactness=Exactness.EXACT,
        promise="the target's law",
        semantics=frozenset({ProbabilitySemantics.NORMALIZED_CONDITIONAL}),
        relations=frozenset({SamplingRelation.WITHOUT_REPLACEMENT}),
        topologies=ROW_TOPOLOGIES,
        needs_law=True,
    )

    def select(self, graph: CandidateGraph, laws: TargetLaws, chooser: Chooser, *, prefix_len: int) -> Selection:
        """Accepts a path, then one residual or bonus token."""
        numbers, draws_at = coin_numbers(graph), numbered_draws(graph)
        rows: list[int] = []
        row = ANCHOR
        while True:
            target = laws.row(row)
            left: dict[tuple[str, int], Remaining] = {}
            accepted = None
            for index in draws_at.get(row, ()):
                draw = graph.draws[index]
                key = (draw.source, draw.law)
                if key not in left:
                    left[key] = Remaining(graph.laws[draw.law], laws.vocab_size)
                token = int(graph.token_ids[draw.row])
                ratio = ratio_of(target.of(token), left[key].probability(token), index)
                if chooser.bernoulli(min(1.0, ratio), Purpose.ACCEPT, draw.source, numbers[index]):
                    accepted = draw.row
                    break
                _, target = left[key].taken_from(target)
                left[key].remove(token)
            if accepted is None:
                return close(rows, target, chooser, self.capability.name, tested=row in draws_at)
            rows.append(accepted)
            row = accepted
