"""Truncation of a law by top-k, top-p, min-p and typical-p, in that order, after the temperature.

Semantics are those of Transformers' warpers: top-k keeps ties with the k-th value; top-p keeps the smallest set of the
likeliest tokens whose cumulative probability reaches p (among equal probabilities the lower token ids come first, where
Transformers leaves the order open); min-p keeps tokens of at least min_p times the largest probability; typical-p keeps
the tokens whose surprisal is nearest to the entropy until their mass reaches typical_p, ties with the last one included.

Sorting a whole row would dominate selection, so only a head of the likeliest tokens is sorted, in complete groups of
ties; if a rule cannot be decided within the head, the head grows.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from contracts.sampling import SamplingPolicy

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

FIRST_HEAD = 256
GROWTH = 16


def truncates(policy: SamplingPolicy) -> bool:
    """Whether the policy cuts the support at all."""
    return policy.top_k > 0 or policy.top_p < 1.0 or policy.min_p > 0.0 or policy.typical_p < 1.0


def truncated(logits: Tensor, policy: SamplingPolicy) -> tuple[Ints, Floats]:
    """ids int64 [S] ascending and probabilities float64 [S] of the truncated, renormalised law.

    logits: float32 [V], edited, on any device, without NaN or +inf and with a finite maximum.
    """
    vocab = logits.shape[0]
    total: float | None = None
    if policy.top_k == 0 and policy.top_p < 1.0:
        top = logits.amax()
        total = float(torch.exp((logits - top) / policy.temperature).sum(dtype=torch.float64))
    size = FIRST_HEAD if policy.typical_p == 1.0 or policy.top_k or policy.top_p < 1.0 or policy.min_p else vocab
    size = max(size, policy.top_k + 64)
    while True:
        kept = _decide(*_head(logits, min(size, vocab)), vocab, policy, total)
        if kept is not None:
            ids, weights = kept
            order = np.argsort(ids)
            return ids[order], weights[order] / weights.sum()
        size *= GROWTH


def _head(logits: Tensor, size: int) -> tuple[Ints, Floats]:
    """The likeliest tokens in complete groups of ties, sorted by (logit descending, id): ids, logits float64."""
    values, ids = torch.topk(logits, size)
    host, host_ids = values.double().cpu().numpy(), ids.cpu().numpy()
    if size < logits.shape[0]:
        complete = host > host[-1]
        host, host_ids = host[complete], host_ids[complete]
    order = np.lexsort((host_ids, -host))
    return host_ids[order], host[order]


def _decide(
    ids: Ints, logits: Floats, vocab: int, policy: SamplingPolicy, total: float | None
) -> tuple[Ints, Floats] | None:
    """The surviving (ids, weights), or None if the head is too short to tell. `total`: weight of the whole row."""
    if len(ids) == 0:
        return None
    # `open` says that tokens beyond the head are still in the running.
    still_open = len(ids) < vocab
    weights = np.exp((logits - logits[0]) / policy.temperature)
    if policy.top_k:
        k = min(policy.top_k, vocab)
        if still_open and k > len(ids):
            return None
        count = int(np.searchsorted(-logits, -logits[min(k, len(ids)) - 1], side="right"))
        ids, logits, weights, still_open = ids[:count], logits[:count], weights[:count], False
    if policy.top_p < 1.0:
        mass = total if still_open and total is not None else float(weights.sum())
        count = int(np.searchsorted(np.cumsum(weights), policy.top_p * mass, side="left")) + 1
        if still_open and count > len(ids):
            return None
        ids, logits, weights, still_open = ids[:count], logits[:count], weights[:count], False
    if policy.min_p > 0.0:
        count = int(np.searchsorted(-weights, -policy.min_p, side="right"))
        if still_open and count == len(ids):
            return None
        ids, logits, weights, still_open = ids[:count], logits[:count], weights[:count], False
    if policy.typical_p < 1.0:
        if still_open:
            return None
        ids, weights = _typical(ids, weights, policy.typical_p)
    positive = weights > 0.0
    return ids[positive], weights[positive]


def _typical(ids: Ints, weights: Floats, mass: float) -> tuple[Ints, Floats]:
    """Meister et al., "Locally typical sampling", TACL 2023."""
    p = weights / weights.sum()
    surprisal = np.full(len(p), math.inf)
    np.log(p, out=surprisal, where=p > 0.0)
    surprisal[p > 0.0] *= -1.0
    entropy = float((p[p > 0.0] * surprisal[p > 0.0]).sum())
    distance = np.abs(surprisal - entropy)
    order = np.lexsort((ids, distance))
    last = min(int((np.cumsum(p[order]) < mass).sum()), len(order) - 1)
    keep = distance <= distance[order[last]]
    return ids[keep], weights[keep]
