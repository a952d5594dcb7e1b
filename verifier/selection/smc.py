"""Sequential Monte Carlo speculative decoding: particles are reweighted, not rejected. Approximate, with stated error.

Emara et al., "Faster LLM inference via sequential Monte Carlo" (2026), algorithm 1; module 16, "SMC speculative
decoding". N particles draft K tokens each, independently; the target scores all of them in one pass; a particle's
log-weight grows by sum_j log p(d_j) - log q(d_j); one target token is appended; if the effective sample size falls below
a threshold, ancestors are drawn and weights reset. Every particle grows by exactly K + 1 tokens a round.

A population is not a candidate graph: its particles are separate prefixes, a group of sessions, and only its end result
is output. verifier/particle_group.py drives the group with these pure steps; `Smc` is what each of its sessions runs: it
publishes a drafted block whole, and one target token. Admission binds it to sources of the population relation only, which
no proposer declares, so no Generate can run it by mistake.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from contracts.capability import Exactness, VerifierCapability
from contracts.draft_law import DraftLaw
from contracts.errors import InvalidArgument
from contracts.graph import CandidateGraph
from contracts.randomness import Chooser, Purpose
from contracts.receipt import Closing
from contracts.topology import ProbabilitySemantics, SamplingRelation, Topology
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


def relative(log_weights: Floats) -> Floats:
    """float64 [N] weights, the largest being 1; all 1 if all are -inf (every particle left the target's support)."""
    top = float(log_weights.max())
    return np.ones(len(log_weights)) if top == -math.inf else np.asarray(np.exp(log_weights - top))


def normalised(log_weights: Floats) -> Floats:
    """`relative`, summing to 1."""
    weights = relative(log_weights)
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
    # Not of the normalised ones, whose rounding would make equal weights fall below N.
    ess = effective_sample_size(relative(grown))
    if ess >= ess_threshold:
        return Population(grown, tuple(range(count)), ess, False)
    weights = normalised(grown)
    ancestors = tuple(chooser.categorical(weights, Purpose.RESAMPLE, name, n) for n in range(count))
    return Population(np.zeros(count), ancestors, ess, True)


def pick(population: Population, chooser: Chooser, *, name: str) -> int:
    """The particle to publish at the end, by its weight (coin RESAMPLE N)."""
    weights = normalised(population.log_weights)
    return chooser.categorical(weights, Purpose.RESAMPLE, name, len(weights))


@dataclass(frozen=True)
class Certificate:
    """What an SMC result is worth. The scales are those of theorem 3.1 without its constants.

    exactness: EXACT only if nothing was drafted. (Equal laws are exact too, with all weights 1, but weights that were seen
    do not prove laws equal.) drafted: K. chi_square: estimate of chi2(p || q) of a block, the largest of all rounds.
    l1_bias_scale: sqrt((1 + chi2) / N). mse_scale: (1 + chi2) / N. ess: effective sample size after each round, before its
    resampling. log_normaliser: log of the unbiased estimate of sum_x q(x) p(x) / q(x), which is 1: how far it is from 0
    tells how well the particles cover the target. `resampling_bounded` is False: the paper leaves the resampling
    step's error open, so after any resampling the scales are a description, not a bound.
    """

    exactness: Exactness
    particles: int
    drafted: int
    chi_square: float
    l1_bias_scale: float
    mse_scale: float
    ess: tuple[float, ...] = ()
    log_normaliser: float = 0.0
    resamplings: int = 0
    resampling_bounded: bool = False


def certify(
    chi_square: float,
    *,
    particles: int,
    drafted: int,
    ess: Sequence[float] = (),
    log_normaliser: float = 0.0,
    resamplings: int = 0,
) -> Certificate:
    """The certificate of a run; chi_square: estimated by mean((W - 1)^2) over the block ratios W = prod p / q of a round."""
    exact = drafted == 0
    scale = 0.0 if exact else (1.0 + chi_square) / particles
    return Certificate(
        Exactness.EXACT if exact else Exactness.APPROXIMATE,
        particles,
        drafted,
        chi_square,
        math.sqrt(scale),
        scale,
        tuple(ess),
        log_normaliser,
        resamplings,
    )


class Smc:
    """One particle's session: accepts its whole block (see the module's docstring)."""

    capability = VerifierCapability(
        name="smc",
        exactness=Exactness.APPROXIMATE,
        promise="approximately the target's law; error of order (1 + chi2(p || q)) / N per round, resampling not bounded",
        semantics=frozenset({ProbabilitySemantics.NORMALIZED_CONDITIONAL}),
        relations=frozenset({SamplingRelation.POPULATION}),
        topologies=frozenset({Topology.SEQUENCE}),
        needs_law=True,
        single_source=True,
        sampling_only=True,
    )

    def select(self, graph: CandidateGraph, laws: TargetLaws, chooser: Chooser, *, prefix_len: int) -> Selection:
        """The block, then a target sample; of an empty graph (K = 0) the sample alone. The weight is the group's affair."""
        last = len(graph) - 1
        return Selection(tuple(range(len(graph))), laws.sample(last, prefix_len + len(graph), chooser), Closing.SAMPLE)
