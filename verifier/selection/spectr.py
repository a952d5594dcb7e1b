"""SpecTr's k-sequential selection among k independent draws from one law, at one position or per node of a tree.

Sun et al., "SpecTr: fast speculative decoding via optimal transport", NeurIPS 2023, arXiv 2310.15141, algorithm 3 and
theorem 1. Each draw x is accepted with min(1, p(x) / (rho q(x))); beta = sum min(q, p / rho) is the chance of one draw, and
P = 1 - (1 - beta)^k that of any. A rejected round publishes a token of p - min(q, p / rho) P / beta, which is non-negative
exactly for P <= rho beta; the smallest such rho in [1, k] accepts most, at least 1 - 1/e of what optimal transport could.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from contracts.capability import ROW_TOPOLOGIES, Exactness, VerifierCapability
from contracts.draft_law import TOTAL
from contracts.graph import CandidateGraph
from contracts.randomness import Chooser, Purpose
from contracts.topology import ANCHOR, ProbabilitySemantics, SamplingRelation
from models.laws import TargetLaws
from verifier.selection.base import Selection
from verifier.selection.walk import close, coin_numbers, numbered_draws, ratio_of

Floats = npt.NDArray[np.float64]


def acceptance(p: Floats, q: Floats, rho: float, k: int) -> tuple[float, float]:
    """(beta, P) at `rho`; p and q float64 [S] on the support of q."""
    beta = min(1.0, float(np.minimum(q, p / rho).sum()))
    return beta, float(-np.expm1(k * np.log1p(-beta))) if beta < 1.0 else 1.0


def smallest_rho(p: Floats, q: Floats, k: int) -> float:
    """The smallest rho in [1, k] with P <= rho beta, from above, to a relative 1e-12.

    rho beta - P grows with rho; the bracket is narrowed by the Illinois variant of false position. The upper end always
    satisfies the condition, so the residual is non-negative whatever the tolerance.
    """

    def slack(rho: float) -> float:
        beta, any_accepted = acceptance(p, q, rho, k)
        return rho * beta - any_accepted

    low, high = 1.0, float(k)
    below, above = slack(low), slack(high)
    if below >= 0.0:
        return low
    while high - low > 1e-12 * high:
        guess = high - above * (high - low) / (above - below)
        if not low < guess < high:
            guess = (low + high) / 2
        here = slack(guess)
        if here >= 0.0:
            high, above, below = guess, here, below / 2
        else:
            low, below, above = guess, here, above / 2
    return high


class SpecTr:
    """Set, tree or sequence; all draws at a parent share one law, and their number k is fixed before they are drawn."""

    capability = VerifierCapability(
        name="spectr",
        exactness=Exactness.EXACT,
        promise="the target's law; at least 1 - 1/e of the optimal acceptance at each node",
        semantics=frozenset({ProbabilitySemantics.NORMALIZED_CONDITIONAL}),
        relations=frozenset({SamplingRelation.INDEPENDENT}),
        topologies=ROW_TOPOLOGIES,
        needs_law=True,
        identical_laws=True,
    )

    def select(self, graph: CandidateGraph, laws: TargetLaws, chooser: Chooser, *, prefix_len: int) -> Selection:
        """Accepts a path, then one residual or bonus token."""
        numbers, draws_at = coin_numbers(graph), numbered_draws(graph)
        rows: list[int] = []
        row = ANCHOR
        while True:
            target, indices = laws.row(row), draws_at.get(row, ())
            if not indices:
                return close(rows, target, chooser, self.capability.name, tested=False)
            law = graph.laws[graph.draws[indices[0]].law]
            p, q = target.at(law.token_ids), law.weights / TOTAL
            rho = smallest_rho(p, q, len(indices))
            target_p = dict(zip(law.token_ids.tolist(), p.tolist(), strict=True))
            accepted = None
            for index in indices:
                draw = graph.draws[index]
                token = int(graph.token_ids[draw.row])
                ratio = ratio_of(target_p.get(token, 0.0), rho * law.probability(token), index)
                if chooser.bernoulli(min(1.0, ratio), Purpose.ACCEPT, draw.source, numbers[index]):
                    accepted = draw.row
                    break
            if accepted is None:
                beta, any_accepted = acceptance(p, q, rho, len(indices))
                if beta > 0.0:
                    _, target = target.minus(law.token_ids, np.minimum(q, p / rho) * (any_accepted / beta))
                return close(rows, target, chooser, self.capability.name, tested=True)
            rows.append(accepted)
            row = accepted
