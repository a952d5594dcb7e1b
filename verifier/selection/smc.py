"""Sequential Monte Carlo speculative decoding: particles are reweighted, not rejected. Approximate, with stated error.

Emara et al., "Faster LLM inference via sequential Monte Carlo" (2026), algorithm 1; module 16, "SMC speculative
decoding". N particles draft K tokens each, independently; the target scores all of them in one pass; a particle's
log-weight grows by sum_j log p(d_j) - log q(d_j); one target token is appended; if the effective sample size falls below
a threshold, ancestors are drawn and weights reset. Every particle grows by exactly K + 1 tokens a round.

A population is not a candidate graph: its particles are separate prefixes (a group of sessions), it has no frontier to
publish round by round, and only its end result is output. So the engine drives it with these pure steps, and `Smc` in the
registry declares no topology at all: negotiation refuses every graph for it. What it does select is the empty graph, the
K = 0 anchor, which is a plain target sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from contracts.capability import Exactness, VerifierCapability
from contracts.draft_law import DraftLaw
from contracts.errors import FailedPrecondition, InvalidArgument
from contracts.graph import CandidateGraph
from contracts.randomness import Chooser, Purpose
from contracts.receipt import Closing
from contracts.topology import ANCHOR, ProbabilitySemantics, SamplingRelation
from models.laws import TargetLaws
from verifier.selection.base import Selection

Floats = npt.NDArray[np.float64]


def block_log_weight(laws: TargetLaws, tokens: tuple[int, ...], drafts: tuple[DraftLaw, ...]) -> float:
    """log of prod p(d_j) / q(d_j) over one particle's drafted chain; 0 for the empty block, -inf where p is 0.

    laws: row j - 1 scores tokens[j] (the chain's rows in order). Raises InvalidArgument for a token its law cannot draw.
    """
    total = 0.0
    for j, (token, law) in enumerate(zip(tokens, drafts, strict=True)):
        p, q = laws.probability(j - 1, token), law.probability(token)
        if q == 0.0:
            raise InvalidArgument(f"tokens[{j}]", f"{token} has probability 0 in the law it was drawn from")
        total += math.log(p) - math.log(q) if p > 0.0 else -math.inf
    return total


def normalised(log_weights: Floats) -> Floats:
    """float64 [N] weights that sum to 1; uniform if all are -inf (every particle left the target's support)."""
    top = float(log_weights.max())
    if top == -math.inf:
        return np.full(len(log_weights), 1.0 / len(log_weights))
    weights = np.exp(log_weights - top)
    return np.asarray(weights / weights.sum())


def effective_sample_size(weights: npt.ArrayLike) -> float:
    """(sum w)^2 / sum w^2, between 1 and N."""
    w = np.asarray(weights, dtype=np.float64)
    return float(w.sum() ** 2 / (w * w).sum())


@dataclass(frozen=True)
class Population:
    """log_weights float64 [N]; ancestors: per particle, the particle of the round before that it continues."""

    log_weights: Floats
    ancestors: tuple[int, ...]
    ess: float
    resampled: bool


def reweigh(
    log_weights: Floats, block_log_weights: Floats, chooser: Chooser, *, name: str, ess_threshold: float
) -> Population:
    """One round's weighting, both float64 [N]: multiply, and resample ancestors (coins RESAMPLE 0..N-1) below the threshold.

    The particles' own tokens and KV are the caller's to copy along `ancestors`. Particles of weight 0 have no descendants.
    """
    count = len(log_weights)
    grown = log_weights + block_log_weights
    weights = normalised(grown)
    ess = effective_sample_size(weights)
    if ess >= ess_threshold:
        return Population(grown, tuple(range(count)), ess, False)
    ancestors = tuple(chooser.categorical(weights, Purpose.RESAMPLE, name, n) for n in range(count))
    return Population(np.zeros(count), ancestors, ess, True)


def pick(population: Population, chooser: Chooser, *, name: str) -> int:
    """The particle to publish at the end, by its weight (coin RESAMPLE N)."""
    weights = normalised(population.log_weights)
    return chooser.categorical(weights, Purpose.RESAMPLE, name, len(weights))


@dataclass(frozen=True)
class Certificate:
    """What an SMC result is worth. The scales are those of theorem 3.1 without its constants.

    l1_bias_scale: sqrt((1 + chi2) / N). mse_scale: (1 + chi2) / N. `resampling_bounded` is False: the paper leaves the
    resampling step's error open, so after any resampling the scales are a description, not a bound.
    """

    exactness: Exactness
    particles: int
    chi_square: float
    l1_bias_scale: float
    mse_scale: float
    resampling_bounded: bool = False


def certify(block_ratios: npt.ArrayLike, *, particles: int, drafted: int) -> Certificate:
    """Certificate from observed block ratios prod p/q [M], chi2(p || q) estimated by mean((W - 1)^2).

    Exact in two cases: nothing drafted (K = 0), and all ratios exactly 1 (q = p).
    """
    ratios = np.asarray(block_ratios, dtype=np.float64)
    exact = drafted == 0 or bool(np.all(ratios == 1.0))
    chi_square = 0.0 if exact else float(((ratios - 1.0) ** 2).mean())
    scale = (1.0 + chi_square) / particles
    return Certificate(
        Exactness.EXACT if exact else Exactness.APPROXIMATE,
        particles,
        chi_square,
        0.0 if exact else math.sqrt(scale),
        0.0 if exact else scale,
    )


class Smc:
    """The registry's entry: describes the promise, binds no graph (see the module's docstring)."""

    capability = VerifierCapability(
        name="smc",
        exactness=Exactness.APPROXIMATE,
        promise="approximately the target's law; error of order (1 + chi2(p || q)) / N per round, resampling not bounded",
        semantics=frozenset({ProbabilitySemantics.NORMALIZED_CONDITIONAL}),
        relations=frozenset({SamplingRelation.POPULATION}),
        topologies=frozenset(),
        needs_law=True,
        sampling_only=True,
    )

    def select(self, graph: CandidateGraph, laws: TargetLaws, chooser: Chooser, *, prefix_len: int) -> Selection:
        """The K = 0 anchor: a target sample. Raises FailedPrecondition for any candidates."""
        if len(graph):
            raise FailedPrecondition("proposal.topology", "smc weighs populations; it selects from no candidate graph")
        return Selection((), laws.sample(ANCHOR, prefix_len, chooser), Closing.SAMPLE)
