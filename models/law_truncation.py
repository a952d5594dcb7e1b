"""Truncation of a law by top-k, top-p, min-p and typical-p, in that order, after the temperature.

Semantics are those of Transformers' warpers: top-k keeps ties with the k-th value; top-p keeps the smallest set of the
likeliest tokens whose cumulative probability reaches p (among equal probabilities the lower token ids come first, where
Transformers leaves the order open); min-p keeps tokens of at least min_p times the largest probability; typical-p keeps
the tokens whose surprisal is nearest to the entropy until their mass reaches typical_p, ties with the last one included.

Sorting a whole row would dominate selection. Each rule but the last comes down to one threshold, and top-p's is found by
setting aside what cannot matter and partitioning the rest.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from contracts.sampling import SamplingPolicy
from models.law_kernels import at_least, exp_sums, values_at

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SORTABLE = 1024
PEAK = 1e-3
FINITE = float(np.finfo(np.float32).min)


def truncates(policy: SamplingPolicy) -> bool:
    """Whether the policy cuts the support at all."""
    return policy.top_k > 0 or policy.top_p < 1.0 or policy.min_p > 0.0 or policy.typical_p < 1.0


def truncated(logits: Tensor, top: float, policy: SamplingPolicy) -> tuple[Ints, Floats]:
    """ids int64 [S] ascending and probabilities float64 [S] of the truncated, renormalised law.

    logits: float32 [V], edited, on any device, without NaN or +inf; `top` their finite maximum.
    """
    vocab, temperature = logits.shape[0], policy.temperature
    if policy.top_p < 1.0 and not 0 < policy.top_k < vocab:
        ids, weights = _nucleus_of_row(logits, top, policy)
    else:
        if 0 < policy.top_k < vocab:
            ids = at_least(logits, float(torch.topk(logits, policy.top_k).values[-1]))
        elif policy.min_p > 0.0:
            # The rule itself is applied below; this only keeps whole rows on the device.
            ids = at_least(logits, top + temperature * math.log(policy.min_p) - 1e-3 * max(1.0, abs(top)))
        else:
            ids = at_least(logits, FINITE)
        weights = np.exp((values_at(logits, ids) - top) / temperature)
        if policy.top_p < 1.0:
            keep = nucleus(weights, policy.top_p * float(weights.sum()))
            ids, weights = ids[keep], weights[keep]
    if policy.min_p > 0.0:
        keep = weights >= policy.min_p
        ids, weights = ids[keep], weights[keep]
    if policy.typical_p < 1.0:
        keep = _typical(weights / weights.sum(), policy.typical_p)
        ids, weights = ids[keep], weights[keep]
    positive = weights > 0.0
    ids, weights = ids[positive], weights[positive]
    return ids, weights / weights.sum()


def _nucleus_of_row(logits: Tensor, top: float, policy: SamplingPolicy) -> tuple[Ints, Floats]:
    """Token ids kept by top-p alone, ascending, and their weights, the largest being 1."""
    total, _ = exp_sums(logits, top, policy.temperature)
    mass = policy.top_p * total
    # A peaked row is decided among its few likeliest tokens. Else: all tokens below the second floor together hold less
    # than 1 - p, so the set is complete before it gets to them.
    for floor in (PEAK, (1.0 - policy.top_p) * total / len(logits) * (1 - 1e-6)):
        ids = at_least(logits, top + policy.temperature * math.log(floor))
        weights = np.exp((values_at(logits, ids) - top) / policy.temperature)
        if float(weights.sum()) >= mass:
            break
    keep = nucleus(weights, mass)
    return ids[keep], weights[keep]


def nucleus(weights: Floats, mass: float) -> npt.NDArray[np.bool_]:
    """bool [S]: the smallest set of largest weights whose sum reaches `mass`, of equals the first; all if none does."""
    if len(weights) <= SORTABLE:
        order = (-weights).argsort(kind="stable")
        keep = np.zeros(len(weights), dtype=np.bool_)
        keep[order[: int(weights[order].cumsum().searchsorted(mass)) + 1]] = True
        return keep
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
