"""Typical acceptance: publish the longest path of tokens that the target finds plausible. A heuristic, not a sampler.

Cai et al., "Medusa", arXiv 2401.10774, section 2.3.1; M7.2 section 0x04E. A candidate passes if its probability under
its predictor row's processed law is strictly above min(epsilon, alpha exp(-H)), H the row's entropy. Only prefixes count;
among the longest paths the one of largest log-likelihood wins, then the lowest row. Where we differ from the published
code: the entropy is the mathematical one (no 1e-5 inside the logarithm), absent candidates never match (the published
code lets padding match), and the closing token is an ordinary target sample.
"""

from __future__ import annotations

import math

from contracts.capability import ALL_RELATIONS, ALL_SEMANTICS, ROW_TOPOLOGIES, Exactness, VerifierCapability
from contracts.graph import CandidateGraph
from contracts.randomness import Chooser
from contracts.receipt import Closing
from contracts.topology import ANCHOR, path_to
from models.laws import TargetLaws
from verifier.selection.base import Selection

EPSILON = 0.09
ALPHA = 0.3


def threshold(entropy: float, *, epsilon: float = EPSILON, alpha: float = ALPHA) -> float:
    """min(epsilon, alpha exp(-H)), H in nats."""
    return min(epsilon, alpha * math.exp(-entropy))


class Typical:
    """Never bound in exact mode: its output is not distributed as the target's."""

    capability = VerifierCapability(
        name="typical",
        exactness=Exactness.HEURISTIC,
        promise="each accepted token has more than min(epsilon, alpha exp(-entropy)) of the target's probability",
        semantics=ALL_SEMANTICS,
        relations=ALL_RELATIONS,
        topologies=ROW_TOPOLOGIES,
        sampling_only=True,
    )

    def __init__(self, *, epsilon: float = EPSILON, alpha: float = ALPHA) -> None:
        self._epsilon = epsilon
        self._alpha = alpha

    def select(self, graph: CandidateGraph, laws: TargetLaws, chooser: Chooser, *, prefix_len: int) -> Selection:
        """Accepts the best path, then a target sample."""
        best, best_depth, best_score = ANCHOR, 0, 0.0
        frontier = [(ANCHOR, 0, 0.0)]
        while frontier:
            row, depth, score = frontier.pop(0)
            if depth > best_depth or (depth == best_depth and score > best_score):
                best, best_depth, best_score = row, depth, score
            children = graph.children.get(row, {})
            if not children:
                continue
            law = laws.row(row)
            floor = threshold(law.entropy(), epsilon=self._epsilon, alpha=self._alpha)
            rows = sorted(children.values())
            for child, p in zip(rows, law.at(graph.token_ids[rows]).tolist(), strict=True):
                if p > floor:
                    frontier.append((child, depth + 1, score + math.log(p)))
        path = path_to(graph.parents, best)
        return Selection(path, laws.sample(best, prefix_len + len(path), chooser), Closing.SAMPLE)
