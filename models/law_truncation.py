"""Truncation of a law by top-k, top-p, min-p and typical-p, in that order, after the temperature.

Semantics are those of Transformers' warpers: top-k keeps ties with the k-th value; top-p keeps the smallest set of the
likeliest tokens whose cumulative probability reaches p (among equal probabilities the lower token ids come first, where
Transformers leaves the order open); min-p keeps tokens of at least min_p times the largest probability; typical-p keeps
the tokens whose surprisal is nearest to the entropy until their mass reaches typical_p, ties with the last one included.
Probabilities that stand exactly on top-p or min-p count as there, though float32 logits put them a rounding (EDGE) below.

Sorting a whole row would dominate selection. Each rule but the last comes down to one threshold, and top-p's is found by
setting aside what cannot matter and partitioning the rest.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from contracts.sampling import SamplingPolicy
from models.law_scores import Scores

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SORTABLE = 1024
PEAK = 1e-3
# What rounding two logits below 4 to float32 does to a ratio of their exponentials; a weight beside which that is nothing.
EDGE, HEAVY = 3e-7, 3e-4
FINITE = float(np.finfo(np.float32).min)


def truncates(policy: SamplingPolicy) -> bool:
    """Whether the policy cuts the support at all."""
    return policy.top_k > 0 or policy.top_p < 1.0 or policy.min_p > 0.0 or policy.typical_p < 1.0


def truncated(scores: Scores, policy: SamplingPolicy) -> tuple[Ints, Floats]:
    """ids int64 [S] ascending and probabilities float64 [S] of the truncated, renormalised law.

    scores: edited logits, float32 [V] without NaN and +inf, their top finite.
    """
    vocab, temperature, top = scores.size, policy.temperature, scores.top
    if policy.top_p < 1.0 and not 0 < policy.top_k < vocab:
        ids, weights = _nucleus_of_row(scores, policy)
    else:
        if 0 < policy.top_k < vocab:
            ids = scores.at_least(float(scores.largest(policy.top_k)[1][-1]))
        elif policy.min_p > 0.0:
            # The rule itself is applied below; this only keeps whole rows on the device.
            ids = scores.at_least(top + temperature * math.log(policy.min_p) - 1e-3 * max(1.0, abs(top)))
        else:
            ids = scores.at_least(FINITE)
        weights = np.exp((scores.at(ids) - top) / temperature)
        if policy.top_p < 1.0:
            mass = policy.top_p * float(weights.sum())
            keep = _decided(weights, mass, mass)
            assert keep is not None
            ids, weights = ids[keep], weights[keep]
    if policy.min_p > 0.0:
        keep = weights >= policy.min_p * (1.0 - EDGE)
        ids, weights = ids[keep], weights[keep]
    if policy.typical_p < 1.0:
        keep = _typical(weights / weights.sum(), policy.typical_p)
        ids, weights = ids[keep], weights[keep]
    if not weights.all():
        ids, weights = ids[weights > 0.0], weights[weights > 0.0]
    return ids, weights / weights.sum()


def _nucleus_of_row(scores: Scores, policy: SamplingPolicy) -> tuple[Ints, Floats]:
    """Token ids kept by top-p alone, ascending, and their weights, the largest being 1.

    The row's total decides only which token comes last, and an interval around it nearly always decides the same; where it
    does not, or the set is large, the total is summed in float64.
    """
    kept = _within(scores, policy, *scores.exp_total_within(policy.temperature))
    if kept is None:
        total, _ = scores.exp_sums(policy.temperature)
        kept = _within(scores, policy, total, total)
        assert kept is not None
    return kept


def _within(scores: Scores, policy: SamplingPolicy, low: float, high: float) -> tuple[Ints, Floats] | None:
    """The set and its weights, or None if totals within [low, high] disagree about it."""
    # A peaked row is decided among its few likeliest tokens. Else: all tokens below the second floor together hold less
    # than 1 - p, so the set is complete before it gets to them.
    for floor in (PEAK, (1.0 - policy.top_p) * low / scores.size * (1 - 1e-6)):
        ids = scores.at_least(scores.top + policy.temperature * math.log(floor))
        weights = np.exp((scores.at(ids) - scores.top) / policy.temperature)
        if float(weights.sum()) >= policy.top_p * high:
            break
    keep = _decided(weights, policy.top_p * low, policy.top_p * high)
    return None if keep is None else (ids[keep], weights[keep])


def _decided(weights: Floats, low: float, high: float) -> npt.NDArray[np.bool_] | None:
    """`nucleus` at every mass within [low, high], or None where it is not the same or that would cost too much to say."""
    if len(weights) > SORTABLE:
        return nucleus(weights, low) if low == high else None
    order = (-weights).argsort(kind="stable")
    ordered = weights[order]
    reached = ordered.cumsum()
    last = _last(ordered, reached, low)
    if low != high and last != _last(ordered, reached, high):
        return None
    keep = np.zeros(len(weights), dtype=np.bool_)
    keep[order[: last + 1]] = True
    return keep


def _last(ordered: Floats, reached: Floats, mass: float) -> int:
    """Where the sums `reached` of `ordered` reach `mass`. A rounding short of it is enough before a heavy token; before
    light ones, of which many may weigh no more than a rounding, it would drop those.
    """
    last = int(reached.searchsorted(mass))
    if 0 < last < len(ordered) and mass - reached[last - 1] <= EDGE * mass and ordered[last] >= HEAVY * mass:
        return last - 1
    return last


def nucleus(weights: Floats, mass: float) -> npt.NDArray[np.bool_]:
    """bool [S]: the smallest set of largest weights whose sum reaches `mass`, of equals the first; all if none does."""
    inside, above = weights, 0.0
    while len(inside) > SORTABLE:
        # Quickselect by mass: the cut lies among those at or above the pivot if they reach the mass, else below it.
        pivot = float(np.median(inside[:: len(inside) // 256]))
        upper = inside >= pivot
        upper_mass = float(inside[upper].sum())
        if upper.all() or not upper.any():
            break
        if above + upper_mass >= mass:
            inside = inside[upper]
        else:
            above += upper_mass
            inside = inside[~upper]
    ordered = np.sort(inside)[::-1]
    reached = int(np.searchsorted(above + np.cumsum(ordered), mass, side="left"))
    if reached >= len(ordered):
        return np.asarray(weights >= ordered[-1])
    cut = ordered[reached]
    keep = np.asarray(weights >= cut)
    tied = np.flatnonzero(weights == cut)
    wanted = reached + 1 - int(np.count_nonzero(ordered > cut))
    keep[tied[wanted:]] = False
    return keep


def _typical(p: Floats, mass: float) -> npt.NDArray[np.bool_]:
    """Meister et al., "Locally typical sampling", TACL 2023: bool [S]."""
    surprisal = np.full(len(p), math.inf)
    np.log(p, out=surprisal, where=p > 0.0)
    surprisal[p > 0.0] *= -1.0
    entropy = float((p[p > 0.0] * surprisal[p > 0.0]).sum())
    distance = np.abs(surprisal - entropy)
    order = np.argsort(distance, kind="stable")
    last = min(int((np.cumsum(p[order]) < mass).sum()), len(order) - 1)
    return np.asarray(distance <= distance[order[last]])
