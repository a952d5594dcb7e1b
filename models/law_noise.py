"""Gumbel-max over a row, exact and pruned: the noise of a vocabulary is hashed, and a handful of logarithms is taken.

`gumbel_top` returns what sorting all perturbed scores would, without taking two logarithms per token: the likeliest few
are perturbed first, and their scores bound from below the noise that any other token would need. That bound is an integer
threshold on the raw bits, which a handful of tokens pass.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from contracts.randomness import gumbel
from models.law_kernels import at_least, noisy_enough, values_at

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

HEAD = 64
LARGEST_HEAD = 2048
MARGIN = 6.0


def _head(scores: Tensor, count: int, floor: float) -> tuple[Ints, Floats, float]:
    """ids and scores of the likeliest few, at least `count` where there are, and an upper bound of all other scores."""
    ids = at_least(scores, floor)
    if count <= len(ids) <= LARGEST_HEAD:
        return ids, values_at(scores, ids), floor
    head = torch.topk(scores, min(max(HEAD, count), scores.shape[0]))
    values = head.values.double().cpu().numpy()
    return head.indices.cpu().numpy(), values, float(values[-1])


def gumbel_top(scores: Tensor, key: int, count: int, to_log: Callable[[Floats], Floats], floor: float) -> Ints:
    """The `count` tokens with the largest to_log(scores) + noise of `key`, best first, ties to the lower id: int64.

    One token is a sample (Gumbel-max), several are a sample without replacement (Kool, van Hoof and Welling, "Stochastic
    beams and where to find them", ICML 2019). Fewer come back where fewer can be chosen.

    scores: float [V] on any device, without NaN or +inf. to_log: increasing map of float64 scores to log weights, applied
    on the host to a few tokens only; it gives -inf for tokens that cannot be chosen. floor: the score that is MARGIN nats
    of log weight below the largest. Only small vectors leave the device.
    """
    vocab = scores.shape[0]
    ids, values, rest = _head(scores, count, floor)
    noisy = to_log(values) + gumbel(key, ids)
    bound = float(to_log(np.array([rest]))[0])
    if len(ids) < vocab and bound > -np.inf:
        # A token outside the head has log weight <= bound; to enter, its noise must lift it to the head's count-th best.
        needed = np.partition(noisy, len(noisy) - count)[len(noisy) - count] - bound
        threshold = max(int(np.exp(-np.exp(-needed)) * (1 - 1e-12) * 2.0**52) - 2, 0)
        hopeful = noisy_enough(key, vocab, threshold, scores.device)
        # The head's own tokens are already in. (A set: np.isin costs more than all the rest here.)
        known = set(ids.tolist())
        hopeful = np.array([token for token in hopeful.tolist() if token not in known], dtype=np.int64)
        more = to_log(values_at(scores, hopeful))
        ids, noisy = np.concatenate([ids, hopeful]), np.concatenate([noisy, more + gumbel(key, hopeful)])
    order = np.lexsort((ids, -noisy))[:count]
    return ids[order[noisy[order] > -np.inf]]
